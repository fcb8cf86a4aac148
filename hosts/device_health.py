"""Whether a GPU is well: a verdict from readings, failures and what the device itself reports. Pure.

    ok -> throttled -> degraded -> lost | driver_mismatch

`DeviceState` is what is remembered of one GPU, every function gives the next one, and `verdict` says
what it means. Readings heal what readings found. What the device reported (an XID of its hardware) stays
until its driver was loaded anew, since a GPU that must be reset still answers most questions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hosts.device_events import DeviceEvent
from hosts.gpu_sample import GpuSample
from hosts.xids import XidClass, classify, describe

MISSES = 3
"""So many questions in a row without an answer make a GPU degraded."""
STEADY = 3
"""So many readings in a row make it throttled, end that, or show that a lost GPU is back."""
FORGET = 86400.0
"""Seconds after which an error of the hardware no longer counts, if none came since."""
RESETS = 3
RESETS_WITHIN = 3600.0
"""So many resets in so many seconds are a fault, however well each one went."""
RECOVERY_XID = 154
"""Its text says from what to what the driver's wish changed: a reset, a reboot, or nothing any more."""
_RECOVERED = re.compile(r" to 0x0\b")
HOT = 60.0
"""Seconds for which a GPU that reported to be too hot counts as throttled."""
_KEPT = 20
_SLOWED = frozenset({"hardware_slowdown", "software_thermal", "hardware_thermal", "power_brake"})
"""What throttles against the owner's will. A software power cap is how a GPU keeps to the limit that was set."""
_MISMATCH = "driver_mismatch"
ABSENT = frozenset({"driver_not_loaded", "library_missing"})
"""There is no driver to ask. For a moment that is an upgrade; what runs has the driver it began with."""
REBOOT = "reboot the machine; if it comes back, check power supply, cables, temperature and seating"
_RESET = "reset the GPU (`nvidia-smi --gpu-reset`) or reboot; if it comes back, the GPU may need service"
_AMD = "look at `dmesg | grep amdgpu`; update linux-firmware and the kernel if it comes back"


class Health(StrEnum):
    """How a GPU is."""

    OK = "ok"
    THROTTLED = "throttled"
    DEGRADED = "degraded"
    LOST = "lost"
    DRIVER_MISMATCH = "driver_mismatch"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a GPU is, why, in numbers and in a sentence, and what to do about it."""

    health: Health
    reason: str
    text: str = ""
    hint: str | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)


WELL = Verdict(Health.OK, "ok")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong: `code` is stable, `at` monotonic seconds."""

    code: str
    text: str
    at: float
    hint: str | None = None
    number: int | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class DeviceState:
    """What is remembered of one GPU."""

    gone: Fault | None = None
    """What a reading found: the GPU, or its driver, does not answer any more."""
    misses: int = 0
    missed: Fault | None = None
    faults: tuple[Fault, ...] = ()
    """What the device reported and no reading can take back, oldest first."""
    resets: tuple[float, ...] = ()
    well: int = 0
    """Good readings in a row."""
    hot: int = 0
    cool: int = 0
    throttled: tuple[str, ...] = ()
    hot_until: float = 0.0
    ecc: Mapping[str, int] = field(default_factory=dict)


def read(state: DeviceState, sample: GpuSample) -> DeviceState:
    """The GPU answered."""
    well = state.well + 1
    slowed = () if sample.idle else tuple(r for r in sample.throttled_by or () if r in _SLOWED)
    hot, cool = (state.hot + 1, 0) if slowed else (0, state.cool + 1)
    throttled = state.throttled
    if slowed and (hot >= STEADY or throttled):
        throttled = slowed
    elif cool >= STEADY:
        throttled = ()
    # a GPU that fell off the bus and answers again and again is back, whatever brought it back
    faults = tuple(f for f in state.faults if f.code != "fell_off_the_bus") if well >= STEADY else state.faults
    return replace(
        state,
        gone=None,
        misses=0,
        missed=None,
        well=well,
        hot=hot,
        cool=cool,
        throttled=throttled,
        faults=faults,
        ecc=sample.ecc,
    )


def failed(state: DeviceState, code: str, text: str, hint: str | None, at: float) -> DeviceState:
    """A question about the GPU failed with this problem, or had no answer in time."""
    fault = Fault(code, text, at, hint, lost=code == "gpu_lost" or code in ABSENT)
    if code in {"gpu_lost", _MISMATCH}:
        return replace(state, gone=fault, well=0)
    return replace(state, misses=state.misses + 1, missed=fault, well=0)


def happened(state: DeviceState, event: DeviceEvent) -> DeviceState:
    """The device reported something itself. What a program did wrong changes nothing."""
    if event.kind == "amdgpu_reset":
        state = replace(state, resets=(*state.resets, event.at)[-_KEPT:])
    elif event.kind == "amdgpu_reset_done":
        return replace(state, faults=tuple(f for f in state.faults if not f.code.startswith("amdgpu_")))
    elif event.kind == "thermal":
        return replace(state, hot_until=event.at + HOT)
    elif recovered(event):
        return replace(state, faults=tuple(f for f in state.faults if f.code != "recovery_action"))
    fault = _fault(event)
    if fault is None:
        return state
    kept = [f for f in state.faults if (f.code, f.number) != (fault.code, fault.number)]
    return replace(state, faults=(*kept, fault)[-_KEPT:], well=0)


def recovered(event: DeviceEvent) -> bool:
    """Whether the driver no longer wants a reset or a reboot. NVML's XID does not say; the kernel's line does."""
    told = event.kind == "xid" and event.number == RECOVERY_XID and _RECOVERED.search(event.text) is not None
    return told or event.kind == "recovery_over"


def answers(state: DeviceState) -> DeviceState:
    """A fresh look found the GPU well."""
    return replace(state, gone=None, misses=0, missed=None)


def renewed(state: DeviceState) -> DeviceState:
    """Its driver was loaded anew: what was reported before is over."""
    return replace(state, faults=(), resets=(), hot_until=0.0)


def verdict(state: DeviceState, now: float) -> Verdict:
    """What it all means at `now` (monotonic): the worst of it."""
    gone = state.gone
    if gone is not None and gone.code == _MISMATCH:
        return Verdict(Health.DRIVER_MISMATCH, _MISMATCH, gone.text, gone.hint)
    faults = [f for f in state.faults if now - f.at < FORGET]
    lost = next((f for f in (gone, *faults) if f is not None and f.lost), None)
    if lost is not None:
        return Verdict(Health.LOST, lost.code, lost.text, lost.hint, _numbers(lost))
    if faults:
        last = faults[-1]
        return Verdict(Health.DEGRADED, last.code, last.text, last.hint, {**_numbers(last), "errors": len(faults)})
    if (found := _worn(state)) is not None:
        return found
    resets = [at for at in state.resets if now - at < RESETS_WITHIN]
    if len(resets) >= RESETS:
        return Verdict(
            Health.DEGRADED,
            "amdgpu_resets",
            f"the driver reset the GPU {len(resets)} times within an hour",
            _AMD,
            {"resets": len(resets)},
        )
    if state.missed is not None and state.misses >= MISSES:
        missed = state.missed
        health = Health.LOST if missed.lost else Health.DEGRADED
        return Verdict(health, missed.code, missed.text, missed.hint, {"misses": state.misses})
    if state.throttled or now < state.hot_until:
        by = list(state.throttled) or ["thermal"]
        hint = "check fans, dust and room temperature"
        if by == ["power_brake"]:
            hint = "the power supply asks for less: check its size and cables"
        return Verdict(Health.THROTTLED, by[0], f"the GPU runs slower: {', '.join(by)}", hint, {"throttled_by": by})
    return WELL


def _numbers(fault: Fault) -> dict[str, object]:
    return {} if fault.number is None else {"xid": fault.number}


def _worn(state: DeviceState) -> Verdict | None:
    """What ECC memory says of itself."""
    for name, text in (
        ("remap_failed", "the GPU's memory has no spare rows left"),
        ("remap_pending", "rows of the GPU's memory are to be replaced at its next reset"),
        ("retire_pending", "pages of the GPU's memory are to be retired at its next reset"),
        ("uncorrected", "the GPU's memory had errors that ECC could not correct"),
    ):
        if state.ecc.get(name):
            return Verdict(Health.DEGRADED, f"ecc_{name}", text, _RESET, dict(state.ecc))
    return None


def _fault(event: DeviceEvent) -> Fault | None:
    """What of an event lasts."""
    if event.kind == "xid":
        return _xid_fault(event)
    if event.kind not in _FAULTS:
        return None
    code, text, hint, lost = _FAULTS[event.kind]
    return Fault(code, f"{text}: {event.text}", event.at, hint, lost=lost)


def _xid_fault(event: DeviceEvent) -> Fault | None:
    match classify(event.number):
        case XidClass.APPLICATION | XidClass.UNKNOWN:
            return None
        case XidClass.HARDWARE:
            return Fault("xid", describe(event.number), event.at, _RESET, event.number)
        case XidClass.LOST:
            code = "recovery_action" if event.number == RECOVERY_XID else "fell_off_the_bus"
            return Fault(code, describe(event.number), event.at, REBOOT, event.number, lost=True)


_FAULTS: Mapping[str, tuple[str, str, str, bool]] = {
    "gpu_unavailable": ("fell_off_the_bus", "the GPU is gone from the bus", REBOOT, True),
    "recovery_action": ("recovery_action", "the driver asks for a reset or a reboot", _RESET, True),
    "ecc_double_bit": ("ecc_double_bit", "an error in the GPU's memory that ECC could not correct", _RESET, False),
    "pcie_error": ("pcie_error", "errors on the GPU's PCIe link", "check its seating and riser", False),
    "amdgpu_reset": ("amdgpu_reset", "the driver resets the GPU", _AMD, False),
    "amdgpu_reset_failed": ("amdgpu_reset_failed", "the driver could not reset the GPU", f"reboot; {_AMD}", True),
    "amdgpu_mes": ("amdgpu_mes", "the GPU's scheduler (MES) does not answer", f"reboot; {_AMD}", False),
}
"""Events that last, by kind: code, sentence, hint, and whether the GPU is lost. `amdgpu_timeout` and
`amdgpu_fault` are a program's doing; where they are not, a reset follows."""

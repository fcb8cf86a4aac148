"""Whether a deployment may be started on the GPUs as they are, and whose engine an event is about. Pure.

A hold is about starts alone: a driver that was upgraded under its kernel module still serves the programs
that began with the old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hosts.device_health import Health, Verdict
from hosts.xids import describe
from orchestrator.decision import Decision
from orchestrator.errors import EngineFailed

NVIDIA = "nvidia"
RECENT = 60.0
"""Seconds before an engine's end in which what its GPU reported counts as the cause."""
_MUTE = frozenset({"engine_exited", "engine_killed", "engine_aborted", "engine_crashed"})
"""Codes of ends that say nothing of their cause."""
_OUT_OF_MEMORY = frozenset({"cgroup_out_of_memory", "host_out_of_memory"})
_RESETS = frozenset({"amdgpu_timeout", "amdgpu_reset"})
_CDI = "nvidia.com/"
GPU_LOST = "gpu_lost"


SHARED = frozenset({"/dev/kfd"})
"""Device nodes that every GPU of a vendor needs: having one says nothing about which GPU it is for."""


class Start(StrEnum):
    """What is to be done about a start."""

    GO = "go"
    HOLD = "hold"
    """Not now; it is started when what holds it is over."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: what containers ask for to get it, and how it is. `seen` is False for one that the host's facts
    lack: it was broken when the host was probed."""

    pci: str
    vendor: str
    devices: tuple[str, ...]
    verdict: Verdict
    seen: bool = True
    held: str | None = None
    """Why it is left alone for now (`orchestrator.stopping.quarantine`)."""

    def taken_by(self, devices: Sequence[str]) -> bool:
        """Whether a container with these devices has this GPU."""
        return not (set(self.devices) - SHARED).isdisjoint(devices)


@dataclass(frozen=True, slots=True)
class Wish:
    """A deployment that is to be started. `devices` are its plan's; None while there is no plan.

    `cpu` is set when its image is one for the CPU: then no GPU matters.
    """

    cpu: bool
    devices: tuple[str, ...] | None


def start(wish: Wish, gpus: Sequence[Gpu], mismatch: bool) -> Decision[Start]:
    """Whether it may be started. `mismatch` is the host's: the driver's two halves do not fit.

    Without a plan the question is whether any plan could be launched. A plan without devices that was made
    while no GPU could be seen is no answer either: the model would silently run on the CPU of a GPU host.
    """
    if wish.cpu:
        return Decision(Start.GO, "cpu")
    blind = not any(gpu.seen for gpu in gpus)
    if mismatch and _needs_nvidia(wish, gpus, blind):
        return Decision(Start.HOLD, Health.DRIVER_MISMATCH.value)
    lost = [gpu for gpu in gpus if gpu.verdict.health is Health.LOST]
    if wish.devices:
        lost = [gpu for gpu in lost if gpu.taken_by(wish.devices)]
    elif len(lost) < len(gpus) or (wish.devices is not None and not blind):
        lost = []
    if lost:
        return Decision(Start.HOLD, GPU_LOST, {"gpu": lost[0].pci})
    held = next((gpu for gpu in gpus if gpu.held is not None), None)
    if held is not None and wish.devices != () and all(gpu.held or gpu.verdict.health is Health.LOST for gpu in gpus):
        return Decision(Start.HOLD, "gpu_memory_held", {"gpu": held.pci})  # with another one a new plan is made
    return Decision(Start.GO, "devices_well")


class Lost(StrEnum):
    """What is to be done about a deployment whose GPU is lost."""

    WAIT = "wait"
    """For that GPU: there is no other that could take it."""
    ASK = "ask"
    """Others are well: the planner says whether they take it."""


def after_loss(devices: Sequence[str], gpus: Sequence[Gpu]) -> Decision[Lost]:
    """Whether a plan with these devices, of which a GPU is lost, may be made anew for the GPUs that are left.

    Whether it fits there is the planner's to say, and whether they are of the kind that the model needs is
    `device_need`'s.
    """
    gone = [gpu.pci for gpu in gpus if gpu.verdict.health is Health.LOST and gpu.taken_by(devices)]
    left = [
        gpu.pci
        for gpu in gpus
        if gpu.seen and gpu.devices and gpu.held is None and gpu.verdict.health is not Health.LOST
    ]
    evidence: Mapping[str, object] = {"lost": gone, "left": left}
    if not gone:
        return Decision(Lost.WAIT, "not_lost", evidence)
    return Decision(Lost.ASK, "others_are_well", evidence) if left else Decision(Lost.WAIT, "no_other_gpu", evidence)


def _needs_nvidia(wish: Wish, gpus: Sequence[Gpu], blind: bool) -> bool:
    if not wish.devices:
        return (blind or wish.devices is None) and all(gpu.vendor == NVIDIA for gpu in gpus)
    mine = {device for gpu in gpus if gpu.vendor == NVIDIA for device in gpu.devices}
    return any(device in mine or device.startswith(_CDI) for device in wish.devices)


@dataclass(frozen=True, slots=True)
class Suspect:
    """An engine that an event may be about: its main process, its container, and whether it is on the GPU."""

    name: str
    pid: int | None
    container: str | None
    on_gpu: bool


class Whose(StrEnum):
    """Whether an event is about an engine."""

    ENGINE = "engine"
    NOBODYS = "nobodys"


def whose(pid: int | None, container: str | None, suspects: Sequence[Suspect]) -> Decision[Whose]:
    """Which engine an event of a program names: by process, then by container, then the only one on that GPU.

    An event that names a process of nobody's (a desktop, another user's program) is about no engine.
    """
    for by, found in (
        ("process", [s for s in suspects if pid is not None and s.pid == pid]),
        ("container", [s for s in suspects if container is not None and s.container == container]),
    ):
        if found:
            return _named(found[0], by)
    on_gpu = [s for s in suspects if s.on_gpu]
    if pid is None and len(on_gpu) == 1:
        return _named(on_gpu[0], "only_engine")
    return Decision(Whose.NOBODYS, "several_engines" if pid is None and on_gpu else "no_engine")


def _named(suspect: Suspect, by: str) -> Decision[Whose]:
    evidence: Mapping[str, object] = {"engine": suspect.name, "by": by}
    return Decision(Whose.ENGINE, by, evidence)


def blamed(error: EngineFailed, reports: Sequence[Mapping[str, object]], now: float) -> EngineFailed:
    """Why an engine ended, with what its GPU reported about it shortly before (`now`: monotonic).

    A log that names the cause keeps its word; where there is only an exit code, the report is the cause.
    """
    recent = [r for r in reports if isinstance(at := r.get("at"), float) and now - at <= RECENT]
    if not recent:
        return error
    last = recent[-1]
    if last.get("kind") == "oom_kill":
        if error.code in _OUT_OF_MEMORY:  # its control group has told already, and knows whose memory ran out
            return EngineFailed(
                error.code,
                error.detail,
                retryable=error.retryable,
                hint=error.hint,
                evidence={**error.evidence, "kernel_reported": last.get("text")},
            )
        cgroup = "cgroup" in str(last.get("text")).lower()
        code = "cgroup_out_of_memory" if cgroup else "host_out_of_memory"
        whose = "its container passed its memory limit" if cgroup else "memory ran out"
        return EngineFailed(
            code if error.code in _MUTE else error.code,
            f"{error.detail}; the kernel killed it because {whose}",
            retryable=error.retryable,
            hint="raise its limit, or give it less context"
            if cgroup
            else "stop another model, or give this one less context",
            evidence={**error.evidence, "kernel_reported": last.get("text")},
        )
    xid = last.get("xid")
    what = describe(xid) if isinstance(xid, int) else str(last.get("kind", "an error")).replace("_", " ")
    return EngineFailed(
        ("gpu_reset" if last.get("kind") in _RESETS else "gpu_fault") if error.code in _MUTE else error.code,
        f"{error.detail}; GPU {last.get('gpu')} reported {what}",
        retryable=error.retryable,
        hint=error.hint
        if error.code not in _MUTE
        else "the program's own fault in most cases: another image version"
        " may not have it; if it comes back with every image, test the GPU's memory",
        evidence={**error.evidence, "xid": xid, "gpu": last.get("gpu"), "gpu_reported": last.get("text")},
    )

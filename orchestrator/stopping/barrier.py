"""The barrier behind an engine that was stopped: may the next one load into its memory? Pure.

Three things in this order: the container's processes are gone; the driver lists none of them any more; and the
device's memory has come back and rises no longer. Killing the server of vLLM leaves workers that hold memory
(vllm #55510), removing a container has left some (vllm-omni #2317), and a driver may give memory back late or,
after a fault, not at all. A device whose memory does not come back in time is not reset: it is left alone
(quarantined), and others are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from orchestrator.decision import Decision
from orchestrator.stopping.holders import Holder

STABLE = 3
"""Looks in a row at which the memory of a device has to be the same."""
RISE = 64 << 20
"""Bytes: what is freed between two looks by less than this has come back. Desktops take and give a few MiB."""
LOST = 256 << 20
"""Bytes that have no holder after a stop and had one before it: the least that counts as held by a dead engine.
A driver keeps some for itself once it was used."""
LOST_SHARE = 0.1
"""... and the least share of what the engine had."""


class Barrier(StrEnum):
    """What to do."""

    CLEAR = "clear"
    """The memory is free: load."""
    WAIT = "wait"
    """Look again in a moment."""
    KILL = "kill"
    """Processes of a container that is gone: nobody else ends them."""
    GIVE_UP = "give_up"
    """Not in time: the devices are quarantined, with the holders named."""


@dataclass(frozen=True, slots=True)
class DeviceLook:
    """One device at one moment. `listed` are processes of the stopped container that the driver lists, None when it
    does not say who is there; `free` and `lost` bytes: what is free, and what came to have no holder since the
    engine ran. `unified` memory is the system's, whose free bytes everybody changes."""

    device: str
    listed: tuple[Holder, ...] | None
    free: int | None
    lost: int | None = None
    had: int | None = None
    unified: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """One look: `at` seconds after the barrier began, `alive` processes of the container, and its devices (without
    those that cannot be read now)."""

    at: float
    alive: tuple[Holder, ...]
    devices: tuple[DeviceLook, ...] = ()


def decide(looks: Sequence[Look], limit: float) -> Decision[Barrier]:
    """What to do after these looks, oldest first. Evidence names what is in the way."""
    now = looks[-1]
    in_way = _in_way(looks)
    if in_way is None:
        return Decision(Barrier.CLEAR, "memory_free" if now.devices else "processes_gone", _seen(looks))
    reason, evidence = in_way
    evidence = {**evidence, "after_s": round(now.at, 3), "limit_s": limit}
    if now.at >= limit:
        return Decision(Barrier.GIVE_UP, reason, evidence)
    return Decision(Barrier.KILL if reason == "processes_left" else Barrier.WAIT, reason, evidence)


def _in_way(looks: Sequence[Look]) -> tuple[str, dict[str, object]] | None:
    now = looks[-1]
    if now.alive:
        return "processes_left", {"pids": [holder.pid for holder in now.alive]}
    for device in now.devices:
        if device.listed:
            return "listed_by_driver", {"device": device.device, "pids": [holder.pid for holder in device.listed]}
    for device in now.devices:
        if device.lost is not None and device.lost > max(LOST, LOST_SHARE * (device.had or 0)):
            return "held_by_nobody", {"device": device.device, "lost_bytes": device.lost, "had_bytes": device.had}
    for device in now.devices:
        if not device.unified and device.free is not None and not _stable(looks, device.device):
            return "still_coming_back", {"device": device.device, "free_bytes": device.free}
    return None


def _stable(looks: Sequence[Look], device: str) -> bool:
    """Whether it rose by little in each of the last steps. That others take memory is not our affair."""
    free = [d.free for look in looks[-STABLE:] for d in look.devices if d.device == device and d.free is not None]
    return len(free) == STABLE and all(after - before < RISE for before, after in pairwise(free))


def _seen(looks: Sequence[Look]) -> dict[str, object]:
    now = looks[-1]
    free = {device.device: device.free for device in now.devices if not device.unified}
    return {"looks": len(looks), "after_s": round(now.at, 3), "free_bytes": free}


def over(look: Look) -> bool:
    """Whether what a quarantine is for has gone: nobody of that container is left, on the device or at all."""
    return _in_way([look] * STABLE) is None

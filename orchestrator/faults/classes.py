"""The classes of faults, and the policy of each: who is to blame, what may help, how often the same is tried. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

FAILURES = 3
"""Failures on a rung within `Timing.rung_window` after which the next one is tried."""


class Fault(StrEnum):
    """What kind of thing went wrong."""

    CRASH = "crash"
    """It ended and nothing says why; exit status 0 is no better (vllm#53726)."""
    STALLED = "stalled"
    """It lives and does not get on."""
    WRONG_OUTPUT = "wrong_output"
    SPECULATION = "speculation"
    """Its drafting does not work, or brought it down."""
    DEVICE_MEMORY = "device_memory"
    HOST_MEMORY = "host_memory"
    """The kernel's killer, or our own guard, ended it because the host ran short."""
    CGROUP_MEMORY = "cgroup_memory"
    """It passed the memory limit of its own container."""
    DEVICE = "device"
    """A GPU faulted under it: an XID, an amdgpu fault or reset."""
    DEVICE_LOST = "device_lost"
    FLAG = "flag"
    """The engine does not take its own arguments."""
    UNSUPPORTED = "unsupported"
    """This host cannot run this build, or this build not this model."""
    WEIGHTS = "weights"
    IMAGE = "image"
    AUTH = "auth"
    PLACE = "place"
    """Its surroundings: a port, a socket, a device that something else holds."""
    NO_ROOM = "no_room"
    """It would not fit beside what runs now."""
    HANDS = "hands"
    """What carries out: Podman, the disk, the database, Outrider itself."""


class Gives(StrEnum):
    """What a lower rung gives up."""

    GRAPHS = "graphs"
    BATCH = "batch"
    SLOTS = "slots"
    METHOD = "method"
    RUNTIME = "runtime"


ANYTHING = frozenset(Gives)
NOTHING: frozenset[Gives] = frozenset()
DRAFTING = frozenset({Gives.METHOD, Gives.RUNTIME})


@dataclass(frozen=True, slots=True)
class Policy:
    """What follows from a fault. `blames` is set when it says something about what was launched: only then it counts
    on the rung, and a lower one is tried. `helps` is what that one has to give up; with nothing, a fault that
    repetition does not heal is parked at once. `limit` is how many failures the rung has. `persists` is False for
    what another boot (a driver, another kernel) may mend."""

    blames: bool
    helps: frozenset[Gives]
    text: str
    limit: int = FAILURES
    persists: bool = True


POLICIES: Mapping[Fault, Policy] = {
    Fault.CRASH: Policy(True, ANYTHING, "start again, then give something up"),
    Fault.STALLED: Policy(True, ANYTHING, "start again, then give something up"),
    Fault.WRONG_OUTPUT: Policy(
        True, DRAFTING, "start again once; wrong twice, draft otherwise or use another runtime", limit=2
    ),
    Fault.SPECULATION: Policy(True, frozenset({Gives.SLOTS, *DRAFTING}), "fewer slots, then draft otherwise"),
    Fault.DEVICE_MEMORY: Policy(True, ANYTHING, "take less memory", persists=False),
    Fault.HOST_MEMORY: Policy(False, NOTHING, "wait for memory; the launch is as good as before"),
    Fault.CGROUP_MEMORY: Policy(True, ANYTHING, "take less memory"),
    Fault.DEVICE: Policy(True, ANYTHING, "start again, then give something up"),
    Fault.DEVICE_LOST: Policy(False, NOTHING, "wait for the device, or run elsewhere"),
    Fault.FLAG: Policy(True, DRAFTING, "another method or runtime: the same arguments fail the same"),
    Fault.UNSUPPORTED: Policy(True, frozenset({Gives.RUNTIME}), "another runtime or image", persists=False),
    Fault.WEIGHTS: Policy(True, NOTHING, "park: a person has to bring the files"),
    Fault.IMAGE: Policy(False, NOTHING, "plan anew, which brings the image"),
    Fault.AUTH: Policy(False, NOTHING, "park: a person has to give a login"),
    Fault.PLACE: Policy(False, NOTHING, "start again somewhere else: another port, another socket"),
    Fault.NO_ROOM: Policy(False, NOTHING, "plan anew for the memory that is left"),
    Fault.HANDS: Policy(False, NOTHING, "try again later, and later still"),
}

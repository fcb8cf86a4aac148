"""Who holds a device's memory, from a reading of the host: by process, by container, or nobody that is listed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hosts.gpu_users import GpuUser
from hosts.telemetry import Sample


@dataclass(frozen=True, slots=True)
class Holder:
    """One process that has, or may have, memory of a device. `state` is the kernel's letter (D: in the driver),
    None for one that ended and is listed all the same; `memory` bytes of the device; `waits` the kernel function
    that it waits in."""

    pid: int
    name: str | None
    memory: int | None = None
    device: str | None = None
    state: str | None = None
    waits: str | None = None

    def __str__(self) -> str:
        size = "" if self.memory is None else f", {self.memory / 2**30:.2f} GiB"
        state = "has ended" if self.state is None else f"state {self.state}"
        waits = "" if self.waits in (None, "0") else f" in {self.waits}"
        return f"process {self.pid} ({self.name or 'name unknown'}, {state}{waits}{size})"

    def evidence(self) -> dict[str, object]:
        """For the journal."""
        return {
            "pid": self.pid,
            "name": self.name,
            "memory_bytes": self.memory,
            "device": self.device,
            "state": self.state,
            "waits_in": self.waits,
        }


@dataclass(frozen=True, slots=True)
class Trace:
    """What one container was seen to have on one device while it ran: its processes by pid with their names, their
    bytes, and what nobody that the driver lists had then (None: it cannot be told)."""

    pids: Mapping[int, str | None]
    memory: int | None
    nobodys: int | None


def nobodys(sample: Sample, device: str) -> int | None:
    """Bytes in use on a device that no listed process has; None where processes or their bytes are unknown."""
    one = sample.gpus.get(device)
    if one is None or one.memory_used is None or one.processes is None:
        return None
    sizes = [process.memory for process in one.processes]
    known = [size for size in sizes if size is not None]
    return None if len(known) < len(sizes) else one.memory_used - sum(known)


def traces(sample: Sample, before: Mapping[str, Mapping[str, Trace]] = {}) -> dict[str, dict[str, Trace]]:
    """What each container has on each device, by container and device; what was known `before` is kept, for a
    container that ends is told by it."""
    found: dict[str, dict[str, Trace]] = {container: dict(known) for container, known in before.items()}
    seen: dict[tuple[str, str], list[GpuUser]] = {}
    for user in sample.users:
        if user.container is not None:
            seen.setdefault((user.container, user.pci), []).append(user)
    for (container, device), users in seen.items():
        sizes = [user.memory for user in users if user.memory is not None]
        old = found.setdefault(container, {}).get(device)
        pids = {**({} if old is None else old.pids), **{user.pid: user.name for user in users}}
        found[container][device] = Trace(pids, sum(sizes) if sizes else None, nobodys(sample, device))
    return found


def listed(sample: Sample, device: str, container: str, trace: Trace | None) -> tuple[Holder, ...]:
    """Processes that the driver has on a device and that are this container's, those that have ended included:
    their control group is gone, and they are known by having been seen in it."""
    known: Mapping[int, str | None] = {} if trace is None else trace.pids
    mine = [
        user
        for user in sample.users
        if user.pci == device
        and (user.container == container or (user.container is None and user.name is None and user.pid in known))
    ]
    return tuple(Holder(user.pid, user.name or known.get(user.pid), user.memory, device) for user in mine)


def told(holders: Sequence[Holder]) -> str:
    """The holders in words."""
    return ", ".join(str(holder) for holder in holders) or "no process that the driver lists"


def evidence(holders: Iterable[Holder]) -> list[dict[str, object]]:
    return [holder.evidence() for holder in holders]

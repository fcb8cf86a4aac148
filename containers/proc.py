"""What `/proc` says about a container's processes.

Podman goes on saying `running` after its conmon died, and a pid may have been
given to somebody else since; the kernel knows better. Reads only, and each read
is a few microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_DEAD = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class Process:
    """A process that exists: `start` is clock ticks since boot, which with the pid names it for good."""

    pid: int
    parent: int
    command: str
    state: str
    start: int

    @property
    def alive(self) -> bool:
        """False for a zombie: it has ended and only waits for its parent to notice."""
        return self.state not in _DEAD


def process(pid: int | None, *, root: Path = PROC) -> Process | None:
    """The process with this pid, or None when there is none."""
    if pid is None or pid <= 0:
        return None
    try:
        text = (root / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    head, _, tail = text.rpartition(")")  # the command may itself hold brackets and spaces
    fields = tail.split()
    return Process(
        pid=pid,
        parent=int(fields[1]),
        command=head.partition("(")[2],
        state=fields[0],
        start=int(fields[19]),
    )


def arguments(pid: int, *, root: Path = PROC) -> tuple[str, ...]:
    """The command line of a process; empty when it has gone or is a zombie."""
    try:
        raw = (root / str(pid) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ()
    return tuple(part.decode(errors="replace") for part in raw.split(b"\0") if part)


def conmon_alive(pid: int | None, container: str, *, root: Path = PROC) -> bool:
    """Whether `pid` is the live conmon of this container, and not somebody who got its pid later."""
    found = process(pid, root=root)
    return found is not None and found.alive and container in arguments(found.pid, root=root)


def workload_alive(pid: int | None, conmon: int | None, container: str, *, root: Path = PROC) -> bool:
    """Whether `pid` is the container's live first process.

    It is when its parent is the container's conmon, or, with the conmon gone, when
    its control group carries the container's id.
    """
    found = process(pid, root=root)
    if found is None or not found.alive:
        return False
    if found.parent == conmon and conmon_alive(conmon, container, root=root):
        return True
    return in_container(found.pid, container, root=root)


def members(container: str, *, root: Path = PROC) -> tuple[Process, ...]:
    """The live processes in the control group of the container with this id. Looks at every process there is."""
    found = []
    for folder in root.glob("[0-9]*"):
        if in_container(int(folder.name), container, root=root):
            one = process(int(folder.name), root=root)
            if one is not None and one.alive:
                found.append(one)
    return tuple(sorted(found, key=lambda one: one.pid))


def waits_in(pid: int, *, root: Path = PROC) -> str | None:
    """The kernel function that a process waits in; None when it waits in none or that cannot be seen."""
    try:
        text = (root / str(pid) / "wchan").read_text(errors="replace").strip()
    except OSError:
        return None
    return None if text in ("", "0") else text[:64]


def in_container(pid: int, container: str, *, root: Path = PROC) -> bool:
    """Whether the control group of a process is that of the container with this id, not its conmon's."""
    try:
        return f"libpod-{container}" in (root / str(pid) / "cgroup").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False

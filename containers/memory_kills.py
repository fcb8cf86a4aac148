"""Whether the kernel killed processes of a container for want of memory: what its control group has counted.

The group is there until Podman cleans up, some 100 ms after the container's end, so the counters are read the moment
the process ends (`containers.exit_watch`). Podman's own word, `State.OOMKilled`, is worth something only when it is
yes: Podman 4.3 does not tell conmon where to note such a kill, and says no to each.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from containers.proc import PROC

GROUPS = Path("/sys/fs/cgroup")
_CONTAINER = "libpod-"


@dataclass(frozen=True, slots=True)
class MemoryKills:
    """How many processes of a container the kernel killed because memory ran out: its own (`at_limit`: it had reached
    its limit), or that of the machine or of a group around it. `source` is what says so."""

    count: int
    at_limit: bool
    source: str


def group_of(pid: int, *, root: Path = PROC, groups: Path = GROUPS) -> Path | None:
    """The folder of the memory control group of the container that a process is in; None when there is none."""
    try:
        lines = (root / str(pid) / "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return None
    places = {names: path for _, names, path in (line.split(":", 2) for line in lines if line.count(":") >= 2)}
    old = next((path for names, path in places.items() if "memory" in names.split(",")), None)
    path = places.get("") if old is None else old
    if path is None or ".." in path.split("/"):
        return None  # outside what this process sees of the groups
    parts = path.strip("/").split("/")
    own = next((n for n, part in enumerate(parts) if part.startswith(_CONTAINER)), None)
    if own is None:
        return None
    # the runtime may have made groups of its own below the container's, which has the limit and counts for all
    return (groups if old is None else groups / "memory").joinpath(*parts[: own + 1])


def read(group: Path | None) -> MemoryKills | None:
    """What the group has counted so far; None when it has gone or does not count."""
    if group is None:
        return None
    new = _counters(group / "memory.events")
    if "oom_kill" in new:
        return MemoryKills(new["oom_kill"], new.get("oom", 0) > 0, "memory.events")
    old = _counters(group / "memory.oom_control")
    if "oom_kill" in old:
        reached = _number(group / "memory.failcnt") or _number(group / "memory.memsw.failcnt")
        return MemoryKills(old["oom_kill"], bool(reached), "memory.oom_control")
    return None


def _counters(file: Path) -> dict[str, int]:
    try:
        pairs = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(file: Path) -> int:
    try:
        text = file.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0

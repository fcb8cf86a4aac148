"""From a process to its container, and from a container to the memory it takes: by control groups.

Both generations of control groups, and both ways of naming a container's (systemd's scopes and
plain folders). Only names and numbers are read; who may see them is the kernel's affair.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hosts.reading import key_values, known, number, read_number, read_text
from hosts.roots import Roots

_PREFIXED = re.compile(r"(?:libpod|docker|crio|cri-containerd)-([0-9a-f]{64})(?:\.scope)?")
_PLAIN = re.compile(r"[0-9a-f]{64}")
MOST_PROCESSES = 256
"""Processes of one container that are looked at."""
_PLAIN_BELOW = ("docker", "kubepods", "lxc", "containerd")


@dataclass(frozen=True, slots=True)
class ContainerSample:
    """Memory of one container in bytes. `memory` is what its control group is charged for, the page cache of
    its weights included; `rss` the part that is no file's; `peak` the most that its present processes together
    ever had resident, mapped weights included whoever else reads them. GPU memory is in neither, or in `memory`
    only where the driver takes it from the process (managed memory of an APU)."""

    memory: int | None
    rss: int | None
    peak: int | None = None


def container_of(text: str | None) -> str | None:
    """The 64 hex digits of the innermost container in a `/proc/<pid>/cgroup`; None for a process of the host.

    Podman's `conmon` lies in a group of its own beside its container and is no part of it.
    """
    for _, path in _lines(text):
        parts = [part for part in path.split("/") if part]
        for position in range(len(parts) - 1, -1, -1):
            if match := _PREFIXED.fullmatch(parts[position]):
                return match[1]
            if _PLAIN.fullmatch(parts[position]) and any(p.startswith(_PLAIN_BELOW) for p in parts[:position]):
                return parts[position]
    return None


def container_of_pid(roots: Roots, pid: int) -> str | None:
    """The container of a process; None also when the process is gone."""
    return container_of(read_text(roots.proc / str(pid) / "cgroup", 65536))


def container_memory(roots: Roots, container: str, pid: int) -> ContainerSample | None:
    """What a container takes, by one of its processes; None when that is gone, or another container's by now."""
    text = read_text(roots.proc / str(pid) / "cgroup", 65536)
    if container_of(text) != container:
        return None
    for controllers, path in _lines(text):
        relative = _outermost(path, container)
        if "memory" in controllers:
            top = roots.sys / "fs/cgroup/memory"
            folder = top / relative
            size, stat = read_number(folder / "memory.usage_in_bytes"), key_values(read_text(folder / "memory.stat"))
            rss = stat.get("total_rss")
        elif not controllers:
            top = roots.sys / "fs/cgroup"
            folder = top / relative
            size, stat = read_number(folder / "memory.current"), key_values(read_text(folder / "memory.stat"))
            rss = stat.get("anon")
        else:
            continue
        if known(size) is not None:
            return ContainerSample(
                known(size), known(number(rss)), _peak(roots, _processes({folder, top / _whole(path)}, pid))
            )
    return ContainerSample(None, None, _peak(roots, [pid]))


def container_processes(roots: Roots, container: str, pid: int) -> list[int] | None:
    """The processes of a container, by one of them; None when that is gone, or another container's by now."""
    text = read_text(roots.proc / str(pid) / "cgroup", 65536)
    if container_of(text) != container:
        return None
    for controllers, path in _lines(text):
        if "memory" in controllers or not controllers:
            top = roots.sys / ("fs/cgroup/memory" if controllers else "fs/cgroup")
            return _processes({top / _outermost(path, container), top / _whole(path)}, pid)
    return [pid]


def _processes(folders: Iterable[Path], pid: int) -> list[int]:
    """The processes of a container's own group and of the one below it that its processes are in (crun makes one),
    by the host's count."""
    words = [word for folder in folders for word in (read_text(folder / "cgroup.procs", 65536) or "").split()]
    return sorted({pid, *(int(word) for word in words[:MOST_PROCESSES] if word.isdigit() and word != "0")})


def _peak(roots: Roots, pids: list[int]) -> int | None:
    """The sum of what each process had resident at most (VmHWM, which the kernel keeps)."""
    peaks = [_high_water(read_text(roots.proc / str(pid) / "status", 65536)) for pid in pids]
    known_ones = [peak for peak in peaks if peak is not None]
    return sum(known_ones) if known_ones else None


def _high_water(text: str | None) -> int | None:
    for line in (text or "").splitlines():
        if line.startswith("VmHWM:"):
            words = line.split()
            return int(words[1]) * 1024 if len(words) == 3 and words[1].isdigit() else None
    return None


def _lines(text: str | None) -> Iterator[tuple[list[str], str]]:
    """`(controllers, path)` of each line, that of the memory controller first: systemd moves only some of them."""
    found = []
    for line in (text or "").splitlines():
        _, colon, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        if colon and second and path.startswith("/"):
            found.append(([name for name in controllers.split(",") if name], path))
    return iter(sorted(found, key=lambda line: "memory" not in line[0]))


def _whole(path: str) -> Path:
    """The group of the process itself."""
    return Path(*[part for part in path.split("/") if part not in {"", ".", ".."}])


def _outermost(path: str, container: str) -> Path:
    """The container's own group: a runtime may make groups below it for its processes."""
    parts: list[str] = []
    for part in path.split("/"):
        if part in {"", ".", ".."}:
            continue
        parts.append(part)
        if container in part:
            break
    return Path(*parts)

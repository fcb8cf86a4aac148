"""From a process to its container, and from a container to the memory it takes: by control groups.

Both generations of control groups, and both ways of naming a container's (systemd's scopes and
plain folders). Only names and numbers are read; who may see them is the kernel's affair.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hosts.reading import key_values, known, number, read_number, read_text
from hosts.roots import Roots

_PREFIXED = re.compile(r"(?:libpod|docker|crio|cri-containerd)-([0-9a-f]{64})(?:\.scope)?")
_PLAIN = re.compile(r"[0-9a-f]{64}")
_PLAIN_BELOW = ("docker", "kubepods", "lxc", "containerd")


@dataclass(frozen=True, slots=True)
class ContainerSample:
    """Memory of one container in bytes. `memory` is what its control group is charged for, the page cache of
    its weights included; `rss` the part that is no file's. GPU memory is in neither, or in `memory` only where
    the driver takes it from the process (managed memory of an APU)."""

    memory: int | None
    rss: int | None


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
            folder = roots.sys / "fs/cgroup/memory" / relative
            size, stat = read_number(folder / "memory.usage_in_bytes"), key_values(read_text(folder / "memory.stat"))
            rss = stat.get("total_rss")
        elif not controllers:
            folder = roots.sys / "fs/cgroup" / relative
            size, stat = read_number(folder / "memory.current"), key_values(read_text(folder / "memory.stat"))
            rss = stat.get("anon")
        else:
            continue
        if known(size) is not None:
            return ContainerSample(known(size), known(number(rss)))
    return ContainerSample(None, None)


def _lines(text: str | None) -> Iterator[tuple[list[str], str]]:
    """`(controllers, path)` of each line, that of the memory controller first: systemd moves only some of them."""
    found = []
    for line in (text or "").splitlines():
        _, colon, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        if colon and second and path.startswith("/"):
            found.append(([name for name in controllers.split(",") if name], path))
    return iter(sorted(found, key=lambda line: "memory" not in line[0]))


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

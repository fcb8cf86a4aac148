"""Groups, device nodes and the limits that engines inherit."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

from hosts.reading import children, key_values, number
from orchestrator.doctor.machine import Accounts, Group, Limit, Node, Units
from orchestrator.doctor.sources.look import Look, Unseen

_LIMIT = 4 * 1024 * 1024
_NODE = re.compile(r"nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset)|kfd|renderD\d+")
_PROCESS_LIMITS = {"Max open files": "nofile", "Max locked memory": "memlock", "Max processes": "nproc"}
_UNIT_LIMITS = {"LimitNOFILE": "nofile", "LimitMEMLOCK": "memlock", "LimitNPROC": "nproc"}
_UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def accounts(look: Look) -> Accounts:
    """The group and user databases' files; users of a directory service are not in them."""
    text = look.text("/etc/group", _LIMIT)
    if text is None:
        raise Unseen("/etc/group cannot be read")
    groups = {}
    for line in text.splitlines():
        words = line.split(":")
        gid = number(words[2]) if len(words) >= 4 else None
        if gid is not None:
            groups[words[0]] = Group(words[0], gid, tuple(m for m in words[3].split(",") if m))
    primary = {}
    for line in (look.text("/etc/passwd", _LIMIT) or "").splitlines():
        words = line.split(":")
        gid = number(words[3]) if len(words) >= 4 else None
        if gid is not None:
            primary[words[0]] = gid
    services = key_values(look.text("/etc/nsswitch.conf"), ":").get("subid", "files").split()
    ranges = [
        {line.partition(":")[0] for line in (look.text(f"/etc/{name}", _LIMIT) or "").splitlines()}
        for name in ("subuid", "subgid")
    ]
    linger = look.at("/var/lib/systemd/linger")
    return Accounts(
        groups,
        primary,
        ranges=frozenset(ranges[0] & ranges[1]) if services == ["files"] else None,
        lingering=frozenset(path.name for path in children(linger)) if linger.is_dir() else None,
    )


def nodes(look: Look) -> tuple[Node, ...]:
    """The GPUs' device nodes."""
    named = [(f"{folder}/{path.name}", path) for folder in ("/dev", "/dev/dri") for path in children(look.at(folder))]
    found = (_node(name, path) for name, path in named if _NODE.fullmatch(path.name))
    return tuple(node for node in found if node is not None)


def _node(name: str, path: Path) -> Node | None:
    try:
        info = path.stat()
    except (OSError, ValueError):
        return None
    return None if stat.S_ISDIR(info.st_mode) else Node(name, info.st_uid, info.st_gid, info.st_mode & 0o777)


def limits(look: Look, units: Units) -> tuple[Limit, ...]:
    """Hard limits of this process, and those that podman.service is given."""
    text = look.text("/proc/self/limits", 65536)
    if text is None:
        raise Unseen("/proc/self/limits cannot be read")
    found = list(_of_process(text))
    unit = units.files.get("podman.service")
    if unit is not None:
        for key, name in _UNIT_LIMITS.items():
            value = unit.last(key)
            if value is not None:
                found.append(Limit(unit.name, name, _size(value.partition(":")[2] or value)))
    return tuple(found)


def _of_process(text: str) -> Iterator[Limit]:
    for line in text.splitlines():
        for label, name in _PROCESS_LIMITS.items():
            if line.startswith(label):
                words = line[len(label) :].split()
                if len(words) >= 2:
                    yield Limit("this process", name, number(words[1]))


def _size(text: str) -> int | None:
    """systemd's `infinity` is None."""
    match = re.fullmatch(r"(\d+)([KMGT]?)", text.strip())
    return int(match[1]) * _UNITS.get(match[2], 1) if match else None

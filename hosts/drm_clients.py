"""Which processes use an AMD GPU through its render node: desktops, browsers, games, and Vulkan engines.

The kernel says so in `/proc/<pid>/fdinfo`. To find the processes every open file of every process
would have to be looked at; that is done once a minute, and in between only for processes that are
new and for those that are known to use a GPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hosts import pci
from hosts.reading import key_values, number, read_text
from hosts.roots import Roots

AGAIN = 60.0
"""Seconds after which all processes are looked at again: one may open a GPU late in its life."""
_FILES = 4096
_PROCESSES = 65536
_SIZE = re.compile(r"(\d{1,18})\s*(KiB|MiB|GiB)?")
_UNITS = {None: 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


@dataclass(frozen=True, slots=True)
class Client:
    """What one process holds of one GPU, in bytes."""

    vram: int = 0
    gtt: int = 0


Clients = Mapping[int, Mapping[str, Client]]
"""By process id and PCI address."""


class DrmClients:
    """Looks again and again. Not for several threads at once."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._seen: frozenset[int] = frozenset()
        self._users: dict[int, tuple[str, ...]] = {}
        self._due = float("-inf")

    def read(self, now: float) -> Clients:
        """Who uses which GPU, at monotonic `now`. A process that ends meanwhile is left out."""
        pids = frozenset(_pids(self._roots))
        everyone = now >= self._due
        if everyone:
            self._due = now + AGAIN
        fresh = pids if everyone else pids - self._seen
        users = {pid: files for pid, files in self._users.items() if pid in pids and pid not in fresh}
        for pid in fresh:
            if files := self._open_files(pid):
                users[pid] = files
        self._seen, self._users = pids, users
        counted: set[tuple[str, str]] = set()
        found: dict[int, dict[str, Client]] = {}
        for pid in sorted(users):
            for where, identity, client in self._told(pid, users[pid]):
                if identity is not None:
                    if (where, identity) in counted:
                        continue  # one client may be open several times, and in several processes
                    counted.add((where, identity))
                mine = found.setdefault(pid, {})
                before = mine.get(where, Client())
                mine[where] = Client(before.vram + client.vram, before.gtt + client.gtt)
        return found

    def _open_files(self, pid: int) -> tuple[str, ...]:
        """The descriptors of a process that are DRM nodes."""
        folder = self._roots.proc / str(pid) / "fd"
        found = []
        try:
            with os.scandir(folder) as entries:
                for count, entry in enumerate(entries):
                    if count >= _FILES:
                        break
                    try:
                        target = os.readlink(entry.path)
                    except OSError:
                        continue
                    if target.startswith(("/dev/dri/renderD", "/dev/dri/card")):
                        found.append(entry.name)
        except OSError:
            return ()
        return tuple(found)

    def _told(self, pid: int, files: tuple[str, ...]) -> Iterator[tuple[str, str | None, Client]]:
        folder = self._roots.proc / str(pid) / "fdinfo"
        for name in files:
            told = parse_fdinfo(read_text(folder / name, 65536))
            if told is not None:
                yield told


def parse_fdinfo(text: str | None) -> tuple[str, str | None, Client] | None:
    """`(PCI address, client, memory)` of an amdgpu client's fdinfo; None for any other file's."""
    fields = key_values(text, ":")
    where = pci.address(fields.get("drm-pdev"))
    if fields.get("drm-driver") != "amdgpu" or where is None:
        return None
    return where, fields.get("drm-client-id"), Client(_held(fields, "vram"), _held(fields, "gtt"))


def _held(fields: Mapping[str, str], region: str) -> int:
    for key in (f"drm-memory-{region}", f"drm-resident-{region}"):
        if match := _SIZE.fullmatch(fields.get(key, "")):
            return int(match[1]) * _UNITS[match[2]]
    return 0


def _pids(roots: Roots) -> Iterator[int]:
    try:
        names = os.listdir(roots.proc)
    except OSError:
        return
    for name in names[:_PROCESSES]:
        pid = number(name) if name.isdecimal() else None
        if pid:
            yield pid

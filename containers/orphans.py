"""Processes of containers that Podman has forgotten.

A Podman service that dies in the middle of a start leaves a conmon and, below it, a
process of the runtime that waits for the word to begin. Podman has the container down
as never started, so its removal ends neither; the runtime itself does. All functions
block for a moment and run in a thread.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from containers import proc

_STEP = 0.02


@dataclass(frozen=True, slots=True)
class Orphan:
    """A conmon with its container's id and name; `runtime` is the program that made the container.

    `workload` is None when there is none: it has ended and conmon is about to, or it has yet to begin.
    """

    container: str
    name: str
    conmon: int
    workload: int | None
    runtime: str


def find(*, container: str | None = None, prefix: str | None = None, root: Path = proc.PROC) -> tuple[Orphan, ...]:
    """The conmons of this container (id or name), or of those whose names begin so."""
    conmons = []
    parents: dict[int, list[int]] = {}
    for folder in root.glob("[0-9]*"):
        found = proc.process(int(folder.name), root=root)
        if found is None or not found.alive:
            continue
        parents.setdefault(found.parent, []).append(found.pid)
        if found.command == "conmon":
            conmons.append(found.pid)
    orphans = []
    for conmon in conmons:
        words = proc.arguments(conmon, root=root)
        ident, name, runtime = (_after(words, option) for option in ("-c", "-n", "-r"))
        if ident is None or name is None or runtime is None:
            continue
        if container not in (None, ident, name) or (prefix is not None and not name.startswith(prefix)):
            continue
        # conmon's other child, the command that it runs at the end, is in conmon's own control group
        workload = next((pid for pid in parents.get(conmon, ()) if proc.in_container(pid, ident, root=root)), None)
        orphans.append(Orphan(ident, name, conmon, workload, runtime))
    return tuple(orphans)


def end(orphan: Orphan, limit: float) -> bool:
    """End the workload and its conmon, and have the runtime forget them; whether they are gone in time."""
    deadline = time.monotonic() + limit
    forget(orphan.runtime, orphan.container, limit / 2)
    for pid, patience in ((orphan.workload, 0.0), (orphan.conmon, limit / 4)):
        # conmon goes by itself once its workload has; one that does not is ended too
        if pid is not None and not _gone(pid, time.monotonic() + patience):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return all(_gone(pid, deadline) for pid in (orphan.workload, orphan.conmon) if pid is not None)


def forget(runtime: str, container: str, limit: float) -> None:
    """Have the runtime drop its record of a container, and end what is left of it.

    It is no error when it cannot: it may have none, or (rootless) look in another place.
    """
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [runtime, "delete", "--force", container],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit,
            check=False,
        )


def _after(words: tuple[str, ...], option: str) -> str | None:
    for word, following in itertools.pairwise(words):
        if word == option:
            return following
    return None


def _gone(pid: int, deadline: float) -> bool:
    while True:
        found = proc.process(pid)
        if found is None or not found.alive:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_STEP)

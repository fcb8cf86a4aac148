"""One daemon a state folder, and one a GPU: kernel locks, so that a dead daemon holds nothing."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import Conflict

GPU_LOCKS = Path("/run/lock")
"""Shared by all daemons of a machine, whatever their state folders."""


class Lock:
    """A held lock; `release` gives it back. The file holds the holder's pid, for people."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle: int | None = handle

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def take(path: Path, what: str, hint: str) -> Lock:
    """Lock `path`, or raise `Conflict` naming the holder's pid."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(handle)
        raise Conflict(f"{what} is held by process {holder}", hint=hint, evidence={"pid": holder}) from error
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return Lock(path, handle)


def take_state(folder: Path) -> Lock:
    """The lock on a state folder."""
    return take(
        folder / "daemon.lock",
        f"state folder {folder}",
        "`outrider status` talks to the daemon that runs; another one needs a --state-dir of its own",
    )


def take_gpus(addresses: Iterable[str], folder: Path = GPU_LOCKS) -> tuple[list[Lock], dict[str, Conflict]]:
    """Locks on GPUs by PCI address: those that were taken, and why not for the others.

    A machine without the lock folder has no other daemon to meet; its GPUs are not locked.
    """
    held: list[Lock] = []
    refused: dict[str, Conflict] = {}
    if not folder.is_dir():
        return held, refused
    for address in sorted(addresses):
        file = folder / f"outrider-gpu-{re.sub(r'[^0-9A-Za-z.:-]', '_', address)}.lock"
        with suppress(PermissionError):
            try:
                held.append(
                    take(file, f"GPU {address}", "another Outrider on this machine uses it; stop that one first")
                )
            except Conflict as error:
                refused[address] = error
    return held, refused

"""NVML asked again and again: one child that stays, replaced when it must not be trusted any more.

A library that was loaded before a driver upgrade works on with the old kernel module and never with
the new one, so a child is replaced as soon as the library's file or the kernel module changed. A GPU
that is lost is looked at by a fresh child too: only that can see it well again. What fails is not tried
at every tick: starting an interpreter every few seconds for nothing is a hundredth of a core.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path

from hosts import nvidia, pci
from hosts.child import Child, ChildFailed
from hosts.facts import Memory, Problem
from hosts.gpu_sample import GpuSample
from hosts.nvidia_sample import addresses
from hosts.reading import read_text
from hosts.roots import Roots

RETRY = 30.0
MISSES = 3
"""So many unanswered questions in a row are asked at once again; then only every `RETRY` seconds."""
_LIFETIME = 60.0  # of one answer, should the daemon be gone while it is computed
_PASSING = frozenset({"nvml_timeout", "nvml_unknown", "nvml_crashed"})

Epoch = tuple[object, ...]
Reading = tuple[Mapping[str, GpuSample], tuple[Problem, ...]]


def epoch(roots: Roots, library: str | None) -> Epoch:
    """Which driver this is: changes when its library is replaced, or its kernel module is loaded anew.

    Reads three small things of the file system and asks no driver.
    """
    return (_identity(Path(library or "/")), *module_epoch(roots))


def module_epoch(roots: Roots) -> Epoch:
    """Which load of the kernel module this is: a folder of sysfs gets another inode each time."""
    folder = roots.sys / "module/nvidia"
    return (_identity(folder), read_text(folder / "version", 128))


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino, *(() if path.is_dir() else (found.st_size, found.st_mtime_ns)))


class Serving:
    """Readings of all NVIDIA GPUs. Not for several threads at once."""

    def __init__(self, roots: Roots, environ: Mapping[str, str], retry: float = RETRY) -> None:
        self._roots = roots
        self._environ = environ
        self._retry = retry
        self._sign: nvidia.Sign | None = None
        self._epoch: Epoch | None = None
        self._started = 0.0
        self._addresses: tuple[str, ...] = ()
        self._misses = 0
        self._lost_since: float | None = None
        self._quiet: tuple[float, tuple[Problem, ...]] | None = None
        """Until when nothing is asked, and what to answer meanwhile."""
        self.child: Child | None = None

    def sample(self, system: Memory, end: float) -> Reading:
        """One reading of every GPU, at the latest at `end` (monotonic seconds): samples, and what is wrong."""
        now = time.monotonic()
        present = epoch(self._roots, None if self._sign is None else self._sign.library)
        if self._sign is not None and present != self._epoch:
            self.close()
            self._quiet, self._misses = None, 0
        if self._quiet is not None and now < self._quiet[0]:
            return {}, self._quiet[1]
        self._quiet = None
        samples, problems = self._ask(system, end, now)
        self._judge(problems, now)
        return samples, problems

    def _ask(self, system: Memory, end: float, now: float) -> Reading:
        try:
            if self.child is None or self._sign is None:
                self._sign = nvidia.look(self._roots, pci.gpus(self._roots), self._environ)
                self._epoch = epoch(self._roots, self._sign.library)
                self._started = now
                self.child = nvidia.start(self._sign, self._environ, _LIFETIME, serve=True)
            answer = self.child.ask("sample", end)
        except ChildFailed as error:
            self.close()
            return {}, (nvidia.unanswered(error),)
        self._addresses = addresses(answer) or self._addresses
        return nvidia.read_sample(answer, dataclasses.replace(self._sign, remembered=self._addresses), system)

    def _judge(self, problems: tuple[Problem, ...], now: float) -> None:
        """What a reading means for the child that made it."""
        whole = next((p for p in problems if p.device is None), None)
        if whole is not None:
            self.close()
            self._misses += 1
            if whole.code not in _PASSING or self._misses >= MISSES:
                self._quiet = (now + self._retry, problems)
            return
        self._misses = 0
        if not problems:
            self._lost_since = None
        elif self._lost_since is None:
            self._lost_since = now
            self.close()
        elif now - self._started >= self._retry:
            self.close()

    def close(self) -> None:
        """End the child, and with it its hold on the driver."""
        if self.child is not None:
            self.child.close()
            self.child = None

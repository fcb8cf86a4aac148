"""What this machine is: one call that asks every source, each with its own deadline, and never fails.

The vendor libraries run in children that are started first and collected last, so
that the kernel's files are read while they load; a vendor without any sign of
hardware costs no child. What could not be found out is in `problems`.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping

from hosts import amd, amd_smi, gpu_users, nvidia, pci
from hosts.child import Child, ChildFailed
from hosts.facts import HostFacts
from hosts.roots import Roots
from hosts.system import read_system
from hosts.versions import read_platform

__all__ = ["DEADLINE", "Roots", "probe"]

DEADLINE = 10.0
_GRACE = 2.0  # a child outlives its deadline by this if we are not there to end it


def probe(
    roots: Roots | None = None, *, deadline: float = DEADLINE, environ: Mapping[str, str] | None = None
) -> HostFacts:
    """The host's facts, at the latest after `deadline` seconds (and half a second a child for killing it).

    Blocks: call it in a thread. `environ` is what the children get, and where
    LD_LIBRARY_PATH is looked up; the process's own by default.
    """
    roots = roots or Roots()
    environ = dict(os.environ if environ is None else environ)
    end = time.monotonic() + deadline
    devices = pci.gpus(roots)
    nvidia_sign = nvidia.look(roots, devices, environ)
    amd_sign = amd.look(roots, devices, environ)
    children: dict[str, Child | ChildFailed] = {}
    try:
        if nvidia_sign:
            children[nvidia.VENDOR] = _started(lambda: nvidia.start(nvidia_sign, environ, deadline + _GRACE))
        if amd_sign:
            children[amd.VENDOR] = _started(lambda: amd_smi.start(environ, deadline + _GRACE))
        system = read_system(roots)
        system = dataclasses.replace(system, platform=read_platform(roots, environ, amd=bool(amd_sign)))
        amd_found = amd.collect(children.get(amd.VENDOR), amd_sign, roots, system, end)
        nvidia_found = nvidia.collect(children.get(nvidia.VENDOR), nvidia_sign, roots, system.memory, end)
    finally:
        for child in children.values():
            if isinstance(child, Child):
                child.close()
    return HostFacts(
        host=system.host,
        os=system.os,
        kernel=system.kernel,
        cpu=system.cpu,
        memory=system.memory,
        accelerators=tuple(
            gpu_users.named(roots, gpu) for gpu in (*nvidia_found.accelerators, *amd_found.accelerators)
        ),
        problems=(*system.problems, *nvidia_found.problems, *amd_found.problems),
        platform=system.platform,
    )


def _started(start: Callable[[], Child]) -> Child | ChildFailed:
    try:
        return start()
    except ChildFailed as error:
        return error

"""AMD GPUs: the kernel's files first, amdsmi on top, and the reason where there is none."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hosts import amd_firmware, amd_sample, amd_smi, amd_sysfs, pci
from hosts.bounded import Stuck, bounded
from hosts.child import Child, ChildFailed
from hosts.facts import Accelerator, Platform, Problem
from hosts.found import Found
from hosts.roots import Roots
from hosts.system import System

VENDOR = amd_sysfs.VENDOR
_USERS = 1.0
"""Seconds for a look at who has the GPU open."""


@dataclass(frozen=True, slots=True)
class Sign:
    """Why there may be an AMD GPU: devices on the bus, KFD or a DRM card, the library."""

    gpus: tuple[pci.PciGpu, ...]
    kernel: bool
    library: str | None

    def __bool__(self) -> bool:
        return bool(self.gpus or self.kernel or self.library)


def look(roots: Roots, devices: Sequence[pci.PciGpu], environ: Mapping[str, str]) -> Sign:
    """The cheap look that decides whether a child is started."""
    rocm = environ.get("ROCM_HOME") or environ.get("ROCM_PATH")
    search = ":".join(filter(None, (environ.get("LD_LIBRARY_PATH"), f"{rocm}/lib" if rocm else None)))
    return Sign(
        gpus=tuple(gpu for gpu in devices if gpu.vendor == pci.AMD),
        kernel=os.path.isdir(roots.sys / "class/kfd/kfd/topology/nodes") or amd_sysfs.has_card(roots),
        library=pci.find_library(amd_smi.LIBRARY, roots, search),
    )


def collect(child: Child | ChildFailed | None, sign: Sign, roots: Roots, system: System, end: float) -> Found:
    """What sysfs and the child say until `end` (monotonic); `child` None: it was not started."""
    if not sign:
        detail = f"no AMD device on the PCI bus, no KFD node, no DRM card and no {amd_smi.LIBRARY}"
        hint = "for an AMD GPU: the kernel's amdgpu driver must be loaded (`lsmod | grep amdgpu`)"
        return Found(problems=(Problem("no_device", VENDOR, detail, hint),))
    found = _from_sysfs(roots, system, end)
    merged = _from_child(child, found, system, end)
    problems = (*found.problems, *merged.problems)
    if found.accelerators:
        problems = (*problems, *amd_sysfs.kernel_parameters(system.platform), *_packages(found, system.platform))
    elif not merged.accelerators and not found.problems:
        problems = (_nothing(sign), *problems)
    return Found(_with_users(merged.accelerators, roots), problems)


def _with_users(gpus: tuple[Accelerator, ...], roots: Roots) -> tuple[Accelerator, ...]:
    """Who is on each GPU; unknown where a wedged driver does not let it be seen."""
    if not gpus:
        return gpus
    try:
        users = bounded(f"amd-users {roots.proc}", _USERS, lambda: amd_sample.read_users(roots, gpus))
    except Stuck:
        return gpus
    return tuple(
        dataclasses.replace(gpu, details={**gpu.details, "processes": [dataclasses.asdict(u) for u in users[gpu.pci]]})
        for gpu in gpus
    )


def _from_sysfs(roots: Roots, system: System, end: float) -> Found:
    half = (end - time.monotonic()) / 2
    try:
        return bounded(f"amd-sysfs {roots.sys}", half, lambda: amd_sysfs.read(roots, system.memory, system.cpu.model))
    except Stuck as error:
        hung = Problem(
            amd_sysfs.TIMEOUT, VENDOR, f"{error}", "look for amdgpu lines in `dmesg`; a reboot may be needed"
        )
    try:  # the sensors ask the GPU's firmware and hang with it; the rest are the driver's own numbers
        found = bounded(
            f"amd-sysfs-calm {roots.sys}",
            half / 2,
            lambda: amd_sysfs.read(roots, system.memory, system.cpu.model, sensors=False),
        )
    except Stuck:
        return Found(problems=(hung,))
    return Found(found.accelerators, (hung, *found.problems))


def _from_child(child: Child | ChildFailed | None, found: Found, system: System, end: float) -> Found:
    if child is None:
        return Found(found.accelerators)
    try:
        if isinstance(child, ChildFailed):
            raise child
        answer = child.collect(min(end, time.monotonic() + amd_smi.DEADLINE))
    except ChildFailed as error:
        return Found(found.accelerators, (amd_smi.unanswered(error),))
    return amd_smi.merge(answer, found.accelerators, system.memory)


def _packages(found: Found, platform: Platform) -> Sequence[Problem]:
    """A firmware package that is known to be bad, once for all GPUs."""
    for gpu in found.accelerators:
        mes = gpu.details.get("mes_version")
        problem = amd_firmware.bad_package(platform, gpu.arch, mes if isinstance(mes, int) else None)
        if problem is not None:
            return (problem,)
    return ()


def _nothing(sign: Sign) -> Problem:
    if sign.gpus:
        gpu = sign.gpus[0]
        driver = f"bound to {gpu.driver}" if gpu.driver else "without a driver"
        detail = f"an AMD GPU at {gpu.address} ({driver}), but no KFD node and no DRM card"
        return Problem("driver_not_loaded", VENDOR, detail, "run `modprobe amdgpu`; see `dmesg | grep amdgpu`")
    what = "the compute driver is loaded" if sign.kernel else f"{sign.library} is there"
    return Problem("no_device", VENDOR, f"{what}, but there is no AMD GPU", None)

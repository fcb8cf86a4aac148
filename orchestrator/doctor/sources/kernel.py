"""The kernel: its command line, modules' options, switches, swap; the distribution around it."""

from __future__ import annotations

import re

from hosts.reading import children, key_values, number, read_bytes, read_text
from orchestrator.doctor.machine import Kernel, ModuleOption, Selinux, Swap, System
from orchestrator.doctor.sources.look import Look, Unseen

_MODULES = ("amdgpu", "ttm", "amdttm", "amd_ttm", "nvidia", "nvidia_drm", "nouveau")
_OPTION_FOLDERS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
_NVIDIA_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)")
_HUGE = re.compile(r"\[(\w+)\]")


def kernel(look: Look) -> Kernel:
    """Raises `Unseen` where there is no command line to read: then this is no /proc."""
    line = look.text("/proc/cmdline", 65536)
    if line is None:
        raise Unseen("/proc/cmdline cannot be read")
    huge = _HUGE.search(look.text("/sys/kernel/mm/transparent_hugepage/enabled", 256) or "")
    return Kernel(
        command_line=tuple(line.split()),
        options=options(look),
        parameters=parameters(look),
        nvidia_module=_nvidia_module(look),
        max_map_count=number(look.text("/proc/sys/vm/max_map_count", 256)),
        overcommit=number(look.text("/proc/sys/vm/overcommit_memory", 256)),
        huge_pages=huge[1] if huge else None,
        pressure=look.text("/proc/pressure/memory", 4096) is not None,
        secure_boot=_secure_boot(look),
        swaps=_swaps(look),
    )


def system(look: Look) -> System:
    """Never fails: an unknown distribution is nobody's."""
    fields = key_values(look.text("/etc/os-release") or look.text("/usr/lib/os-release"), "=")
    ids = [word for key in ("ID", "ID_LIKE") for word in fields.get(key, "").strip("\"'").split()]
    return System(
        ids=tuple(ids),
        ostree=look.at("/run/ostree-booted").exists(),
        systemd=look.at("/run/systemd/system").is_dir(),
        kernel_cmdline=look.at("/etc/kernel/cmdline").is_file() and not look.at("/etc/default/grub").is_file(),
    )


def selinux(look: Look) -> Selinux:
    """Without SELinux in the kernel it enforces nothing."""
    if number(look.text("/sys/fs/selinux/enforce", 64)) != 1:
        return Selinux()
    switch = look.text("/sys/fs/selinux/booleans/container_use_devices", 64)
    return Selinux(True, None if switch is None else switch.split()[0] == "1")


def options(look: Look) -> tuple[ModuleOption, ...]:
    """`options` lines of modprobe.d about GPUs' modules."""
    found = []
    for folder in _OPTION_FOLDERS:
        for path in children(look.at(folder)):
            if path.suffix != ".conf":
                continue
            for line in (read_text(path) or "").splitlines():
                words = line.partition("#")[0].split()
                if len(words) < 3 or words[0] != "options" or words[1].replace("-", "_") not in _MODULES:
                    continue
                for word in words[2:]:
                    name, _, value = word.partition("=")
                    found.append(ModuleOption(f"{folder}/{path.name}", words[1].replace("-", "_"), name, value))
    return tuple(dict.fromkeys(found))


def parameters(look: Look) -> dict[str, str]:
    """Parameters of GPUs' modules as the running kernel has them."""
    found = {}
    for module in _MODULES:
        for path in children(look.at(f"/sys/module/{module}/parameters")):
            text = read_text(path, 4096)
            if text is not None:
                found[f"{module}.{path.name}"] = text
    return found


def _secure_boot(look: Look) -> bool | None:
    """The firmware's variable: four bytes of attributes, then 1 or 0."""
    for path in children(look.at("/sys/firmware/efi/efivars")):
        if path.name.startswith("SecureBoot-"):
            raw = read_bytes(path, 16)
            return raw[4] == 1 if raw is not None and len(raw) >= 5 else None
    return None


def _nvidia_module(look: Look) -> str | None:
    match = _NVIDIA_MODULE.search(look.text("/proc/driver/nvidia/version", 4096) or "")
    return match[1] if match else look.text("/sys/module/nvidia/version", 256)


def _swaps(look: Look) -> tuple[Swap, ...]:
    found = []
    for line in (look.text("/proc/swaps", 65536) or "").splitlines()[1:]:
        words = line.split()
        size, used = (number(words[2]), number(words[3])) if len(words) >= 4 else (None, None)
        if size is not None and used is not None:
            found.append(Swap(words[0], size * 1024, used * 1024))
    return tuple(found)

"""Programs that hold GPU memory and are no engines: a desktop above all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hosts import pci
from hosts.facts import HostFacts
from hosts.reading import children, known, number, read_text
from orchestrator.doctor.machine import GpuProcess
from orchestrator.doctor.sources.look import Look

DESKTOP = re.compile(
    r"Xorg|X|Xwayland|Xvfb|gnome-shell|mutter.*|kwin_wayland|kwin_x11|plasmashell|sway|Hyprland|weston|labwc|wayfire|"
    r"cosmic-comp|cinnamon|mate-.*|xfwm4|xfce4-.*|lightdm.*|sddm.*|gdm.*|steam|steamwebhelper|gamescope.*|firefox|chrome|"
    r"chromium|electron|code"
)
_CONTAINER = re.compile(r"libpod|docker|crio|kubepods|containerd|machine\.slice")
_MOST = 20000
_MOST_FDS = 400


def processes(look: Look, facts: HostFacts) -> tuple[GpuProcess, ...]:
    """By NVML for NVIDIA, by the kernel's accounting of open render nodes for the rest."""
    by_nvml = tuple(_of_nvidia(look, facts))
    seen = {process.pid for process in by_nvml}
    return (*by_nvml, *(process for process in _of_drm(look, facts) if process.pid not in seen))


def _of_nvidia(look: Look, facts: HostFacts) -> Iterator[GpuProcess]:
    for gpu in facts.accelerators:
        listed = gpu.details.get("processes")
        for entry in listed if isinstance(listed, list | tuple) else ():
            pid = known(entry.get("pid")) if isinstance(entry, dict) else None
            if pid is None or _in_container(look, pid):
                continue
            name = look.text(f"/proc/{pid}/comm", 256)
            if name is not None:
                yield GpuProcess(name, pid, gpu.pci, known(entry.get("memory")), bool(DESKTOP.fullmatch(name)))


def _of_drm(look: Look, facts: HostFacts) -> Iterator[GpuProcess]:
    """Only programs whose name says that they draw: others' descriptors are not gone through."""
    wanted = {gpu.pci for gpu in facts.accelerators}
    for folder in list(children(look.roots.proc))[:_MOST]:
        pid = number(folder.name)
        name = read_text(folder / "comm", 256) if pid is not None else None
        if pid is None or name is None or not DESKTOP.fullmatch(name) or _in_container(look, pid):
            continue
        held: dict[str, int] = {}
        for path in list(children(folder / "fdinfo"))[:_MOST_FDS]:
            for address, size in _client(path):
                held[address] = max(held.get(address, 0), size)
        for address, size in held.items():
            if address in wanted:
                yield GpuProcess(name, pid, address, size, True)


def _client(path: Path) -> Iterator[tuple[str, int]]:
    """`drm-pdev` and the memory of a descriptor (Documentation/gpu/drm-usage-stats.rst)."""
    text = read_text(path, 8192) or ""
    if "drm-pdev" not in text:
        return
    address, size = None, 0
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "drm-pdev":
            address = pci.address(value.strip())
        elif key in {"drm-memory-vram", "drm-memory-gtt", "drm-resident-vram", "drm-resident-gtt"}:
            size += (number(value) or 0) * (1024 if "KiB" in value else 1)
    if address is not None:
        yield address, size


def _in_container(look: Look, pid: int) -> bool:
    return bool(_CONTAINER.search(look.text(f"/proc/{pid}/cgroup", 8192) or ""))

"""Who is on a GPU, by name: engines, desktops, and strangers whose memory nobody may count as free."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hosts.cgroups import container_of_pid
from hosts.facts import Accelerator
from hosts.gpu_sample import GpuProcess
from hosts.reading import known, read_text
from hosts.roots import Roots

MOST = 64
"""Users that a sample keeps of one GPU, those with most memory first."""
_DESKTOP = frozenset(
    {
        *("Xorg", "Xwayland", "X", "xfwm4", "picom", "mutter", "mutter-x11-fram", "muffin", "marco", "lightdm"),
        *("gnome-shell", "kwin_x11", "kwin_wayland", "plasmashell", "sddm-greeter", "gdm-x-session", "cinnamon"),
        *("sway", "Hyprland", "weston", "wayfire", "labwc", "river", "niri", "cosmic-comp", "gamescope-wl"),
        *("gamescope", "kded5", "kded6", "xdg-desktop-por", "ksmserver", "budgie-wm", "enlightenment"),
    }
)
"""Names as the kernel keeps them: 15 characters at most."""


@dataclass(frozen=True, slots=True)
class GpuUser:
    """One process on one GPU. `name` is its command's, at most 15 characters, as the process itself chose;
    `memory` bytes of the GPU; `kind` `compute` or `graphics`; `container` the id of the container it is in."""

    pci: str
    pid: int
    name: str | None
    memory: int | None
    kind: str
    container: str | None
    desktop: bool


def users(roots: Roots, where: str, processes: Iterable[GpuProcess]) -> tuple[GpuUser, ...]:
    """The processes of one GPU by name and container, the largest first. One that ended has neither."""
    found = []
    for process in sorted(processes, key=lambda one: (-(one.memory or 0), one.pid))[:MOST]:
        name = read_text(roots.proc / str(process.pid) / "comm", 64)
        container = container_of_pid(roots, process.pid)
        desktop = container is None and process.kind == "graphics" and name in _DESKTOP
        found.append(GpuUser(where, process.pid, name, process.memory, process.kind, container, desktop))
    return tuple(found)


def named(roots: Roots, gpu: Accelerator) -> Accelerator:
    """The facts of a GPU with the users in `details["processes"]` told by name and container.

    A GPU of which it is not known who uses it stays without.
    """
    listed = gpu.details.get("processes")
    if not isinstance(listed, list):
        return gpu
    processes = [
        GpuProcess(pid, known(one.get("memory")), str(one.get("kind") or "compute"))
        for one in listed
        if isinstance(one, Mapping) and (pid := known(one.get("pid")))
    ]
    found = [dataclasses.asdict(user) for user in users(roots, gpu.pci, processes)]
    for user in found:
        del user["pci"]
    return dataclasses.replace(gpu, details={**gpu.details, "processes": found})

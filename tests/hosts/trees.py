"""Copied trees of /proc, /sys, /etc and /dev, made of values that were read on real machines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hosts.roots import Roots

KIB = 1024
GIB = 1024**3


def write(path: Path, text: str | bytes) -> None:
    """A file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


@dataclass(frozen=True, slots=True)
class Kfd:
    """A GPU node of KFD's topology; None leaves a property out."""

    gfx_target_version: int = 110501
    simd_count: int = 80
    location_id: int | None = 0xC600
    domain: int | None = 0
    drm_render_minor: int = 128
    gpu_id: int = 64506
    device_id: int = 5510
    unique_id: int = 0
    bank: int | None = None
    used: dict[int, int] | None = None  # pid -> bytes


@dataclass(frozen=True, slots=True)
class Drm:
    """An AMD card below /sys/class/drm; None leaves a file out."""

    card: str = "card1"
    device: str = "0x1586"
    revision: str = "0xc1"
    slot: str | None = "0000:c6:00.0"
    vram_total: int | str | None = None
    vram_used: int | str | None = None
    gtt_total: int | str | None = None
    gtt_used: int | str | None = None
    product_name: str | None = None
    render_minor: int = 128
    sensors: dict[str, str] | None = None


class Tree:
    """Builds below `base`; `roots` reads it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.roots = Roots.under(base)

    def machine(
        self,
        *,
        total_kib: int = 127098456,
        available_kib: int | None = None,
        cpu: str = "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S",
        threads: int = 32,
        flags: str = "fpu sse2 avx2 fma avx512f",
        host: str = "dankclaw",
        kernel: str = "7.1.0",
        system: str = "Fedora Linux 43",
    ) -> Tree:
        """The parts every host has."""
        available = available_kib if available_kib is not None else total_kib - 4 * 1024 * 1024
        proc = self.base / "proc"
        write(proc / "meminfo", f"MemTotal:       {total_kib} kB\nMemFree: 1000 kB\nMemAvailable: {available} kB\n")
        one = "processor\t: {}\nvendor_id\t: AuthenticAMD\nmodel name\t: {}\nflags\t\t: {}\n\n"
        write(proc / "cpuinfo", "".join(one.format(i, cpu, flags) for i in range(threads)))
        write(proc / "self/status", f"Name:\tpython\nCpus_allowed:\tffffffff\nCpus_allowed_list:\t0-{threads - 1}\n")
        write(proc / "sys/kernel/hostname", f"{host}\n")
        write(proc / "sys/kernel/osrelease", f"{kernel}\n")
        write(proc / "sys/kernel/random/boot_id", "0b1d8a5e-2c3f-4a5b-9c7d-1e2f3a4b5c6d\n")
        write(proc / "cmdline", "root=/dev/nvme0n1p2 ro quiet\n")
        write(self.base / "etc/os-release", f'NAME="x"\nPRETTY_NAME="{system}"\nID=x\n')
        return self

    def pci(self, address: str, vendor: int, device: int, *, kind: int = 0x030000, driver: str | None = None) -> Tree:
        """A device on the bus."""
        folder = self.base / "sys/bus/pci/devices" / address
        write(folder / "vendor", f"0x{vendor:04x}\n")
        write(folder / "device", f"0x{device:04x}\n")
        write(folder / "class", f"0x{kind:06x}\n")
        if driver is not None:
            (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        return self

    def kfd(self, *gpus: Kfd) -> Tree:
        """The topology: node 0 is the processor."""
        base = self.base / "sys/class/kfd/kfd"
        write(
            base / "topology/nodes/0/properties",
            "cpu_cores_count 32\nsimd_count 0\nmem_banks_count 1\ngfx_target_version 0\nlocation_id 0\n",
        )
        write(base / "topology/nodes/0/gpu_id", "0\n")
        for number, gpu in enumerate(gpus, 1):
            node = base / "topology/nodes" / str(number)
            values = {
                "cpu_cores_count": 0,
                "simd_count": gpu.simd_count,
                "simd_per_cu": 2,
                "gfx_target_version": gpu.gfx_target_version,
                "vendor_id": 4098,
                "device_id": gpu.device_id,
                "location_id": gpu.location_id,
                "domain": gpu.domain,
                "drm_render_minor": gpu.drm_render_minor,
                "unique_id": gpu.unique_id,
            }
            write(node / "properties", "".join(f"{k} {v}\n" for k, v in values.items() if v is not None))
            write(node / "gpu_id", f"{gpu.gpu_id}\n")
            if gpu.bank is not None:
                write(node / "mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {gpu.bank}\nflags 0\n")
            for pid, size in (gpu.used or {}).items():
                write(base / f"proc/{pid}/vram_{gpu.gpu_id}", f"{size}\n")
                write(base / f"proc/{pid}/pasid", "21281\n")
        return self

    def drm(self, *cards: Drm) -> Tree:
        """Cards, each with a connector that must not be taken for one."""
        for card in cards:
            base = self.base / "sys/class/drm"
            device = base / card.card / "device"
            write(device / "vendor", "0x1002\n")
            write(device / "device", f"{card.device}\n")
            write(device / "revision", f"{card.revision}\n")
            slot = f"PCI_SLOT_NAME={card.slot}\n" if card.slot else ""
            write(device / "uevent", f"DRIVER=amdgpu\nPCI_CLASS=38000\n{slot}")
            for name in ("vram_total", "vram_used", "gtt_total", "gtt_used"):
                value = getattr(card, name)
                if value is not None:
                    write(device / f"mem_info_{name}", f"{value}\n")
            if card.product_name is not None:
                write(device / "product_name", f"{card.product_name}\n")
            (device / "drm" / f"renderD{card.render_minor}").mkdir(parents=True)
            (device / "drm" / card.card).mkdir()
            for name, text in (card.sensors or {}).items():
                write(device / name, f"{text}\n")
            write(base / f"{card.card}-DP-1" / "status", "connected\n")
            write(base / f"{card.card}-DP-1" / "device/vendor", "0x1002\n")
        return self

    def process(self, pid: int, name: str, *, cgroup: str = "0::/\n", drm: Mapping[str, str] | None = None) -> Tree:
        """A process: `drm` are the fdinfo texts of its open render nodes, by descriptor."""
        folder = self.base / "proc" / str(pid)
        write(folder / "comm", f"{name}\n")
        write(folder / "cgroup", cgroup)
        (folder / "fd").mkdir(exist_ok=True)
        (folder / "fdinfo").mkdir(exist_ok=True)
        (folder / "fd" / "0").symlink_to("/dev/null")
        for descriptor, text in (drm or {}).items():
            (folder / "fd" / descriptor).symlink_to("/dev/dri/renderD128")
            write(folder / "fdinfo" / descriptor, text)
        return self

    def nodes(self, *minors: int, kfd_gid: int = 992, render_gid: int = 993) -> Tree:
        """/dev/kfd and render nodes, owned by groups as udev leaves them."""
        owned = [("kfd", kfd_gid), *((f"dri/renderD{minor}", render_gid) for minor in minors)]
        for name, gid in owned:
            path = self.base / "dev" / name
            write(path, "")
            if os.geteuid() == 0:
                os.chown(path, 0, gid)
        return self


def fdinfo(client: int, *, vram_kib: int = 0, gtt_kib: int = 0, slot: str = "0000:c6:00.0") -> str:
    """What the kernel writes about an open render node of amdgpu."""
    return (
        "pos:\t0\nflags:\t02100002\nmnt_id:\t26\nino:\t530\n"
        f"drm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t{slot}\npasid:\t32774\n"
        f"drm-memory-vram:\t{vram_kib} KiB\ndrm-memory-gtt: \t{gtt_kib} KiB\ndrm-memory-cpu: \t0 KiB\n"
        "drm-engine-gfx:\t1000 ns\n"
    )


def sensors(*, apu: bool = True) -> dict[str, str]:
    """hwmon as an idle Strix Halo writes it."""
    power = "hwmon/hwmon4/power1_input" if apu else "hwmon/hwmon4/power1_average"
    return {
        "gpu_busy_percent": "7",
        "hwmon/hwmon4/name": "amdgpu",
        "hwmon/hwmon4/temp1_input": "38000",
        power: "15004000",
    }


def strix_halo(tree: Tree) -> Tree:
    """128 GB, 2 GiB carved out, ttm.pages_limit=29360128: card1 at c6:00.0 (KFD, DRM and MemTotal from one machine)."""
    tree.machine()
    tree.pci("0000:c6:00.0", 0x1002, 0x1586, kind=0x038000, driver="amdgpu")
    tree.pci("0000:c6:00.1", 0x1002, 0x1640, kind=0x040300)
    tree.kfd(Kfd(bank=120259084288))
    memory = Drm(
        vram_total=2147483648, vram_used=329252864, gtt_total=120259084288, gtt_used=1010827264, sensors=sensors()
    )
    return tree.drm(memory).nodes(128)

"""A GPU that is bound to a driver which cannot compute, or to none."""

from __future__ import annotations

from collections.abc import Iterator

from hosts.pci import AMD, NVIDIA
from orchestrator.doctor import fixes
from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine

CODE = "gpu_driver"
SEVERITY = Severity.PROBLEM
NEEDS = ("bus", "facts", "kernel")
SUPERSEDES = ("library_missing", "driver_not_loaded")
SOURCE = "nouveau has no CUDA; vfio-pci keeps the GPU for virtual machines; without a module there is no device node"
BLOCK = "/etc/modprobe.d/outrider-nouveau.conf"
VENDORS = {NVIDIA: ("NVIDIA", "nvidia"), AMD: ("AMD", "amdgpu")}


def check(machine: Machine) -> Iterator[Fault]:
    codes = {problem.code for problem in machine.problems(*SUPERSEDES)}
    for gpu in machine.bus:
        if gpu.vendor not in VENDORS:
            continue
        vendor, module = VENDORS[gpu.vendor]
        evidence = {"pci": gpu.address, "driver": gpu.driver, "probe": sorted(codes)}
        if gpu.driver == "nouveau":
            finding = f"the NVIDIA GPU at {gpu.address} is driven by nouveau, which has no CUDA"
            block = fixes.file(BLOCK, "blacklist nouveau", "options nouveau modeset=0")
            yield Fault(
                finding, evidence, (_driver(machine), block, fixes.initramfs(machine.system), "systemctl reboot")
            )
        elif gpu.driver == "vfio-pci":
            finding = f"the {vendor} GPU at {gpu.address} is kept for virtual machines (vfio-pci)"
            free = f"echo {gpu.address} > /sys/bus/pci/drivers/vfio-pci/unbind"
            bind = f"modprobe {module} && echo {gpu.address} > /sys/bus/pci/drivers_probe"
            clear = f"echo > /sys/bus/pci/devices/{gpu.address}/driver_override"
            others = bool(machine.facts.accelerators)
            yield Fault(finding, evidence, (free, clear, bind), Severity.WARNING if others else None)
        elif gpu.vendor == NVIDIA and any(p.vendor == "nvidia" for p in machine.problems("library_missing")):
            finding = f"the NVIDIA GPU at {gpu.address} has no driver: libnvidia-ml.so.1 is not there"
            yield Fault(finding, evidence, (_driver(machine), "systemctl reboot"))
        elif any(p.vendor == vendor.lower() for p in machine.problems("driver_not_loaded")):
            finding = f"the {vendor} GPU at {gpu.address} is there, but its driver is not loaded"
            yield Fault(finding, evidence | {"secure_boot": machine.kernel.secure_boot}, _load(machine, module))


def _load(machine: Machine, module: str) -> tuple[str, ...]:
    """With secure boot a module that was built here must be signed by a key that the firmware knows."""
    signed = "mokutil --import /var/lib/dkms/mok.pub && systemctl reboot"
    extra = (signed,) if module == "nvidia" and machine.kernel.secure_boot else ()
    return (*extra, f"modprobe {module}", f"dmesg | grep -i {module}")


def _driver(machine: Machine) -> str:
    return fixes.install(
        machine.system,
        "nvidia-driver",
        fedora="akmod-nvidia xorg-x11-drv-nvidia-cuda",
        arch="nvidia-open nvidia-utils",
        suse="nvidia-open-driver-G06-signed-kmp-default nvidia-compute-utils-G06",
    )

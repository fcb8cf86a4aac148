"""Faults, each a small change of a clean box, and what the doctor must say: this code and no other."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.doctor.machine import Wanted, Who
from tests import ports
from tests.doctor.boxes import CDI, DRIVER, LIBRARIES, LIMITS, MODULE, UUID, Box
from tests.hosts.trees import write

GIB = 2**30
MES = "/sys/class/drm/card1/device/fw_version/mes_fw_version"


@dataclass(frozen=True)
class Planted:
    """A fault. `words` must stand in the finding, `fix` in one of its commands, `severity` as said."""

    code: str
    kind: str
    plant: Callable[[Box], object]
    words: str
    fix: str
    severity: str = "problem"
    rule: str | None = None
    name: str = ""

    @property
    def id(self) -> str:
        return f"{self.code}-{self.name}" if self.name else self.code


def probed(plant: Callable[[Box], object]) -> Callable[[Box], None]:
    """The change is one that the probe sees."""

    def both(box: Box) -> None:
        plant(box)
        box.probe_again()

    return both


def env(**more: str) -> Callable[[Box], None]:
    return lambda box: box.environ.update(more)


def file(path: str, text: str) -> Callable[[Box], object]:
    return lambda box: box.write(path, text)


def several(*plants: Callable[[Box], object]) -> Callable[[Box], None]:
    def all_of(box: Box) -> None:
        for plant in plants:
            plant(box)

    return all_of


def as_ada(box: Box) -> None:
    """Who asks is a user, and Podman runs as that user."""
    box.who = Who(1000, 1000, (1000, 993, 992), "ada")
    box.podman(host__security__rootless=True)


def low_gtt(box: Box) -> None:
    """What the kernel gives by default: half."""
    total = 127098456 * 1024 // 2
    write(box.base / "sys/class/drm/card1/device/mem_info_gtt_total", f"{total}\n")
    write(
        box.base / "sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {total}\n"
    )
    box.write("/proc/cmdline", "root=UUID=abc ro quiet\n")
    box.write("/sys/module/ttm/parameters/pages_limit", f"{total // 4096}\n")


def too_much_gtt(box: Box) -> None:
    write(box.base / "sys/class/drm/card1/device/mem_info_gtt_total", f"{128 * GIB}\n")
    box.write("/proc/cmdline", "root=UUID=abc ro quiet ttm.pages_limit=33554432\n")
    box.write("/sys/module/ttm/parameters/pages_limit", "33554432\n")


def no_toolkit(box: Box) -> None:
    box.forget("nvidia-ctk")
    box.remove("/etc/cdi/nvidia.yaml")


def in_run(box: Box) -> None:
    """The refresh service keeps the specification."""
    box.remove("/etc/cdi/nvidia.yaml")
    box.write("/run/cdi/nvidia.yaml", CDI)
    box.write("/usr/lib/systemd/system/nvidia-cdi-refresh.service", "[Service]\n")


def gids(box: Box) -> None:
    box.podman(version="4.9.3")
    box.write("/etc/cdi/nvidia.yaml", CDI.replace("  env:\n", "  additionalGids:\n  - 44\n  env:\n", 1))


def updated(box: Box) -> None:
    """The driver was updated: the libraries have new names, the specification has the old ones."""
    for library in ("libcuda.so", "libnvidia-ml.so"):
        box.remove(f"{LIBRARIES}/{library}.{DRIVER}")
        box.write(f"{LIBRARIES}/{library}.585.10", "")
    box.write("/proc/driver/nvidia/version", MODULE.format("585.10"))
    box.environ["FAKE_NVML_DRIVER"] = "585.10"


def nouveau(box: Box) -> None:
    driver = box.base / "sys/bus/pci/devices/0000:01:00.0/driver"
    driver.unlink()
    driver.symlink_to("../../../bus/pci/drivers/nouveau")
    no_toolkit(box)
    for node in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        box.remove(f"/dev/{node}")
    box.remove("/proc/driver/nvidia/version")
    (box.base / "proc/driver/nvidia").rmdir()
    del box.environ["LD_LIBRARY_PATH"]


def unsigned(box: Box) -> None:
    """Secure boot kept the module out: the library is there, the driver is not."""
    (box.base / "sys/bus/pci/devices/0000:01:00.0/driver").unlink()
    for node in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        box.remove(f"/dev/{node}")
    box.remove("/proc/driver/nvidia/version")
    box.write("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", b"\6\0\0\0\1")
    box.environ["FAKE_NVML_INIT"] = "9"


def vfio(box: Box) -> None:
    """A second GPU is kept for a virtual machine."""
    box.tree.pci("0000:02:00.0", 0x10DE, 0x2204, driver="vfio-pci")


def not_loaded(box: Box) -> None:
    """The module amdgpu is not loaded: the bus has the GPU, nothing else knows it."""
    import shutil  # noqa: PLC0415

    (box.base / "sys/bus/pci/devices/0000:c6:00.0/driver").unlink()
    for folder in ("sys/class/kfd", "sys/class/drm", "sys/module/ttm"):
        shutil.rmtree(box.base / folder)
    for node in ("kfd", "dri/renderD128"):
        (box.base / "dev" / node).unlink()
    box.write("/proc/cmdline", "root=UUID=abc ro quiet\n")


def old_runtime(box: Box) -> None:
    as_ada(box)
    box.podman(host__security__rootless=True, host__ociRuntime={"name": "runc"})


def foreign_group(box: Box) -> None:
    as_ada(box)
    box.who = replace(box.who, groups=(1000, 992))
    box.podman(host__security__rootless=True)


def dead_socket(box: Box) -> None:
    place = box.at("/run/podman/podman.sock")
    place.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))


def drop_in(*lines: str) -> Callable[[Box], object]:
    return file("/etc/systemd/system/podman.service.d/x.conf", "\n".join(("[Service]", *lines, "")))


def dead_proxy(box: Box) -> None:
    (port,) = ports.free_ports(1)
    drop_in(f"Environment=HTTPS_PROXY=http://ada:geheim@127.0.0.1:{port}", "Environment=NO_PROXY=localhost,127.0.0.1")(
        box
    )


def live_proxy(box: Box, no_proxy: str, registries: tuple[str, ...] = ()) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    box.keep.append(listener)
    port = listener.getsockname()[1]
    drop_in(f'Environment="HTTPS_PROXY=http://127.0.0.1:{port}" NO_PROXY={no_proxy}')(box)
    box.wanted = replace(box.wanted, registries=registries)


def closed_firewall(box: Box) -> None:
    box.wanted = Wanted(exposed=(("the gateway", 8080),), low_water=box.wanted.low_water)
    chain = {"family": "inet", "table": "filter", "name": "input"}
    match = {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}}
    rule = {"rule": {"family": "inet", "table": "filter", "chain": "input", "expr": [match, {"accept": None}]}}
    hook = {"hook": "input", "type": "filter", "prio": 0, "policy": "drop"}
    box.write("/ruleset.json", json.dumps({"nftables": [{"chain": {**chain, **hook}}, rule]}))


def image_overrides(box: Box) -> None:
    """An image of the catalogue is here, and sets the variable for its engines."""
    name = "docker.io/kyuz0/vllm-therock-gfx1151:stable"
    box.write("/podman-images.json", json.dumps([{"Id": "ab12", "Names": [name]}, {"Id": "cd", "Names": None}]))
    config = {"Env": ["PATH=/bin", "HSA_OVERRIDE_GFX_VERSION=11.0.0"]}
    box.write("/podman-inspect.json", json.dumps([{"Id": "ab12", "RepoTags": [name], "Config": config}]))


def trial_fails(box: Box) -> None:
    box.podman(run='echo "crun: unknown version specified" >&2; exit 126')


def trial_needs_ours(box: Box) -> None:
    """The operator's service runs, and its settings start nothing; ours do."""
    box.podman(run='[ -n "$CONTAINERS_CONF" ] || { echo "crun: cgroups in hybrid mode not supported" >&2; exit 126; }')
    place = box.at("/run/podman/podman.sock")
    place.parent.mkdir(parents=True)
    box.serve_podman(place)


def desktop(box: Box) -> None:
    memory = "drm-memory-vram:\t409600 KiB\ndrm-memory-gtt:\t204800 KiB\n"
    box.write("/proc/1500/comm", "gnome-shell\n")
    box.write("/proc/1500/cgroup", "0::/user.slice/user-1000.slice/session-2.scope\n")
    (box.base / "proc/1500/fd").mkdir()
    for number in ("12", "13"):  # one client, opened twice
        client = "drm-driver:\tamdgpu\ndrm-pdev:\t0000:c6:00.0\ndrm-client-id:\t7\n"
        box.write(f"/proc/1500/fdinfo/{number}", f"pos:\t0\n{client}{memory}")
        (box.base / "proc/1500/fd" / number).symlink_to("/dev/dri/renderD128")


def user(name: str, **fake: str) -> Callable[[Box], None]:
    """A program that NVML names."""

    def plant(box: Box) -> None:
        box.environ.update(fake)
        box.write("/proc/1500/comm", f"{name}\n")
        box.write("/proc/1500/cgroup", "0::/system.slice/x.service\n")

    return plant


def full_tmpfs(box: Box) -> None:
    box.mount(box.at("/var/tmp"), 256 * 1024)
    (box.at("/var/tmp") / "blob").write_bytes(bytes(244 * 1024))
    box.wanted = replace(box.wanted, low_water=0.05)


FAULTS = (
    Planted("gtt_limited", "strix", probed(low_gtt), "60.6 GiB of 121.2 GiB", "--args=ttm.pages_limit=29677462"),
    Planted("gtt_above_memory", "strix", probed(too_much_gtt), "above the machine's memory",
            "ttm.pages_limit=29677462"),
    Planted("gtt_parameter", "strix", file("/proc/cmdline", "ro amdgpu.gtt_size=114688 ttm.pages_limit=29360128\n"),
            "misspelt", "--args=ttm.pages_limit=29360128 --remove-args=amdgpu.gtt_size", name="misspelt"),
    Planted("gtt_parameter", "strix", file("/etc/modprobe.d/amd.conf", "options amdgpu gttsize=114688\n"),
            "deprecated", "sed -i '/gttsize=/d' /etc/modprobe.d/amd.conf", "warning", name="deprecated"),
    Planted("gtt_parameter", "strix", file("/proc/cmdline", "ro ttm.pages_limit=31457280\n"),
            "has 29360128", "ttm.pages_limit=31457280", name="not_taken"),
    Planted("firmware_bad", "strix", probed(file(MES, "0x00000083")),
            "0x83", "dnf upgrade amd-gpu-firmware"),
    Planted("firmware_suspect", "strix", probed(file(MES, "0x00000086")),
            "0x86", "dnf upgrade amd-gpu-firmware", "warning", rule="firmware_bad"),
    Planted("kernel_too_old", "strix", probed(file("/proc/sys/kernel/osrelease", "6.17.1-300.fc43.x86_64\n")),
            "needs 6.18.4", "dnf upgrade kernel"),
    Planted("cdi_missing", "nvidia", probed(lambda box: box.remove("/etc/cdi/nvidia.yaml")),
            "no CDI specification names", "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
    Planted("cdi_stale", "nvidia", probed(updated), f"is of driver {DRIVER}, and 585.10 runs",
            "nvidia-ctk cdi generate"),
    Planted("cdi_stale", "nvidia", lambda box: box.remove("/usr/bin/nvidia-cdi-hook"),
            "names files that do not exist: /usr/bin/nvidia-cdi-hook", "nvidia-ctk cdi generate", name="hook"),
    Planted("cdi_stale", "nvidia",
            probed(file("/etc/cdi/nvidia.yaml", CDI.replace(UUID, "GPU-0").replace('name: "0"', 'name: "7"').replace(
                "name: all", "name: most"))),
            "names GPU", "nvidia-ctk cdi generate", name="other_gpu"),
    Planted("cdi_too_new", "nvidia",
            several(lambda box: box.podman(version="4.3.1"),
                    lambda box: box.edit("/etc/cdi/nvidia.yaml", "cdiVersion: 0.5.0", "cdiVersion: 0.6.0")),
            "reads up to 0.5.0", "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
    Planted("cdi_too_new", "nvidia", gids, "additionalGids", "--feature-flag no-additional-gids-for-device-nodes",
            name="gids"),
    Planted("cdi_folder", "nvidia", several(in_run, lambda box: box.podman(version="5.5.1")), "/var/run/cdi",
            "cdi_spec_dirs"),
    Planted("cdi_double", "nvidia", file("/run/cdi/nvidia.yaml", CDI), "2 files describe nvidia.com/gpu=0",
            "rm /var/run/cdi/nvidia.yaml", "warning"),
    Planted("cdi_unreadable", "nvidia", several(as_ada, lambda box: box.at("/etc/cdi/nvidia.yaml").chmod(0o600)),
            "mode 0600", "chmod a+r /etc/cdi/nvidia.yaml"),
    Planted("cdi_broken", "nvidia", file("/etc/cdi/other.yaml", "cdiVersion: 0.5.0\ndevices:\n- name: x\n"),
            "no kind", "rm /etc/cdi/other.yaml", "warning"),
    Planted("cdi_broken", "nvidia", probed(file("/etc/cdi/nvidia.yaml", CDI[:120])), "it has no kind, no devices",
            "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", name="half"),
    Planted("toolkit_missing", "nvidia", probed(no_toolkit), "no nvidia-ctk",
            "apt-get install nvidia-container-toolkit"),
    Planted("legacy_hook", "nvidia", file("/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", "{}"),
            "daemon-reload", "mv /usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", "warning"),
    Planted("driver_too_old", "nvidia", probed(env(FAKE_NVML_CUDA="11040")), "CUDA 11.4", "apt-get", "warning"),
    Planted("driver_mismatch", "nvidia", probed(env(FAKE_NVML_INIT="18")), "18)", "systemctl reboot"),
    Planted("driver_mismatch", "nvidia", file("/proc/driver/nvidia/version", MODULE.format("575.64.03")), "575.64.03",
            "systemctl reboot", name="module"),
    Planted("gpu_lost", "nvidia", probed(env(FAKE_NVML_LOST="15")), "15", "systemctl reboot"),
    Planted("gpu_driver", "nvidia", probed(nouveau), "nouveau", "blacklist nouveau", name="nouveau"),
    Planted("gpu_driver", "nvidia", vfio, "vfio-pci", "drivers/vfio-pci/unbind", "warning", name="vfio"),
    Planted("gpu_driver", "strix", probed(not_loaded), "not loaded", "modprobe amdgpu", name="not_loaded"),
    Planted("gpu_driver", "nvidia", probed(unsigned), "not loaded", "mokutil --import", name="secure_boot"),
    Planted("group_missing", "strix", foreign_group, "renderD128", "usermod -aG render ada", name="node"),
    Planted("group_missing", "cpu",
            several(file("/etc/group", "root:x:0:\noutrider:x:990:\n"),
                    lambda box: setattr(box, "who", Who(0, 0, (0,), "ada"))),
            "not in the group outrider", "sudo usermod -aG outrider ada", "warning", name="outrider"),
    Planted("subordinate_ids", "cpu", several(as_ada, file("/etc/subgid", "grace:1:2\n")), "no subordinate ids",
            "sudo usermod --add-subuids 100000-165535"),
    Planted("linger", "cpu", several(as_ada, lambda box: box.remove("/var/lib/systemd/linger/ada")), "logs out",
            "loginctl enable-linger ada", "warning"),
    Planted("pressure_unknown", "strix", lambda box: box.remove("/proc/pressure/memory"), "pressure", "psi=1",
            "warning"),
    Planted("device_node_missing", "strix", probed(lambda box: box.remove("/dev/kfd")), "/dev/kfd", "modprobe amdgpu"),
    Planted("device_node_missing", "nvidia", lambda box: box.remove("/dev/nvidia-uvm"), "/dev/nvidia-uvm",
            "nvidia-modprobe -c 0 -u", name="uvm"),
    Planted("device_mode", "strix", lambda box: box.at("/dev/kfd").chmod(0o600), "mode 0600", "chmod 0660 /dev/kfd"),
    Planted("seccomp", "cpu", lambda box: box.remove("/usr/share/containers/seccomp.json"), "does not exist",
            "apt-get install"),
    Planted("seccomp", "cpu", lambda box: box.podman(host__security__seccompEnabled=False), "without the filter",
            "podman info", "warning", name="off"),
    Planted("selinux", "strix", file("/sys/fs/selinux/booleans/container_use_devices", "0 0"), "SELinux",
            "setsebool -P container_use_devices on", "warning"),
    Planted("selinux", "strix", lambda box: box.remove("/sys/fs/selinux/booleans/container_use_devices"),
            "no module for containers", "dnf install container-selinux", name="policy"),
    Planted("rootless_runtime", "strix", old_runtime, "runc", "dnf install crun"),
    Planted("cgroup_delegation", "cpu",
            several(as_ada, lambda box: box.podman(host__security__rootless=True, host__cgroupControllers=["pids"])),
            "cpu, memory", "Delegate=cpu cpuset io memory pids"),
    Planted("cgroup_v1", "cpu",
            lambda box: box.podman(version="4.3.1", host__cgroupVersion="v1", host__ociRuntime={"name": "runc"}),
            "Podman 6", "systemd.unified_cgroup_hierarchy=1", "warning"),
    Planted("cgroup_v1", "cpu", lambda box: box.podman(host__cgroupVersion="v1"), "crun", "update-grub", name="crun"),
    Planted("cgroup_v1", "cpu",
            lambda box: box.podman(version="6.0.1", host__cgroupVersion="v1", host__ociRuntime={"name": "runc"}),
            "6.0.1 does not support", "update-grub", name="podman6"),
    Planted("ulimit_low", "cpu", file("/proc/self/limits", LIMITS.format(nproc=9000, nofile=4096, memlock=8388608)),
            "4096 (nofile)", "LimitNOFILE=8192", "warning"),
    Planted("ulimit_low", "cpu", drop_in("LimitNOFILE=1024:2048"), "2048 (nofile)", "systemctl restart podman.service",
            "warning", name="unit"),
    Planted("disk_low", "cpu", full_tmpfs, "temporary files", "outrider prune --dry-run"),
    Planted("storage_driver", "cpu", lambda box: box.podman(store__graphDriverName="vfs"), "vfs",
            "/etc/containers/storage.conf"),
    Planted("proxy_unreachable", "cpu", dead_proxy, "refused", "systemctl edit podman.service"),
    Planted("proxy_missing", "cpu", env(https_proxy="http://ada:geheim@proxy.lan:3128"), "go out directly",
            "Environment=HTTPS_PROXY=http://proxy.lan:3128", "warning"),
    Planted("no_proxy", "cpu", lambda box: live_proxy(box, ".example.org"), "lacks localhost",
            "NO_PROXY=.example.org,localhost,127.0.0.1", "warning"),
    Planted("no_proxy", "cpu", lambda box: live_proxy(box, "localhost", ("mirror.lan:5000",)), "lacks mirror.lan",
            "NO_PROXY=localhost,mirror.lan", "warning", name="mirror"),
    Planted("firewall_closed", "cpu", closed_firewall, "port 8080", "nft insert rule inet filter input tcp dport 8080"),
    Planted("clock", "cpu",
            lambda box: box.command("timedatectl", "echo NTPSynchronized=no"), "not kept right", "set-ntp true",
            "warning"),
    Planted("clock", "cpu", lambda box: setattr(box, "now", 1_500_000_000.0), "years behind", "timedatectl",
            name="wrong"),
    Planted("podman_missing", "cpu", lambda box: box.forget("podman"), "not installed", "apt-get install podman"),
    Planted("podman_missing", "cpu", lambda box: box.podman(info='echo "Error: database is locked" >&2; exit 125'),
            "database is locked", "podman --log-level=debug info", name="complains"),
    Planted("podman_old", "cpu", lambda box: box.podman(version="3.4.4"), "3.4.4", "apt-get"),
    Planted("podman_socket", "cpu", dead_socket, "refuses", "systemctl restart podman.socket"),
    Planted("runtime_broken", "cpu", trial_fails, "unknown version", "apt-get install runc"),
    Planted("runtime_broken", "cpu", trial_needs_ours, "hybrid mode", "containers.conf.d/outrider.conf", "warning",
            name="service"),
    Planted("hsa_override", "strix", file("/etc/environment", "HSA_OVERRIDE_GFX_VERSION=11.0.0\n"), "11.0.0",
            "sed -i '/HSA_OVERRIDE_GFX_VERSION/d' /etc/environment"),
    Planted("hsa_override", "strix", env(HSA_OVERRIDE_GFX_VERSION="11.5.1"), "11.5.1", "unset", "warning",
            name="shell"),
    Planted("hsa_override", "strix", image_overrides, "image docker.io/kyuz0/vllm-therock-gfx1151:stable",
            "podman image inspect", name="image"),
    Planted("map_count", "strix", file("/proc/sys/vm/max_map_count", "4096\n"), "4096", "sysctl -w vm.max_map_count",
            "warning"),
    Planted("overcommit", "strix", file("/proc/sys/vm/overcommit_memory", "2\n"), "is 2",
            "sysctl -w vm.overcommit_memory=0"),
    Planted("huge_pages", "strix", file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
            "off", "echo madvise >", "warning"),
    Planted("swapping", "strix",
            file("/proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1p3 partition 16777212 4194304 -2\n"),
            "4.0 GiB", "swapoff -a", "warning"),
    Planted("desktop_on_gpu", "strix", probed(desktop), "gnome-shell (600 MiB)",
            "systemctl set-default multi-user.target",
            "warning"),
    Planted("desktop_on_gpu", "nvidia", probed(user("Xorg", FAKE_NVML_GRAPHICS=f"1500:{700 * 2**20}")),
            "Xorg (700 MiB)", "multi-user.target", "warning", name="nvidia"),
    Planted("foreign_on_gpu", "nvidia", probed(user("ollama", FAKE_NVML_PROCESSES=f"1500:{6 * GIB}")),
            "ollama holds 6.0 GiB", "systemctl status 1500", "warning"),
    Planted("pcie_link", "nvidia", probed(env(FAKE_NVML_WIDTH_NOW="4", FAKE_NVML_UTIL="90")), "4 of its 16",
            "lspci -vv -s 0000:01:00.0", "warning"),
    Planted("nvml_crashed", "nvidia", probed(env(FAKE_NVML_CRASH="GetName")), "", "nvidia-smi", rule="probe"),
)  # fmt: skip

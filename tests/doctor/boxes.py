"""Whole machines as trees of files and fake commands, with nothing wrong: an NVIDIA box, a Strix Halo, a CPU box.

What the real collector reads is here, so that a fault is planted by changing a file or what a command says.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hosts import pci
from hosts.facts import HostFacts
from hosts.probe import probe
from orchestrator.doctor import rules
from orchestrator.doctor.collect import Question, collect
from orchestrator.doctor.findings import Report, judge
from orchestrator.doctor.machine import Machine, Wanted, Who
from orchestrator.doctor.sources.look import Look
from tests.hosts.trees import Tree, strix_halo, write

NOW = 1_795_000_000.0
DRIVER = "580.95.05"
UUID = "GPU-817285e3-758e-25e4-3b80-d38475e31dd6"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
CDI = f"""---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-uvm
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - update-ldcache
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: {LIBRARIES}/libcuda.so.{DRIVER}
    hostPath: {LIBRARIES}/libcuda.so.{DRIVER}
    options:
    - ro
  - containerPath: {LIBRARIES}/libnvidia-ml.so.{DRIVER}
    hostPath: {LIBRARIES}/libnvidia-ml.so.{DRIVER}
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: {UUID}
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
"""
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max processes             {nproc}               {nproc}               processes
Max open files            1024                 {nofile}               files
Max locked memory         8388608              {memlock}              bytes
"""
GROUPS = "root:x:0:\nvideo:x:44:\nrender:x:993:\nkfd:x:992:\noutrider:x:990:ada\nada:x:1000:\n"
USERS = "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n"
MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n"
ACCEPTS = {
    "nftables": [
        {"metainfo": {"version": "1.0.6"}},
        {"chain": {"family": "inet", "table": "filter", "name": "input", "hook": "input", "type": "filter",
                   "prio": 0, "policy": "accept"}},
    ]
}  # fmt: skip


@dataclass
class Box:
    """One machine. `facts` are probed when they are first needed, or again after `probe_again`."""

    tree: Tree
    environ: dict[str, str]
    who: Who = field(default_factory=Who)
    wanted: Wanted = field(default_factory=lambda: Wanted(low_water=0.005))
    now: float = NOW
    sockets: tuple[str, ...] = ("/run/podman/podman.sock",)
    places: dict[str, str] = field(default_factory=lambda: {"state": "/var/lib/outrider", "temporary": "/var/tmp"})
    facts: HostFacts | None = None
    keep: list[socket.socket] = field(default_factory=list)
    mounts: list[Path] = field(default_factory=list)

    def close(self) -> None:
        """Take back what is no file."""
        for listener in self.keep:
            listener.close()
        for place in self.mounts:
            subprocess.run(["umount", "-l", place], check=True, timeout=10)

    def mount(self, place: Path, size: int) -> None:
        """A small file system of its own; needs root."""
        options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
        subprocess.run(["mount", *options, place], check=True, timeout=10)
        self.mounts.append(place)

    def serve_podman(self, place: Path) -> None:
        """A socket at which everybody is told that all is well."""
        listener = socket.socket(socket.AF_UNIX)
        self.keep.append(listener)
        listener.bind(str(place))
        listener.listen()

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # closed
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nOK")

        threading.Thread(target=answer, daemon=True).start()

    @property
    def base(self) -> Path:
        return self.tree.base

    def write(self, path: str, text: str | bytes) -> Path:
        """A file of the machine, by its path there."""
        place = self.at(path)
        write(place, text)
        return place

    def at(self, path: str) -> Path:
        return self.base / path.removeprefix("/var" if path.startswith("/var/run/") else "").lstrip("/")

    def edit(self, path: str, old: str, new: str) -> None:
        """Change a file; `old` must be there."""
        place = self.at(path)
        text = place.read_text()
        assert old in text
        place.write_text(text.replace(old, new))

    def remove(self, path: str) -> None:
        self.at(path).unlink()

    def command(self, name: str, script: str) -> None:
        """A fake command: a script of /bin/sh, which has no PATH but its own folder."""
        place = self.base / "bin" / name
        write(place, f"#!/bin/sh\n{script}\n")
        place.chmod(0o755)

    def forget(self, name: str) -> None:
        """A command that is not installed."""
        (self.base / "bin" / name).unlink()

    def podman(self, version: str = "5.6.2", run: str = "exit 0", info: str | None = None, **changes: Any) -> None:
        """Podman as `podman info` describes it; keys with a dot go into the section before it."""
        data: dict[str, Any] = {
            "host": {
                "cgroupControllers": ["cpuset", "cpu", "io", "memory", "pids"],
                "cgroupManager": "systemd",
                "cgroupVersion": "v2",
                "networkBackend": "netavark",
                "ociRuntime": {"name": "crun", "path": "/usr/bin/crun"},
                "security": {
                    "rootless": False,
                    "seccompEnabled": True,
                    "seccompProfilePath": "/usr/share/containers/seccomp.json",
                    "selinuxEnabled": False,
                },
            },
            "store": {"graphDriverName": "overlay", "graphRoot": "/var/lib/containers/storage"},
            "version": {"Version": version},
        }
        for path, value in changes.items():
            *sections, key = path.split("__")
            table = data
            for section in sections:
                table = table[section]
            table[key] = value
        self.write("/podman-info.json", json.dumps(data))
        for name in ("images", "inspect"):
            place = self.at(f"/podman-{name}.json")
            if not place.exists():
                self.write(f"/podman-{name}.json", "[]")
        cases = {
            "--version": f'echo "podman version {version}"',
            "info": info or f"/bin/cat {self.base}/podman-info.json",
            "run": run,
            "images": f"/bin/cat {self.base}/podman-images.json",
            "image": f"/bin/cat {self.base}/podman-inspect.json",
        }
        self.command("podman", 'case "$1" in\n' + "".join(f"{k}) {v};;\n" for k, v in cases.items()) + "esac")

    def question(self) -> Question:
        look = Look(self.tree.roots, self.environ, self.who)
        return Question(
            look=look,
            wanted=self.wanted,
            places=self.places,
            sockets=self.sockets,
            facts=self.facts,
            now=self.now,
        )

    def probe_again(self) -> None:
        self.facts = probe(self.tree.roots, environ=self.environ)

    def change_facts(self, **changes: Any) -> None:
        assert self.facts is not None
        self.facts = replace(self.facts, **changes)

    def look(self) -> Machine:
        return collect(self.question())

    def report(self, codes: Collection[str] | None = None) -> Report:
        """By the rules of these codes, from no more than they need, as `--rule` has it; without any by all."""
        asked = rules.chosen(codes)
        only = {source for rule in asked for source in rule.needs} if codes else None
        return judge(collect(self.question(), only), asked)


def plain(base: Path, **machine: Any) -> Box:
    """What every box has."""
    tree = Tree(base).machine(**machine)
    bin_folder = base / "bin"
    bin_folder.mkdir()
    environ = {"PATH": str(bin_folder), "ROCM_PATH": str(base / "no-rocm"), "HOME": "/root", "LANG": "C.UTF-8"}
    box = Box(tree, environ)
    box.write("/etc/os-release", 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nID=debian\n')
    box.write("/etc/group", GROUPS)
    box.write("/etc/passwd", USERS)
    box.write("/proc/self/limits", LIMITS.format(nproc=126000, nofile=524288, memlock=8388608))
    box.write("/proc/sys/vm/max_map_count", "1048576\n")
    box.write("/proc/sys/vm/overcommit_memory", "0\n")
    box.write("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition 8388604 4194304 100\n")
    box.write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    box.write("/proc/pressure/memory", "some avg10=0.00\nfull avg10=0.00\n")
    box.write("/usr/share/containers/seccomp.json", "{}")
    box.write("/etc/subuid", "ada:100000:65536\n")
    box.write("/etc/subgid", "ada:100000:65536\n")
    box.write("/var/lib/systemd/linger/ada", "")
    box.write(
        "/usr/lib/systemd/system/podman.service", "[Service]\nType=exec\nEnvironment=LOGGING=info\nDelegate=true\n"
    )
    box.write("/usr/lib/systemd/system/podman.socket", "[Socket]\nListenStream=%t/podman/podman.sock\n")
    box.write("/usr/lib/systemd/system/systemd-timesyncd.service", "[Service]\n")
    for folder in ("run/systemd/system", "var/lib/outrider", "var/lib/containers/storage", "var/tmp"):
        (base / folder).mkdir(parents=True)
    box.podman()
    box.command(
        "systemctl", "printf 'Id=podman.socket\\nActiveState=active\\n\\nId=podman.service\\nActiveState=inactive\\n'"
    )
    box.command("timedatectl", "printf 'Timezone=UTC\\nNTP=yes\\nNTPSynchronized=yes\\n'")
    box.write("/ruleset.json", json.dumps(ACCEPTS))
    box.command("nft", f"/bin/cat {base}/ruleset.json")
    return box


def cpu_box(base: Path) -> Box:
    """No GPU at all."""
    return plain(base, host="plain", cpu="AMD EPYC 7763", kernel="6.12.57", system="Debian GNU/Linux 13 (trixie)")


def nvidia_box(base: Path, nvml: Path) -> Box:
    """An RTX 3090 with its driver, its CDI specification and all the files that it names."""
    box = plain(base, host="dankserver", cpu="AMD Ryzen 9 5950X 16-Core Processor", kernel="6.12.57")
    box.environ["LD_LIBRARY_PATH"] = str(nvml)
    box.tree.pci("0000:01:00.0", pci.NVIDIA, 0x2204, driver="nvidia")
    box.write("/proc/driver/nvidia/version", MODULE.format(DRIVER))
    box.write("/etc/cdi/nvidia.yaml", CDI)
    box.write("/usr/bin/nvidia-cdi-hook", "")
    for library in ("libcuda.so", "libnvidia-ml.so"):
        box.write(f"{LIBRARIES}/{library}.{DRIVER}", "")
    for node in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        box.write(f"/dev/{node}", "").chmod(0o666)
    box.command("nvidia-ctk", 'echo "NVIDIA Container Toolkit CLI version 1.18.2"')
    return box


def strix_box(base: Path) -> Box:
    """A Ryzen AI Max+ 395 with 128 GB: kernel, firmware and GTT ceiling as they should be."""
    box = plain(base)
    strix_halo(box.tree)
    box.write("/etc/os-release", 'PRETTY_NAME="Fedora Linux 43"\nID=fedora\n')
    box.write("/proc/cmdline", "root=UUID=abc ro quiet ttm.pages_limit=29360128\n")
    box.write("/sys/module/ttm/parameters/pages_limit", "29360128\n")
    box.write("/sys/class/drm/card1/device/fw_version/mes_fw_version", "0x00000080\n")
    box.write("/sys/fs/selinux/enforce", "1")
    box.write("/sys/fs/selinux/booleans/container_use_devices", "1 1")
    for node in ("kfd", "dri/renderD128"):
        (base / "dev" / node).chmod(0o660)
        if os.geteuid() != 0:
            (base / "dev" / node).chmod(0o666)
    return box

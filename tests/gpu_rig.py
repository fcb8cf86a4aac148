"""A machine with NVIDIA GPUs for a whole daemon: sysfs, CDI and the kernel's log as files, and a small library that
plays NVML. Containers get their GPUs by a real CDI specification; what engines compute on is the CPU.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

from hosts import pci
from hosts.roots import VARIABLE
from tests.fakelibs import build
from tests.hosts.trees import GIB, Tree, write

ADDRESSES = ("0000:01:00.0", "0000:02:00.0")
ONE, TWO = ADDRESSES
CDI = Path("/etc/cdi")
LOCKED = "gpu_locked"
"""The issue that another daemon of this machine has a GPU of the same address: that of a test beside this one."""


class Rig:
    """A host with one or two RTX 3090s, as its daemon sees it; `play` sets what the driver does from now on."""

    def __init__(self, folder: Path, gpus: int = 1) -> None:
        self.uuids = [f"GPU-{uuid.uuid4()}" for _ in range(gpus)]
        devices = "".join(f'- name: {name}\n  containerEdits:\n    env: ["A=b"]\n' for name in self.uuids)
        spec = f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n{devices}"
        self.tree = Tree(folder / "root").machine(total_kib=64 * GIB // 1024, host="dankserver")
        for where in ADDRESSES[:gpus]:
            self.tree.pci(where, pci.NVIDIA, 0x2204, driver="nvidia")
        write(self.tree.base / "etc/cdi/nvidia.yaml", spec)
        CDI.mkdir(exist_ok=True)
        self._for_podman = CDI / f"outrider-test-{self.uuids[0]}.yaml"
        self._for_podman.write_text(spec)
        self._scene = folder / "scene"
        self.library = build.nvml(folder / "nvml") / "libnvidia-ml.so.1"
        self.play()
        self.kmsg = self.tree.base / "dev/kmsg"
        self.kmsg.parent.mkdir(parents=True)
        os.mkfifo(self.kmsg)
        self._kernel = os.open(self.kmsg, os.O_RDWR)
        self._sequence = 0

    def play(self, *lines: str) -> None:
        """Lines as `tests/fakelibs/nvml.c` reads them; what it was told before is over."""
        names = (f"UUID_{at}={name}" for at, name in enumerate(self.uuids))
        new = self._scene.with_suffix(".new")
        fixed = (f"COUNT={len(self.uuids)}", *names, "PROCESSES=none")
        new.write_text("".join(f"{line}\n" for line in (*fixed, *lines)))
        new.replace(self._scene)

    def say(self, text: str) -> None:
        """A line of the kernel's log."""
        self._sequence += 1
        os.write(self._kernel, f"4,{self._sequence},{self._sequence},-;{text}\n".encode())

    def given(self, inspected: str) -> list[str]:
        """The addresses of the GPUs whose names a container was created with, by what Podman says of it."""
        text = json.dumps(json.loads(inspected)[0])
        return [where for where, name in zip(ADDRESSES, self.uuids, strict=False) if name in text]

    @property
    def environ(self) -> dict[str, str]:
        return {
            VARIABLE: str(self.tree.base),
            "LD_LIBRARY_PATH": str(self.library.parent),
            "FAKE_NVML_FILE": str(self._scene),
        }

    def close(self) -> None:
        os.close(self._kernel)
        self._for_podman.unlink()

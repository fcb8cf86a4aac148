"""A whole daemon on a Strix Halo that is made of files: what it sees, shows, and hears from the kernel."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import build
from tests.hosts.test_amd_sample import halo_metrics
from tests.hosts.trees import GIB, Tree, fdinfo, sensors, write
from tests.stack_fixture import MakeStack

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
PCI = "0000:c5:00.0"


def test_a_strix_halo_from_its_files(make_stack: MakeStack, tmp_path: Path) -> None:
    tree = build(Tree(tmp_path / "host"), "f5")
    card = tree.base / "sys/class/drm/card1/device"
    for name, text in {**sensors(), "gpu_metrics": halo_metrics(clock=2900).decode("latin-1")}.items():
        write(card / name, text.encode("latin-1"))
    write(card / "fw_version/mes_fw_version", "0x00000083\n")
    tree.process(160210, "ollama")
    tree.process(10, "gnome-shell", drm={"7": fdinfo(1, vram_kib=2048, slot=PCI)})
    kmsg = tree.base / "dev/kmsg"
    os.mkfifo(kmsg)
    kernel = os.open(kmsg, os.O_RDWR | os.O_NONBLOCK)
    fcntl.fcntl(kernel, fcntl.F_SETFL, os.O_DIRECT)  # each write is a record, as the kernel's are
    stack = make_stack(gateway=False, environ={"OUTRIDER_HOST_ROOT": str(tree.base)})
    try:
        with stack:
            host = stack.get("/api/v1/host")
            assert (host["host"], host["accelerators"][0]["pci"]) == ("dankclaw", PCI)
            assert "firmware_bad" in [p["code"] for p in host["problems"]]

            def sample() -> Any:
                found = stack.get("/api/v1/telemetry?limit=1")
                return found[0] if found else None

            first = stack.wait(sample, what="a sample")
            (gpu,) = first["accelerators"]
            assert (gpu["memory_used"], gpu["others"], gpu["clock_mhz"]) == (3883843584, 3883843584 + 2048 * 1024, 2900)
            assert [(o["name"], o["desktop"]) for o in first["others"]] == [("ollama", False), ("gnome-shell", True)]

            write(card / "mem_info_gtt_used", f"{30 * GIB}\n")
            write(card / "hwmon/hwmon4/temp1_input", "88000\n")
            stack.wait(lambda: sample()["accelerators"][0]["memory_used"] == 30 * GIB, what="a later sample")
            (fresh,) = stack.wait(
                lambda: [a for a in stack.get("/api/v1/host")["accelerators"] if a["temperature_c"] == 88.0],
                what="facts that follow",
            )
            assert fresh["memory_free"] == 118111600640 - 30 * GIB
            later = stack.get(f"/api/v1/telemetry?since={first['sequence']}")
            assert later[0]["sequence"] > first["sequence"]

            os.write(kernel, f"3,1,1,-;amdgpu {PCI}: amdgpu: GPU reset begin!\n".encode())
            stack.wait(
                lambda: [i for i in stack.get("/api/v1/issues") if i["subject"] == PCI], what="an issue of the GPU"
            )

            command = [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), "top"]
            said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
            assert "AMD Radeon 8060S" in said
            assert "gnome-shell" in said
            with stack.api() as api:
                metrics = api.get("/metrics").text
            assert f'outrider_accelerator_temperature_celsius{{pci="{PCI}"}} 88.0' in metrics
    finally:
        os.close(kernel)

"""Fixes are commands: those for the kernel's command line, typed on a file, for each way a boot loader has it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.doctor import fixes
from orchestrator.doctor.machine import System


@pytest.mark.parametrize(
    ("system", "file", "before", "after"),
    [
        (
            System(("debian",)),
            "/etc/default/grub",
            'GRUB_CMDLINE_LINUX="quiet amdgpu.gttsize=1 x"\n',
            'GRUB_CMDLINE_LINUX="ttm.pages_limit=7 quiet  x"\n',
        ),
        (
            System(("debian",), kernel_cmdline=True),
            "/etc/kernel/cmdline",
            "root=UUID=1 amdgpu.gttsize=1 quiet\n",
            "root=UUID=1  quiet ttm.pages_limit=7\n",
        ),
    ],
)
def test_a_kernel_argument_is_put_where_the_boot_loader_reads_it(
    tmp_path: Path, system: System, file: str, before: str, after: str
) -> None:
    *edits, rebuild, reboot = fixes.kernel_argument(system, add="ttm.pages_limit=7", remove="amdgpu.gttsize")
    written = tmp_path / "file"
    written.write_text(before)
    for edit in edits:
        assert file in edit
        subprocess.run(["/bin/sh", "-ec", edit.replace(file, str(written))], check=True, timeout=10)
    assert written.read_text() == after
    assert rebuild.split()[0] in ("update-grub", "kernel-install")
    assert reboot == "systemctl reboot"

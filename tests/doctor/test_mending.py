"""The commands mend: typed as they stand, on the tree instead of the machine, the fault is gone and none is new."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.doctor.boxes import Box
from tests.doctor.conftest import Make
from tests.doctor.faults import FAULTS, Planted

_PATH = re.compile(r"(?<![\w/.])/(?:var/)?(etc|run|dev|sys|proc|usr/share/containers)/")
_OURS = ("printf", "mkdir", "sed", "rm", "chmod", "mv", "echo", "grep")
"""What may be run here. The rest (systemctl, package managers, reboots) is for the machine itself."""
MENDED = {
    "gtt_parameter-deprecated",
    "cdi_folder",
    "cdi_double",
    "cdi_unreadable",
    "cdi_broken",
    "legacy_hook",
    "device_mode",
    "ulimit_low-unit",
    "no_proxy",
    "no_proxy-mirror",
    "proxy_missing",
    "hsa_override",
    "storage_driver",
}


def type_in(box: Box, command: str) -> None:
    """On the tree: its paths, its fake commands first, and the shell's own."""
    here = _PATH.sub(lambda match: f"{box.base}/{match[1]}/", command)
    path = f"{box.base}/bin:/usr/bin:/bin"
    done = subprocess.run(["/bin/sh", "-c", here], env={"PATH": path}, capture_output=True, timeout=20, check=False)
    assert done.returncode == 0, (here, done.stderr)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.id in MENDED], ids=lambda fault: fault.id)
def test_the_fix_mends(make: Make, fault: Planted) -> None:
    box = make(fault.kind)
    fault.plant(box)
    (finding,) = box.report().findings
    for command in finding.fix:
        if command.split()[0] in _OURS:
            type_in(box, command)
    if fault.code == "storage_driver":
        assert box.at("/etc/containers/storage.conf").read_text() == '[storage]\ndriver = "overlay"\n'
        return
    left = {found.code for found in box.report().findings}
    assert left <= {"proxy_unreachable"} if fault.code == "proxy_missing" else left == set()

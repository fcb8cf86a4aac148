"""The bundle: everything an owner's bug needs, and nothing that names the owner."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.doctor import bundle, rules
from orchestrator.doctor.findings import judge
from orchestrator.doctor.machine import Who
from orchestrator.doctor.sources import kernel_log
from orchestrator.doctor.sources.look import Unseen
from tests.doctor.boxes import UUID, Box
from tests.doctor.conftest import Make, Outrider

MINE = (
    "dankserver",
    "grace",
    "hopper",
    "hunter2",
    "proxy7",
    "mirror9",
    "192.168.7",
    "52:54:00",
    UUID.lower(),
    "0a3407de",
    "PF3XYZ",
    "hf_abcdefgh",
)
LOG = "\n".join(
    (
        "6,1,1000000,-;Linux version 6.12",
        "4,2,2500000,-;NVRM: GPU 0000:01:00.0 on dankserver of grace (192.168.7.20, 52:54:00:12:34:56)",
        "3,3,9000000,-;NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        " SUBSYSTEM=pci",
        "6,4,9500000,-;usb 1-1: SerialNumber: PF3XYZ12",
    )
)


@pytest.fixture
def box(make: Make) -> Box:
    """A machine that is full of names."""
    box = make("nvidia")
    box.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\ngrace:x:1000:1000:Grace Hopper:/home/hopper:/bin/sh\n")
    box.write("/etc/hostname", "dankserver\n")
    box.write(
        "/proc/cmdline", "root=UUID=0a3407de-014b-458b-b5c1-848e92a327a3 ro ip=192.168.7.20 hub.token=hf_abcdefgh12\n"
    )
    box.write("/dev/kmsg", LOG)
    box.write(
        "/etc/systemd/system/podman.service.d/proxy.conf",
        "[Service]\nEnvironment=HTTPS_PROXY=http://grace:hunter2@proxy7.example.org:3128\n"
        "Environment=NO_PROXY=mirror9.example.org\n",
    )
    box.write("/etc/modprobe.d/x.conf", "options nvidia NVreg_Name=/home/hopper/x\n")
    box.wanted = replace(box.wanted, registries=("mirror9.example.org:5000",))
    box.who = Who(0, 0, (0,), "grace")
    box.environ |= {"SUDO_USER": "grace", "HF_TOKEN": "hf_abcdefgh12", "HOME": "/home/hopper"}
    box.places = {"state": "/home/hopper/outrider", "temporary": "/var/tmp"}
    box.podman(host__hostname="dankserver", store__graphRoot="/home/hopper/storage")
    return box


def gathered(box: Box) -> dict[str, Any]:
    question, machine = box.question(), box.look()
    return bundle.gather(question, machine, judge(machine, rules.load()), lambda: iter([{"model": "m"}]))


def test_it_names_nobody_and_tells_everything(box: Box) -> None:
    document = gathered(box)
    text = json.dumps(document).lower()
    assert [word for word in MINE if word.lower() in text] == []
    assert set(document) == {
        "bundle", "outrider", "python", "facts", "doctor", "machine", "versions", "podman_info", "cdi", "kernel_log",
        "plans",
    }  # fmt: skip
    assert "host" not in document["facts"]
    (gpu,) = document["facts"]["accelerators"]
    assert (gpu["driver"], gpu["pci"], gpu["uuid"]) == ("580.95.05", "0000:01:00.0", "gpu-1")
    assert gpu["devices"] == ["nvidia.com/gpu=gpu-1"]
    assert "name: gpu-1\n" in document["cdi"]["/etc/cdi/nvidia.yaml"]
    assert document["machine"]["kernel"]["command_line"][0] == "root=UUID=uuid-1"
    assert document["machine"]["groups"]["render"] == 993
    first, second = document["kernel_log"]
    assert re.fullmatch(r"\[    2.500000\] NVRM: GPU 0000:01:00.0 on host-\d of user-1 \(ip-1, mac-1\)", first)
    assert second == (
        "[    9.000000] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    )
    assert document["versions"]["podman"] == "podman version 5.6.2"
    assert (
        document["podman_info"]["store"]["graphRoot"] == "/home/user-2/storage"
    )  # the folder is `hopper`, the user `grace`
    assert document["plans"] == [{"model": "m"}]
    assert {finding["code"] for finding in document["doctor"]["findings"]} >= {"proxy_unreachable", "no_proxy"}


def test_what_cannot_be_had_is_said(box: Box) -> None:
    for path in (box.base / "bin").iterdir():
        path.unlink()
    box.remove("/dev/kmsg")
    document = gathered(box)
    assert document["podman_info"] == {"error": "there is no command `podman`"}
    assert document["kernel_log"] == ["(the kernel's log cannot be read: No such file or directory)"]
    assert "podman" not in document["versions"]


def test_planning_may_not_take_long(monkeypatch: pytest.MonkeyPatch, box: Box) -> None:
    monkeypatch.setattr(bundle, "_PLAN_SECONDS", -1.0)

    def endless() -> Iterator[str]:
        while True:
            yield "plan"

    question, machine = box.question(), box.look()
    document = bundle.gather(question, machine, judge(machine, ()), endless)
    assert document["plans"] == ["plan", "(no more: three seconds are over)"]


def test_the_file_is_private_and_whole(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text("old")
    assert bundle.write({"a": "\ud800 ä"}, file) == file.stat().st_size
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text())["a"].endswith(" ä")
    with pytest.raises(OSError, match="No such file"):
        bundle.write({}, tmp_path / "no" / "r.json")
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    with pytest.raises(ValueError, match="Circular"):
        bundle.write(loop, file)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        bundle.write({}, tmp_path / "folder")
    assert sorted(os.listdir(tmp_path)) == ["folder", "r.json"]


def test_the_kernels_log_of_this_machine(box: Box) -> None:
    """The real device, where it may be read: it ends, and every line is about what was asked for."""
    from orchestrator.doctor.sources.look import Look  # noqa: PLC0415

    try:
        lines = kernel_log.lines(Look())
    except Unseen:
        lines = []
    assert len(lines) <= 200
    assert all(line.startswith("[") for line in lines)


def test_on_this_machine(tmp_path: Path, outrider: Outrider) -> None:
    said = outrider("probe", "--report", str(tmp_path / "r.json"), "--json")
    assert said.code == 0
    first, second = said.err.splitlines()
    assert first.startswith(f"wrote {tmp_path}/r.json")
    assert "look at it yourself before you send it" in second
    document = json.loads((tmp_path / "r.json").read_text())
    answer = json.loads(said.out)
    assert answer["findings"] == len(document["doctor"]["findings"])
    assert document["plans"]
    assert {plan.get("model") for plan in document["plans"]} >= {"smollm2"}


def test_a_file_that_cannot_be_written(tmp_path: Path, outrider: Outrider) -> None:
    said = outrider("probe", "--report", str(tmp_path / "no" / "r.json"))
    assert said.code == 2
    assert "No such file or directory" in said.err
    said = outrider("probe", str(tmp_path / "r.json"))
    assert said.code == 2
    assert "with --report only" in said.err

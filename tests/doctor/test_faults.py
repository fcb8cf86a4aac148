"""Each planted fault is found, with evidence and a command, and nothing else is."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest

from orchestrator.doctor import rules
from tests.doctor.conftest import Make
from tests.doctor.faults import FAULTS, Planted

ROOT = os.geteuid() == 0
NEED_ROOT = {"disk_low"}  # mounts


def planted() -> list[object]:
    return [
        pytest.param(
            fault,
            id=fault.id,
            marks=[
                pytest.mark.skipif(
                    fault.code in NEED_ROOT and not ROOT,
                    reason="only root may mount: until 2027-12-31 on such machines",
                )
            ],
        )
        for fault in FAULTS
    ]


@pytest.mark.parametrize("fault", planted())
def test_a_planted_fault_is_found_and_no_other(make: Make, fault: Planted) -> None:
    box = make(fault.kind)
    fault.plant(box)
    report = box.report()
    assert [finding.code for finding in report.findings] == [fault.code], report.findings
    (finding,) = report.findings
    assert fault.words in finding.finding
    assert finding.severity == fault.severity
    assert report.healthy is (fault.severity == "warning")
    assert finding.evidence
    assert finding.source
    assert any(fault.fix in command for command in finding.fix), finding.fix
    for command in finding.fix:
        assert shlex.split(command, comments=True), command
        assert "`" not in command
        assert "\n" not in command
        subprocess.run(["/bin/sh", "-n", "-c", command], check=True, timeout=20)
    rule = fault.rule or fault.code
    assert box.report([rule]).findings == report.findings  # asked alone it says the same
    assert "geheim" not in str(report.to_dict())


def test_every_rule_has_a_planted_fault() -> None:
    assert {rule.code for rule in rules.load()} == {fault.rule or fault.code for fault in FAULTS}


def test_there_are_many_of_them() -> None:
    assert len({fault.code for fault in FAULTS}) >= 40
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)

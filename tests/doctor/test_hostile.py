"""Sources that hang, fail, lie or say too much: the doctor is done in time and says what it does not know."""

from __future__ import annotations

import functools
import os
import threading
import time
from pathlib import Path

import pytest

from orchestrator.doctor import collect as collecting
from orchestrator.doctor import rules
from orchestrator.doctor.collect import Question, collect
from orchestrator.doctor.findings import Severity, judge
from orchestrator.doctor.machine import Machine
from orchestrator.doctor.sources import cdi, people
from orchestrator.doctor.sources import look as looking
from orchestrator.doctor.sources.look import Look, Unseen, run
from tests.doctor.boxes import Box
from tests.doctor.conftest import Make
from tests.waiting import until_sync

GARBAGE = (b"", b"\0" * 64, b"\xff\xfe\x00garbage", b"x" * 70000, b"-1\n", b"=\n[\n{", b"[Service\nEnvironment='\n")
FILES = (
    "/proc/cmdline",
    "/proc/swaps",
    "/proc/self/limits",
    "/proc/sys/vm/max_map_count",
    "/proc/driver/nvidia/version",
    "/etc/os-release",
    "/etc/group",
    "/etc/passwd",
    "/etc/modprobe.d/x.conf",
    "/etc/environment",
    "/etc/containers/containers.conf",
    "/etc/systemd/system.conf",
    "/etc/systemd/system/podman.service",
    "/etc/cdi/a.yaml",
    "/etc/cdi/b.json",
    "/run/cdi/c.yml",
    "/sys/fs/selinux/enforce",
    "/sys/fs/selinux/booleans/container_use_devices",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/proc/77/comm",
    "/proc/77/fdinfo/3",
)
COMMANDS = ("podman", "systemctl", "timedatectl", "nft", "iptables-save", "nvidia-ctk")


@pytest.fixture
def box(make: Make) -> Box:
    box = make("nvidia")
    box.wanted = box.wanted.__class__(exposed=(("the gateway", 8080),), low_water=0.0)
    return box


@pytest.mark.parametrize("content", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_every_file(box: Box, content: bytes) -> None:
    for path in FILES:
        box.write(path, content)
    report = judge(box.look(), rules.load())
    assert all("the rule failed" not in skipped.why for skipped in report.not_checked), report.not_checked
    assert all("Error" not in skipped.why.split(":")[1] for skipped in report.not_checked), report.not_checked


def test_fifos_and_folders_where_files_should_be(box: Box) -> None:
    for number, path in enumerate(FILES):
        place = box.at(path)
        if place.exists():
            place.unlink()
        place.parent.mkdir(parents=True, exist_ok=True)
        if number % 2:
            place.mkdir()
        else:
            os.mkfifo(place)
    begun = time.monotonic()
    machine = box.look()
    assert time.monotonic() - begun < 10
    assert "kernel" in machine.unseen
    broken = {file.path for file in machine.cdi.files if file.broken}
    assert {"/etc/cdi/a.yaml", "/etc/cdi/b.json", "/var/run/cdi/c.yml"} <= broken | {"/etc/cdi/b.json"}


@pytest.mark.parametrize(
    "script",
    [
        "exit 3",
        "echo",
        "echo '{'",
        "echo '[1]'",
        "echo 'null'",
        'echo \'{"host": [], "store": 4, "version": "x", "nftables": {"chain": []}}\'',
        "printf '\\377\\376\\000'",
        "kill -9 $$",
        "echo NTPSynchronized=perhaps",
    ],
)
def test_commands_that_say_nonsense(box: Box, script: str) -> None:
    for name in COMMANDS:
        box.command(name, script)
    report = judge(box.look(), rules.load())
    assert all("the rule failed" not in skipped.why for skipped in report.not_checked), report.not_checked
    assert not [f for f in report.findings if f.code in {"firewall_closed", "clock"}]


def test_no_command_at_all(box: Box) -> None:
    for path in (box.base / "bin").iterdir():
        path.unlink()
    report = judge(box.look(), rules.load())
    assert {f.code for f in report.findings} == {"podman_missing"}
    assert {skipped.code for skipped in report.not_checked} == {"runtime_broken", "firewall_closed"}


def test_commands_that_hang_are_ended_with_their_children(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them starts a child that keeps the pipe open; none is alive afterwards, and the rest is known."""
    monkeypatch.setattr(looking.Look, "ask", _impatient(looking.Look.ask))
    for name in COMMANDS:
        box.command(name, f"/bin/sleep 600 & echo $! > {box.base}/pid-{name}; echo $$ >> {box.base}/pid-{name}; wait")
    begun = time.monotonic()
    report = judge(box.look(), rules.load())
    assert time.monotonic() - begun < 8
    why = {skipped.code: skipped.why for skipped in report.not_checked}
    assert "did not answer within" in why["firewall_closed"]
    (finding,) = report.findings
    assert finding.code == "podman_missing"
    assert "did not answer within" in finding.finding
    pids = [int(pid) for path in box.base.glob("pid-*") for pid in path.read_text().split()]
    assert len(pids) >= 8
    for pid in pids:
        until_sync(functools.partial(_gone, pid), 5.0, f"the end of process {pid}")


def _impatient(ask: object) -> object:
    def quick(self: Look, *words: str, seconds: float = 3.0, **more: object) -> object:
        return ask(self, *words, seconds=0.3, **more)  # type: ignore[operator]

    return quick


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_command_that_never_stops_talking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "_MOST_OUTPUT", 100_000)
    with pytest.raises(Unseen, match="more than 100000 bytes"):
        run(["/bin/sh", "-c", "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"], {}, 5.0)
    with pytest.raises(Unseen, match="cannot be run"):
        run([str(tmp_path)], {}, 1.0)
    assert run(["/bin/sh", "-c", "echo a; echo b >&2; exit 4"], {}, 5.0) == looking.Answer(4, "a\n", "b\n")


def test_a_source_that_hangs_or_breaks_leaves_the_others(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(cdi, "cdi", broken)
    release = threading.Event()
    monkeypatch.setattr(people, "accounts", lambda _: release.wait(30))
    monkeypatch.setattr(collecting, "DEADLINES", {"accounts": 0.05})
    try:
        machine = collect(box.question())
    finally:
        release.set()
    assert machine.unseen == {"cdi": "ZeroDivisionError: a defect", "accounts": machine.unseen["accounts"]}
    assert "no answer within 0.05 s" in machine.unseen["accounts"]
    report = judge(machine, rules.load())
    assert report.findings == ()
    assert {s.code for s in report.not_checked} >= {"cdi_stale", "group_missing"}


def test_a_rule_with_a_defect_is_one_that_was_not_asked() -> None:
    from dataclasses import replace  # noqa: PLC0415

    def broken(_: Machine) -> list[object]:
        raise ZeroDivisionError("a defect")

    rule = replace(rules.load()[0], check=broken)  # type: ignore[arg-type]
    report = judge(Machine(), [rule])
    assert report.findings == ()
    assert report.not_checked[0].why == "the rule failed: ZeroDivisionError: a defect"


def test_an_empty_machine_has_no_findings_about_what_is_not_known(tmp_path: Path) -> None:
    from hosts.roots import Roots  # noqa: PLC0415

    look = Look(Roots.under(tmp_path), {"PATH": str(tmp_path)})
    report = judge(collect(Question(look=look, places={"state": "/var/lib"}, now=0.0)), rules.load())
    assert {f.code for f in report.findings} <= {"podman_missing", "clock", "meminfo_unreadable", "disk_low"}
    assert [f for f in report.findings if f.severity is Severity.PROBLEM]
    assert report.not_checked

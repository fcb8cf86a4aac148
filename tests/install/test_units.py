"""The units, as systemd reads them: nothing unknown in them, and little that they could do to the machine."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from api.install import layout

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
HIGHEST_EXPOSURE = 5.0
TARGETS = ("basic", "local-fs", "multi-user", "network", "network-online", "paths", "remote-fs", "shutdown")
MORE_TARGETS = ("slices", "sockets", "sysinit", "time-sync", "timers", "umount")
TARGET = "[Unit]\nDescription=in place of the system's\n"
SOCKET = f"{TARGET}[Socket]\nListenStream=%t/podman/podman.sock\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A root with all that the units name: systemd looks for it, and for the programs."""
    units = tmp_path / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    for name in (*TARGETS, *MORE_TARGETS):
        (units / f"{name}.target").write_text(TARGET)
    (units / "podman.socket").write_text(SOCKET)
    (units / "podman.service").write_text("[Service]\nExecStart=/bin/kill -l\n")
    for program in ("opt/outrider/current/bin/outrider", "bin/kill"):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    for unit in layout.UNITS:
        shutil.copy(UNITS / unit, tmp_path / "etc/systemd/system")
    return tmp_path


def verify(machine: Path, unit: str) -> tuple[int, str]:
    """systemd's verdict: an unknown key is only said, so silence counts and not the exit code alone."""
    done = subprocess.run(
        ["systemd-analyze", "verify", f"--root={machine}", "--man=no", unit],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stderr + done.stdout


@pytest.mark.parametrize("unit", layout.UNITS)
def test_systemd_has_nothing_to_say(machine: Path, unit: str) -> None:
    assert verify(machine, unit) == (0, "")


@pytest.mark.parametrize(
    ("line", "code", "complaint"),
    [
        ("NoSuchKey=1", 0, "Unknown key 'NoSuchKey'"),
        ("WatchdogSec=soon", 0, "Failed to parse"),
        ("ExecStartPre=/no/such/program", 1, "/no/such/program"),
    ],
)
def test_the_check_sees_what_is_wrong(machine: Path, line: str, code: int, complaint: str) -> None:
    unit = machine / "etc/systemd/system/outrider.service"
    unit.write_text(unit.read_text().replace("[Service]\n", f"[Service]\n{line}\n"))
    found, said = verify(machine, unit.name)
    assert found == code
    assert complaint in said


@pytest.mark.parametrize("unit", layout.UNITS)
def test_little_is_exposed(unit: str) -> None:
    words = ["security", "--offline=true", "--no-pager", f"--threshold={HIGHEST_EXPOSURE * 10:.0f}", "--json=short"]
    done = subprocess.run(
        ["systemd-analyze", *words, str(UNITS / unit)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stdout
    exposure = sum(float(row["exposure"] or 0) for row in json.loads(done.stdout) if not row["set"])
    print(f"{unit}: {exposure:.1f} of what systemd-analyze counts is open")


def test_the_threshold_is_felt(tmp_path: Path) -> None:
    bare = tmp_path / "bare.service"
    bare.write_text("[Service]\nExecStart=/bin/true\n")
    words = ["security", "--offline=true", "--no-pager", f"--threshold={HIGHEST_EXPOSURE * 10:.0f}"]
    done = subprocess.run(["systemd-analyze", *words, str(bare)], capture_output=True, text=True, check=False)
    assert done.returncode == 1


def test_users_and_folders_are_understood(installed: Path, tmp_path: Path) -> None:
    """systemd-sysusers and systemd-tmpfiles themselves read the files, and make what the installer makes."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    for tool, conf in (("systemd-sysusers", layout.SYSUSERS), ("systemd-tmpfiles", layout.TMPFILES)):
        create = ["--create"] if tool == "systemd-tmpfiles" else []
        done = subprocess.run(
            [tool, f"--root={root}", *create, str(installed / conf.lstrip("/"))],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    users = [line.split(":") for line in (root / "etc/passwd").read_text().splitlines()]
    name, _, uid, gid, *_ = next(user for user in users if user[0] == "outrider")
    assert name == "outrider"
    for entry in layout.entries():
        there = root / entry.path.lstrip("/")
        if entry.target is not None:
            assert str(there.readlink()) == entry.target
            continue
        info = there.stat()
        owner = (int(uid) if entry.user == "outrider" else 0, int(gid) if entry.group == "outrider" else 0)
        assert (info.st_mode & 0o7777, info.st_uid, info.st_gid) == (entry.mode, *owner), entry.path

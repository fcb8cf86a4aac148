"""A process caps the log behind its own standard error; nobody else could."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.log_file import cut
from orchestrator.paths import find, prepare
from tests.ports import free_ports
from tests.waiting import until_sync

LINES = 3000
EACH = str(LINES // 3)
WRITER = """
import sys, threading
from pathlib import Path
from orchestrator.log_file import LogFile
path, limit, before = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
log = LogFile(path, lambda: limit)
exec(before)
def work(name):
    for n in range(int(sys.argv[4])):
        log.write(f"{name} {n:05} {'x' * 30}\\n")
    log.flush()
threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
[t.start() for t in threads]; [t.join() for t in threads]
print("plain", file=sys.stderr); print("out")
"""
BYTES = LINES * len("a 00000 " + "x" * 30 + "\n") + len("plain\nout\n")


def write(path: Path, limit: int, *, before: str = "", to: Path | None = None) -> None:
    with (to or path).open("ab") as file:
        command = [sys.executable, "-c", WRITER, str(path), str(limit), before, EACH]
        subprocess.run(command, stdout=file, stderr=file, check=True, timeout=30)


def lines(*files: Path) -> list[str]:
    return [line for file in files for line in file.read_text().splitlines()]


def test_a_full_log_is_begun_anew_and_no_line_is_lost(tmp_path: Path) -> None:
    log, older = tmp_path / "x.log", tmp_path / "x.log.1"
    log.touch(0o640)
    write(log, BYTES * 3 // 5)
    assert 0 < log.stat().st_size <= BYTES * 3 // 5
    assert older.stat().st_size <= BYTES * 3 // 5
    found = lines(older, log)
    assert sorted(found) == sorted(
        [f"{name} {n:05} {'x' * 30}" for name in "abc" for n in range(int(EACH))] + ["plain", "out"]
    )
    assert {"plain", "out"} <= set(lines(log))  # whatever writes to the descriptors themselves moves along
    assert log.stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.log", "x.log.1"]


def test_it_never_grows_beyond_the_cap_however_long_it_goes_on(tmp_path: Path) -> None:
    log, older = tmp_path / "x.log", tmp_path / "x.log.1"
    for _ in range(2):
        write(log, 10_000)
    assert log.stat().st_size <= 10_000
    assert older.stat().st_size <= 10_000
    text = older.read_text() + log.read_text()
    assert text.endswith(("plain\nout\n", "out\nplain\n"))


def test_another_file_and_a_pipe_are_left_alone(tmp_path: Path) -> None:
    log, other = tmp_path / "x.log", tmp_path / "other.log"
    log.write_text("somebody else's\n")
    write(log, 1000, to=other)
    assert len(lines(other)) == LINES + 2
    assert log.read_text() == "somebody else's\n"
    command = [sys.executable, "-c", WRITER, str(log), "1000", "", EACH]
    piped = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert len(piped.stderr.splitlines()) == LINES + 1
    assert log.read_text() == "somebody else's\n"


def test_a_log_that_was_moved_away_is_begun_anew_and_left_where_it_is(tmp_path: Path) -> None:
    log, moved = tmp_path / "x.log", tmp_path / "moved.log"
    write(log, BYTES * 3 // 5, before="path.rename(path.with_name('moved.log'))")
    assert len(lines(moved, log)) == LINES + 2
    assert not (tmp_path / "x.log.1").exists()


def test_where_no_new_file_can_be_had_the_old_one_is_cut_off(tmp_path: Path) -> None:
    log, blocked = tmp_path / "x.log", tmp_path / "x.log.new"
    (blocked / "in").mkdir(parents=True)  # stands for a disk without inodes
    write(log, 10_000)
    assert log.stat().st_size <= 10_000
    assert lines(log)
    assert not (tmp_path / "x.log.1").exists()


@pytest.mark.parametrize(("size", "cut_off"), [(1000, False), (1001, True), (5000, True)])
def test_somebody_elses_log_is_copied_and_emptied(tmp_path: Path, size: int, cut_off: bool) -> None:
    log = tmp_path / "podman.log"
    with log.open("ab") as writer:  # a Podman service of our own appends too
        writer.write(bytes(size - 1) + b"z")
        writer.flush()
        assert cut(log, 1000) is cut_off
        writer.write(b"more")
    assert log.stat().st_size == (4 if cut_off else size + 4)
    if cut_off:
        assert (tmp_path / "podman.log.1").stat().st_size == 1000
        assert (tmp_path / "podman.log.1").read_bytes().endswith(b"z")
    assert not cut(tmp_path / "none.log", 1)


def test_a_gateway_without_a_daemon_caps_its_log(tmp_path: Path) -> None:
    paths = prepare(find(state_dir=tmp_path / "s"))
    log = paths.logs / "gateway.log"
    log.write_bytes(b"x" * 65_500 + b"\n")
    paths.config_dir.mkdir()
    listen, ops_listen = (f"127.0.0.1:{port}" for port in free_ports(2))
    paths.config_file.write_text(
        f'[gateway]\nlisten = "{listen}"\nops_listen = "{ops_listen}"\n[logs]\ndaemon_bytes = 65536\n'
    )
    with log.open("ab") as file:
        command = [sys.executable, "-P", "-m", "api.gateway", "--state-dir", str(paths.state_dir)]
        gateway = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        until_sync(lambda: '"listening"' in log.read_text(), 20, "the gateway listens")
        assert (paths.logs / "gateway.log.1").stat().st_size == 65_501
        assert "xxx" not in log.read_text()
    finally:
        gateway.terminate()
        gateway.wait(20)
        shutil.rmtree(paths.run_dir)


def test_a_disk_that_takes_no_line_stops_nobody_who_logs() -> None:
    """A journal entry is logged where it is made: an error there would end whatever was being done."""
    program = (
        "import sys; from pathlib import Path; from orchestrator.log_file import LogFile\n"
        "log = LogFile(Path('/nowhere'), lambda: 1)\n"
        "for _ in range(1000): log.write('x' * 100 + '\\n'); log.flush()\n"
        "print('went on'); sys.stderr = None"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, text=True, timeout=30, check=False
        )
    assert done.stdout == "went on\n"

"""How `up` and `down` find, start and end Outrider's processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from api.cli import processes, supervise
from api.cli.options import Common, real_run_folder, resolve
from api.cli.processes import Kind, daemon_of, gateway_of
from orchestrator.errors import Conflict, OutriderError
from orchestrator.paths import Paths, find, prepare
from tests.waiting import until_sync

# Stands in for a daemon: a process whose command line names one. It ends as it is told to.
STAND_IN = """
import os, signal, sys
pid_file, how = sys.argv[2], sys.argv[3]
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(pid_file, "w").write(f"{os.getpid()}\\n")
if how == "crash":
    print("out of luck")
    sys.exit(3)
if how == "end":
    sys.exit(0)
signal.pause()
"""


@contextmanager
def stand_in(kind: Kind, how: str = "wait") -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", STAND_IN, f"outrider {kind.command}", str(kind.pid_file), how]
    with kind.log.open("ab") as log:
        child = subprocess.Popen(command, stdout=log)
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        child.wait(10)


@pytest.fixture
def ready(paths: Paths) -> Iterator[Paths]:
    made = prepare(paths)
    yield made
    shutil.rmtree(made.run_dir)  # may be a short folder beside the state folder


def test_a_process_is_known_by_its_pid_file_and_command_line(ready: Paths) -> None:
    kind = daemon_of(ready)
    assert kind.pid() is None
    with stand_in(kind) as child:
        until_sync(kind.pid, 10)
        assert kind.pid() == child.pid
        assert gateway_of(ready).pid() is None
    assert kind.pid() is None


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "mine", "999999999"])
def test_a_pid_file_that_names_nobody_of_ours(ready: Paths, text: str) -> None:
    kind = daemon_of(ready)
    kind.pid_file.write_text(text.replace("mine", str(os.getpid())))
    assert kind.pid() is None
    assert processes.end(kind, first=0, grace=1) is False


@pytest.mark.parametrize(("how", "code"), [("wait", -signal.SIGTERM), ("stubborn", -signal.SIGKILL)])
def test_ending_by_pid(ready: Paths, how: str, code: int) -> None:
    kind = daemon_of(ready)
    with stand_in(kind, how) as child:
        until_sync(kind.pid, 10)
        assert processes.end(kind, first=0, grace=0.2 if how == "stubborn" else 10) is True
        assert kind.pid() is None
        # `end` may have taken the exit status of what is its own child here
        assert child.wait(10) in {code, 0}


def test_one_that_goes_by_itself_is_not_signalled(ready: Paths) -> None:
    kind = daemon_of(ready)
    with stand_in(kind, "stubborn") as child:
        until_sync(kind.pid, 10)
        timer = threading.Timer(0.1, child.kill)
        timer.start()
        assert processes.end(kind, first=10, grace=0) is True
        timer.join()


def test_last_words(ready: Paths) -> None:
    kind = daemon_of(ready)
    assert kind.last_lines() == ""
    kind.log.write_text("\n".join(f"line {n}" for n in range(100)))
    error = processes.died(kind, 1)
    assert "line 99" in error.detail
    assert "line 80" not in error.detail
    assert str(kind.log) in str(error.hint)


def test_a_taken_port_is_said_with_its_key(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Conflict) as raised:
            processes.check_free([("[gateway] listen", f"127.0.0.1:{port}")], tmp_path / "outrider.toml")
    assert f"127.0.0.1:{port} cannot be listened on" in raised.value.detail
    assert f"give [gateway] listen another port in {tmp_path}/outrider.toml" in str(raised.value.hint)
    processes.check_free([("[gateway] listen", f"127.0.0.1:{port}")], tmp_path / "outrider.toml")


def test_children_know_the_folders(tmp_path: Path) -> None:
    options = resolve(tmp_path / "c", tmp_path / "s")
    where = ["--config", str(tmp_path / "c"), "--state-dir", str(tmp_path / "s")]
    assert processes.daemon_argv(options) == [sys.executable, "-P", "-m", "api.cli", *where, "daemon"]
    assert processes.gateway_argv(options) == [sys.executable, "-P", "-m", "api.gateway", *where]


def test_sockets_are_named_through_the_short_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    made = prepare(find(None, deep))
    try:
        assert real_run_folder(find(None, deep)).control_socket == made.control_socket
        assert len(str(made.control_socket)) < 100
        assert prepare(made) == prepare(find(None, deep)) == made  # each process prepares them anew
        assert stat.S_IMODE(made.run_dir.stat().st_mode) == 0o700
    finally:
        shutil.rmtree(made.run_dir)


class Spawner:
    """Starts stand-ins instead of daemons; `hows` says how each one ends."""

    def __init__(self, *hows: str) -> None:
        self.hows = list(hows)
        self.started: list[subprocess.Popen[bytes]] = []

    def __call__(self, kind: Kind, _options: Common) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", STAND_IN, f"outrider {kind.command}", str(kind.pid_file), self.hows.pop(0)]
        with kind.log.open("ab") as log:
            child = subprocess.Popen(command, stdout=log)
        self.started.append(child)
        return child


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "LOOK", 0.02)


@pytest.mark.usefixtures("quick")
def test_a_crashed_process_is_started_again(
    ready: Paths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spawn = Spawner("end")
    monkeypatch.setattr(processes, "spawn", spawn)
    kind = daemon_of(ready)
    with stand_in(kind, "crash") as child:
        watch = supervise.Watch(Common(ready, ()), {"daemon": child})
        watch.run()  # ends, for the second one ends by itself and there is no gateway
    assert len(spawn.started) == 1
    err = capsys.readouterr().err
    assert "the daemon ended with exit code 3; starting it again" in err
    assert "daemon and gateway were ended" in err


@pytest.mark.usefixtures("quick")
def test_one_that_crashes_again_and_again_is_given_up(ready: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = Spawner("crash", "crash")
    monkeypatch.setattr(processes, "spawn", spawn)
    with stand_in(daemon_of(ready), "crash") as child:
        watch = supervise.Watch(Common(ready, ()), {"daemon": child})
        with pytest.raises(OutriderError, match="out of luck"):
            watch.run()
    assert spawn.hows == []


def test_down_with_nothing_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "api.cli", "down", "--json", "--state-dir", str(tmp_path / "state")],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert json.loads(done.stdout) == {"ended": []}
    assert not (tmp_path / "state").exists()

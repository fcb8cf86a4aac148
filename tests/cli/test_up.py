"""`outrider up` and `outrider down` with the real daemon, gateway and Podman."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from api.cli import upcommand
from api.cli.options import resolve
from api.cli.processes import daemon_of, gateway_of
from containers import service
from orchestrator.paths import Paths, prepare
from tests.ports import free_ports
from tests.waiting import until_sync

LIMIT = 60


@dataclass
class Outrider:
    """The command line on folders and ports of its own."""

    paths: Paths
    ports: tuple[int, ...]
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "api.cli", "--state-dir", str(self.paths.state_dir), *words]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")
        self.children.append(child)
        return child

    def call(self, *words: str) -> tuple[int, str, str]:
        child = self.start(*words)
        out, err = child.communicate(timeout=LIMIT)
        return child.returncode, out, err

    def nothing_left(self) -> bool:
        kinds = daemon_of(self.paths), gateway_of(self.paths)
        sockets = [p for p in self.paths.run_dir.rglob("*") if p.is_socket()]
        return not sockets and not any(k.pid() for k in kinds) and service.running(self.paths.run_dir) is None


@pytest.fixture
def outrider(tmp_path: Path, test_cache: Path) -> Iterator[Outrider]:
    ports = free_ports(3)
    where = tmp_path / "s"
    (where / "config").mkdir(parents=True)
    (where / "config" / "outrider.toml").write_text(
        f'[gateway]\nlisten = "127.0.0.1:{ports[0]}"\nops_listen = "127.0.0.1:{ports[1]}"\n'
        f'[api]\nlisten = "127.0.0.1:{ports[2]}"\n'
    )
    (where / "cache").symlink_to(test_cache)  # holds the engine's wheel
    made = Outrider(prepare(resolve(None, where).paths), ports)
    try:
        yield made
    finally:
        for child in made.children:
            if child.poll() is None:
                child.kill()
            with child:
                pass  # takes its exit status and closes its pipes
        assert made.call("down")[0] == 0
        assert made.nothing_left()
        if made.paths.run_dir.is_relative_to(tempfile.gettempdir()):
            shutil.rmtree(made.paths.run_dir)


@pytest.mark.real
@pytest.mark.slow
def test_up_detached_again_and_again_and_down(outrider: Outrider) -> None:
    code, out, err = outrider.call("up", "--detach", "--no-model", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document == {
        "already_up": False,
        "base_url": f"http://127.0.0.1:{outrider.ports[0]}/v1",
        "api": f"http://127.0.0.1:{outrider.ports[2]}",
        "control_socket": str(outrider.paths.control_socket),
        "models": [],
    }
    pids = daemon_of(outrider.paths).pid(), gateway_of(outrider.paths).pid()
    assert None not in pids

    code, out, _ = outrider.call("up", "--no-model")
    assert code == 0
    assert out.startswith("Outrider is already up.")
    assert (daemon_of(outrider.paths).pid(), gateway_of(outrider.paths).pid()) == pids

    # SIGTERM to the daemon ends only the daemon, and `up` brings back what is missing
    daemon, gateway = daemon_of(outrider.paths), gateway_of(outrider.paths)
    assert pids[0] is not None
    os.kill(pids[0], signal.SIGTERM)
    until_sync(lambda: daemon.pid() is None, LIMIT)
    assert gateway.pid() == pids[1]
    code, out, _ = outrider.call("up", "--detach", "--no-model", "--json")
    assert code == 0
    assert json.loads(out)["already_up"] is False
    assert daemon.pid() not in {None, pids[0]}
    assert gateway.pid() == pids[1]

    code, out, _ = outrider.call("down", "--json")
    assert code == 0
    assert {"daemon", "gateway"} <= set(json.loads(out)["ended"])
    assert outrider.nothing_left()
    assert outrider.call("ps")[0] == 6


@pytest.mark.real
def test_ctrl_c_ends_it_all(outrider: Outrider) -> None:
    up = outrider.start("up", "--no-model")
    assert up.stderr is not None
    for line in up.stderr:
        if "Ctrl-C ends it all" in line:
            break
    up.send_signal(signal.SIGINT)
    _, err = up.communicate(timeout=LIMIT)
    assert up.returncode == 0, err
    assert outrider.nothing_left()


@pytest.mark.slow
@pytest.mark.real
def test_down_in_another_terminal_ends_up_too(outrider: Outrider) -> None:
    up = outrider.start("up", "--no-model")
    assert up.stderr is not None
    for line in up.stderr:
        if "Ctrl-C ends it all" in line:
            break
    assert outrider.call("down")[0] == 0
    assert until_sync(lambda: up.poll() is not None, 10)
    assert up.returncode == 0


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.slow
def test_a_daemon_that_dies_shows_its_last_words(outrider: Outrider) -> None:
    with (outrider.paths.state_dir / "daemon.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as another daemon would hold it
        code, out, err = outrider.call("up", "--detach", "--no-model")
    assert (code, out) == (1, "")
    assert "error[internal]: the daemon ended with exit code 4; its log ends with:" in err
    assert "error[conflict]" in err
    assert f"hint: the whole log is {outrider.paths.logs / 'daemon.log'}" in err
    assert outrider.nothing_left()


def test_a_port_in_use_is_refused_before_anything_starts(outrider: Outrider) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", outrider.ports[1]))
        taken.listen()
        code, out, err = outrider.call("up", "--detach")
    assert (code, out) == (4, "")
    assert f"127.0.0.1:{outrider.ports[1]} cannot be listened on" in err
    assert "ops_listen" in err
    assert outrider.nothing_left()


def test_a_bad_configuration_ends_up_before_anything_starts(outrider: Outrider) -> None:
    outrider.paths.config_file.write_text("[gatway]")
    code, _, err = outrider.call("up", "--detach")
    assert code == 1
    assert "did you mean 'gateway'?" in err
    outrider.paths.config_file.write_text("")


def test_what_it_says_to_type_next_goes_to_this_outrider(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"already_up": False, "base_url": "http://127.0.0.1:1/v1", "models": ["m"]}
    monkeypatch.setattr(sys, "argv", ["/somewhere/.venv/bin/outrider", "up"])
    monkeypatch.setenv("PATH", str(tmp_path))
    upcommand._tell(document, resolve(None, tmp_path / "s"))
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"  /somewhere/.venv/bin/outrider --state-dir {tmp_path / 's'} run m"
    (tmp_path / "outrider").touch(mode=0o755)
    upcommand._tell(document, resolve(None, None))
    assert capsys.readouterr().out.splitlines()[-1] == "  outrider run m"

"""Finding a Podman API, and starting one: real processes, and impostors where a fault is wanted."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from containers import proc, service, trial
from containers.errors import PodmanFailed, PodmanTimeout, PodmanUnreachable
from containers.podman import Podman
from tests.containers.conftest import frozen
from tests.waiting import until


@pytest.fixture
def run_dir(podman_run_dir: Path, podman_service: object) -> Iterator[Path]:
    """A short folder that knows the trial's verdict already."""
    with tempfile.TemporaryDirectory(prefix="or-s-") as folder:
        shutil.copy(podman_run_dir / trial.CACHE_FILE, folder)
        yield Path(folder)


@pytest.fixture
async def ours(run_dir: Path) -> AsyncIterator[service.Service]:
    found = await service.own(run_dir, limit=20)
    yield found
    await found.stop()


@pytest.fixture
def no_usual_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where the operator runs no Podman service."""
    monkeypatch.setattr(service, "_usual_sockets", tuple)


async def test_a_named_socket_that_answers_is_used_and_left_alone(ours: service.Service, tmp_path: Path) -> None:
    found = await service.ensure(tmp_path, socket=f"unix://{ours.socket}", limit=10)
    assert (found.socket, found.own, found.pid) == (ours.socket, False, None)
    await found.stop()
    assert await service.answers(ours.socket, 5)
    assert list(tmp_path.iterdir()) == []  # nothing of ours was started or written


async def test_a_named_socket_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PodmanUnreachable, match="configured") as error:
        await service.ensure(tmp_path, socket=str(tmp_path / "none.sock"), limit=1)
    assert error.value.hint is not None
    assert "systemctl" in error.value.hint


async def test_the_operators_socket_comes_first(
    ours: service.Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_usual_sockets", lambda: (str(tmp_path / "none.sock"), ours.socket))
    found = await service.ensure(tmp_path, socket=None, limit=10)
    assert (found.socket, found.own) == (ours.socket, False)


@pytest.mark.usefixtures("no_usual_sockets")
async def test_a_service_of_ours_is_started_found_again_and_ended(run_dir: Path) -> None:
    first = await service.ensure(run_dir, socket=None, limit=20)
    assert (first.own, first.socket) == (True, str(run_dir / "podman.sock"))
    assert first.pid is not None
    assert os.getsid(first.pid) == first.pid  # Ctrl-C in our terminal does not reach it
    assert os.stat(first.socket).st_mode & 0o077 == 0
    assert await service.ensure(run_dir, socket=None, limit=20) == first

    os.kill(first.pid, signal.SIGKILL)
    await until(lambda: service.running(run_dir) is None, 5)
    second = await service.ensure(run_dir, socket=None, limit=20)  # over the dead one's socket
    assert second.pid != first.pid
    podman = Podman(second.socket)
    assert await podman.ping()
    await podman.close()

    await second.stop()
    assert service.running(run_dir) is None
    assert proc.process(second.pid) is None
    assert not await service.answers(second.socket, 1)
    await second.stop()  # once more: fine


async def test_it_runs_in_its_own_folder(ours: service.Service, run_dir: Path) -> None:
    """Where its conmons leave files when the kernel ends a container for want of memory."""
    assert Path(f"/proc/{ours.pid}/cwd").resolve() == run_dir.resolve()


async def test_two_that_start_at_once_get_the_same(run_dir: Path) -> None:
    found = await asyncio.gather(*(service.own(run_dir, limit=20) for _ in range(5)))
    assert len({s.pid for s in found}) == 1
    await found[0].stop()


async def test_a_service_of_ours_that_hangs_is_replaced(ours: service.Service) -> None:
    async with frozen(ours.pid):
        again = await service.own(ours.run_dir, limit=4)
    assert again.pid != ours.pid
    assert await service.answers(again.socket, 5)


async def test_a_pid_of_somebody_else_is_not_ended(run_dir: Path) -> None:
    other = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    started = proc.process(other.pid)
    assert started is not None
    for start in (started.start, started.start - 5):  # the same process, and one that had the pid before
        (run_dir / service.PID_FILE).write_text(json.dumps({"pid": other.pid, "start": start}))
        assert service.running(run_dir) is None
        await service.Service(str(run_dir / "x"), own=True, pid=other.pid, run_dir=run_dir).stop()
        assert other.poll() is None
    other.communicate()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": -1, "start": 0}'])
async def test_a_broken_pid_file_means_nothing_runs(run_dir: Path, text: str) -> None:
    (run_dir / service.PID_FILE).write_text(text)
    assert service.running(run_dir) is None


@pytest.mark.usefixtures("no_usual_sockets")
async def test_without_podman_the_hint_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PodmanUnreachable, match="not installed") as error:
        await service.ensure(tmp_path, socket=None, limit=5)
    assert "apt-get install podman" in str(error.value)


def impostor(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `podman` that does as the script says, before all others in PATH."""
    program = folder / "podman"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


async def test_a_service_that_ends_at_once_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impostor(tmp_path, '[ "$1" = run ] && exit 0; echo "Error: no space left" >&2; exit 125', monkeypatch)
    with pytest.raises(PodmanUnreachable, match="no space left"):
        await service.own(tmp_path, limit=5)


async def test_a_service_that_never_answers_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = """mkfifo "$0.fifo"; echo $$ > "$0.number"; exec sh -c 'read x <"$0"' "$0.fifo" system service"""
    impostor(tmp_path, f'[ "$1" = run ] && exit 0; {wait}', monkeypatch)
    with pytest.raises(PodmanTimeout):
        await service.own(tmp_path, limit=1)
    assert proc.process(int((tmp_path / "podman.number").read_text())) is None


async def test_the_trial_finds_settings_that_work_here_and_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = await trial.settings(tmp_path, limit=30)
    assert (tmp_path / trial.CACHE_FILE).exists()
    impostor(tmp_path, "exit 1", monkeypatch)  # a changed Podman: the verdict is void
    with pytest.raises(PodmanFailed, match="cannot start a container"):
        await trial.settings(tmp_path, limit=30)
    (tmp_path / "podman").unlink()
    monkeypatch.setattr(trial, "_find", None)  # the first verdict still holds: nothing is tried
    assert await trial.settings(tmp_path, limit=30) == conf
    if conf is not None:
        assert "default_ulimits" in conf.read_text()


async def test_the_trial_goes_from_the_hosts_settings_to_runc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each candidate is refused by this Podman until the last: crun is tried before runc."""
    log = tmp_path / "log"
    for name in ("crun", "runc"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    impostor(
        tmp_path,
        f'cat "${{CONTAINERS_CONF:-/dev/null}}" >> {log}; echo -- >> {log}\n'
        'grep -q runc "${CONTAINERS_CONF:-/dev/null}" || { echo "Error: OCI runtime error" >&2; exit 126; }',
        monkeypatch,
    )
    monkeypatch.delenv("CONTAINERS_CONF", raising=False)
    conf = await trial.settings(tmp_path, limit=30)
    assert conf is not None
    assert 'runtime = "runc"' in conf.read_text()
    assert 'cgroup_manager = "cgroupfs"' in conf.read_text()
    assert 'events_logger = "file"' in conf.read_text()
    tried = log.read_text().split("--\n")
    assert tried[0] == ""  # the host's own, with nothing of ours
    assert "runtime" not in tried[1] + tried[2]
    assert 'runtime = "crun"' in tried[3]
    assert 'runtime = "runc"' in tried[4]


async def test_a_trial_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impostor(tmp_path, "exec sleep 60", monkeypatch)
    with pytest.raises(PodmanTimeout, match="trial"):
        await trial.settings(tmp_path, limit=0.3)


def test_the_trial_program_runs_and_ends_with_zero(tmp_path: Path) -> None:
    program = tmp_path / "end"
    program.write_bytes(trial.program())
    program.chmod(0o755)
    assert subprocess.run([program], timeout=5, check=False).returncode == 0
    assert len(trial.program("x86_64")) == 129
    assert trial.program("aarch64")[:4] == b"\x7fELF"
    with pytest.raises(PodmanFailed, match="sparc"):
        trial.program("sparc")

"""The daemon is root, the gateway another user: each reaches what it needs, and root follows no link of the other's."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.processes import Kind, gateway_of
from api.install import layout
from orchestrator import careful, engine
from orchestrator.errors import Conflict
from orchestrator.paths import Paths, find, prepare
from tests.install.test_prefix import RELEASE
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.stack import Stack
from tests.waiting import until_sync

USER = 64123
"""Nobody's uid: the kernel asks no file whether there is such a user."""


class TwoUsers(Stack):
    """A stack whose folders are as tmpfiles.d makes them, for a user of this number."""

    def __init__(self, podman_socket: str, release: Path) -> None:
        super().__init__(podman_socket)
        self._release = release
        for entry in layout.entries():
            if entry.target is None:
                path = self.place(entry.path)
                path.mkdir(parents=True, exist_ok=True)
                os.chown(path, *(USER if name == layout.USER else 0 for name in (entry.user, entry.group)))
                path.chmod(entry.mode)
        os.chown(self.paths.config_file, 0, USER)
        self.paths.config_file.chmod(0o640)

    def place(self, path: str) -> Path:
        """Where a folder of the system's is here."""
        for name, here in ((layout.RUN, self.paths.run_dir), (layout.STATE, self.folder)):
            if path.startswith(name):
                return here / path.removeprefix(name).lstrip("/")
        return self.paths.config_dir / path.removeprefix(layout.CONFIG).lstrip("/")

    def _run(self, command: str) -> subprocess.Popen[bytes]:
        if command != "gateway":
            return super()._run(command)
        words = [str(self._release / "bin/python"), "-P", "-m", "api.gateway", "--state-dir", str(self.folder)]
        with open(self.folder / "gateway.log", "ab") as log:
            return subprocess.Popen(
                words,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=USER,
                group=USER,
                extra_groups=[],
                cwd="/",
                env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
            )

    def modes(self) -> dict[str, tuple[int, int, int]]:
        infos = {e.path: self.place(e.path).stat() for e in layout.entries() if e.target is None}
        return {path: (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid) for path, info in infos.items()}


@pytest.fixture
def stack(podman_socket: str, embedded_image: str, test_models: Path, installed: Path) -> Iterator[TwoUsers]:
    (release,) = (installed / RELEASE).iterdir()
    made = TwoUsers(podman_socket, release)
    try:
        made.define("plain", test_models / g.TARGET, method="none")
        made.paths.models_d.joinpath("plain.toml").chmod(0o644)
        yield made
    finally:
        made.close()


@pytest.mark.real
@pytest.mark.timeout(120)
def test_root_and_the_gateways_user_serve_together(stack: TwoUsers) -> None:
    modes = stack.modes()
    with stack:
        stack.start("plain")
        assert stack.text("plain", 16) == recital(16)
        assert stack.gateway is not None
        assert Path(f"/proc/{stack.gateway.pid}").stat().st_uid == USER
        assert stack.modes() == modes, "nobody changed what the packager made"
        table = stack.paths.routing_table
        until_sync(table.exists, 10, "the table on disk")
        assert (table.stat().st_uid, stat.S_IMODE(table.stat().st_mode)) == (USER, 0o600)
        # the contract's names are there
        assert (stack.paths.run_dir / "gateway.pid").read_text().strip() == str(stack.gateway.pid)
        assert gateway_of(stack.paths).pid() == stack.gateway.pid
        assert (stack.paths.run_dir / "gateway.sock").is_socket()
        assert _as_user(f"open({str(stack.paths.run_dir / 'x')!r}, 'w')", stack) == "PermissionError"
        assert _as_user(f"open({str(stack.paths.token_file)!r})", stack) == "PermissionError"
        # one that was killed leaves a pid and a socket, of its own user
        stack.gateway.kill()
        stack.gateway.wait(30)
        stack.start_gateway()
        assert stack.text("plain", 16) == recital(16)

        # taken over, it puts a link where its socket was: root does not go where that leads
        with _listening(stack.folder / "victim.sock") as victim:
            stack.paths.gateway_socket.unlink()
            stack.paths.gateway_socket.symlink_to(stack.folder / "victim.sock")
            stack.want("plain", "stopped")
            stack.wait_state("plain", "stopped")
            victim.settimeout(0.1)
            with pytest.raises(TimeoutError):
                victim.accept()


def _as_user(attempt: str, stack: TwoUsers) -> str:
    """The name of the error that this gets the gateway's user."""
    code = f"try:\n  {attempt}\nexcept OSError as e:\n  print(type(e).__name__)\nelse:\n  print('done')"
    done = subprocess.run(
        [stack._release / "bin/python", "-I", "-c", code],
        capture_output=True,
        text=True,
        user=USER,
        group=USER,
        extra_groups=[],
        cwd="/",
        timeout=30,
        check=True,
    )
    return done.stdout.strip()


@contextlib.contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        made.listen()
        yield made


# root among the other user's files


@pytest.fixture
def paths(short: Path) -> Paths:
    """Folders as they are where the gateway has a user of its own."""
    made = prepare(find(state_dir=short / "s"))
    for folder in (made.engines, made.gateway_dir):
        os.chown(folder, USER, USER)
    return made


def test_a_planted_folder_is_not_opened_up(paths: Paths, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    socket_folder = engine.socket_folder(paths, "0" * 16)
    socket_folder.symlink_to(victim)
    with pytest.raises(Conflict, match="is no folder"):
        engine.make_socket_folder(paths, "0" * 16)
    socket_folder.unlink()
    socket_folder.mkdir()
    os.chown(socket_folder, USER, USER)
    with pytest.raises(Conflict, match="somebody else's folder"):
        engine.make_socket_folder(paths, "0" * 16)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o700
    engine.remove_files(paths, "0" * 16)
    assert stat.S_IMODE(engine.make_socket_folder(paths, "0" * 16).stat().st_mode) == 0o777


def test_a_planted_key_is_not_read(paths: Paths, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root's own")
    key = engine.key_file(paths, "0" * 16)
    key.symlink_to(secret)
    assert engine.read_key(paths, "0" * 16) is None, "it would go into the gateway's table"
    key.unlink()
    key.write_text("made up")
    os.chown(key, USER, USER)
    assert engine.read_key(paths, "0" * 16) is None
    key.unlink()
    engine.write_key(paths, "0" * 16, "true")
    assert engine.read_key(paths, "0" * 16) == "true"


def test_a_pid_file_speaks_for_its_owners_processes(paths: Paths, tmp_path: Path) -> None:
    kind = gateway_of(paths)
    words = ["python3", "-c", "import sys; sys.stdin.read()", "api.gateway"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as root:
        try:
            kind.pid_file.write_text(f"{root.pid}\n")
            until_sync(lambda: kind.pid() == root.pid, 10, "its command line is there")
            os.chown(kind.pid_file, USER, USER)
            assert kind.pid() is None, "root would end its own process for the asking"
            kind.pid_file.unlink()
            (tmp_path / "elsewhere").write_text(f"{root.pid}\n")
            kind.pid_file.symlink_to(tmp_path / "elsewhere")
            assert kind.pid() is None
            kind.pid_file.unlink()
            os.mkfifo(kind.pid_file)
            assert Kind("gateway", kind.pid_file, kind.log).pid() is None, "and nobody waits at a pipe"
        finally:
            root.kill()


def test_a_pinned_socket_stays_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with _listening(path) as first, _listening(tmp_path / "b.sock"):
        with careful.pinned_socket(path) as name, socket.socket(socket.AF_UNIX) as client:
            path.unlink()
            path.symlink_to(tmp_path / "b.sock")
            client.connect(name)
            first.settimeout(5)
            first.accept()[0].close()
        with pytest.raises(OSError, match="is no socket"), careful.pinned_socket(path):
            pass
    with pytest.raises(FileNotFoundError), careful.pinned_socket(tmp_path / "none"):
        pass


def test_prepare_keeps_what_a_packager_made(paths: Paths, short: Path) -> None:
    for folder, mode in ((paths.run_dir, 0o710), (paths.engines, 0o700), (paths.gateway_dir, 0o750)):
        os.chown(folder, 0 if folder == paths.run_dir else USER, USER)
        folder.chmod(mode)
    prepare(find(state_dir=short / "s"))
    assert stat.S_IMODE(paths.run_dir.stat().st_mode) == 0o710
    assert (paths.engines.stat().st_uid, paths.gateway_dir.stat().st_uid) == (USER, USER)
    paths.run_dir.chmod(0o777)
    prepare(find(state_dir=short / "s"))
    assert stat.S_IMODE(paths.run_dir.stat().st_mode) == 0o750, "never open to more than it may be"


def test_the_systems_state_folder_leads_to_its_run_folder(short: Path) -> None:
    state, run = short / "var", short / "run"
    state.mkdir()
    run.mkdir()
    (state / "run").symlink_to(run)
    made = prepare(find(state_dir=state))
    assert made.run_dir == run
    assert (run / "gateway.sock").readlink() == Path("gateway/gateway.sock")

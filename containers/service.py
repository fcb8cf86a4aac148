"""Find a Podman API to talk to, or make one.

A socket that answers is used as it is and never reconfigured: it is the operator's.
Where there is none, `podman system service` is started in a session of its own, so
that it outlives the daemon as containers do, with settings that were tried here
(`containers.trial`). What is started is written down and can be found, and ended,
by whoever comes next.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from containers import proc, trial
from containers.errors import PodmanTimeout, PodmanUnreachable

SOCKET_FILE = "podman.sock"
PID_FILE = "podman.pid"
LOG_FILE = "podman.log"
LOCK_FILE = "podman.lock"
STOP_LIMIT = 5.0
"""Seconds that our service gets to end after SIGTERM; it holds nothing that a SIGKILL would lose."""
_STEP = 0.02
_SHELL = "/bin/sh"


@dataclass(frozen=True, slots=True)
class Service:
    """A Podman API that answered. `pid` is known for one of our own only."""

    socket: str
    own: bool
    pid: int | None
    run_dir: Path

    async def stop(self) -> None:
        """End a service of our own; containers go on. Anybody else's is left alone."""
        if self.own:
            async with _lock(self.run_dir, STOP_LIMIT * 2):
                await _end(self.run_dir)


async def ensure(run_dir: Path, *, socket: str | None, limit: float) -> Service:
    """A Podman service that answers, within `limit` seconds; may be called again at any time.

    `socket` names the one to use; without it the system's or the user's own is used if it
    answers, else one of ours, from an earlier call or new. Raises `PodmanUnreachable` when
    the named socket does not answer or Podman is not installed, `PodmanTimeout`, and
    `PodmanFailed` when Podman cannot start containers here.
    """
    end = time.monotonic() + limit
    if socket is not None:
        path = socket.removeprefix("unix://")
        if await answers(path, limit):
            return Service(path, own=False, pid=None, run_dir=run_dir)
        raise PodmanUnreachable(
            f"nobody answers on the configured Podman socket {path}",
            hint="systemctl enable --now podman.socket; [podman] socket in the configuration names another",
        )
    for path in _usual_sockets():
        if await answers(path, limit / 4):
            return Service(path, own=False, pid=None, run_dir=run_dir)
    return await own(run_dir, limit=end - time.monotonic())


async def own(run_dir: Path, *, limit: float) -> Service:
    """`ensure` without a look at the operator's services: one of ours, from an earlier call or new."""
    end = time.monotonic() + limit
    await asyncio.to_thread(os.makedirs, run_dir, exist_ok=True)
    async with _lock(run_dir, limit):
        found = await _find_own(run_dir, limit / 4)
        return found or await _start(run_dir, end)


def running(run_dir: Path) -> int | None:
    """The pid of the service that an earlier call started in this run folder, if it lives."""
    try:
        data = json.loads((run_dir / PID_FILE).read_text())
        pid, start = int(data["pid"]), int(data["start"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    _reap(pid)
    found = proc.process(pid)
    if found is None or not found.alive or found.start != start:
        return None
    return pid if "service" in proc.arguments(pid) else None


async def answers(path: str, limit: float) -> bool:
    """Whether a Podman API answers on this unix socket within `limit` seconds."""
    try:
        async with asyncio.timeout(limit):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(b"GET /_ping HTTP/1.0\r\nHost: podman\r\n\r\n")
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return b" 200 " in status


def usual_socket() -> str | None:
    """Where the operator's service listens, whether it answers or not; None when there is no usual place."""
    return next(iter(_usual_sockets()), None)


def _usual_sockets() -> tuple[str, ...]:
    """Where the operator's service listens: root's, or the user's own."""
    if os.getuid() == 0:
        return ("/run/podman/podman.sock",)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return (f"{runtime}/podman/podman.sock",) if runtime else ()


async def _find_own(run_dir: Path, limit: float) -> Service | None:
    """The service of an earlier call. One that lives and does not answer is ended: containers do not mind."""
    pid = running(run_dir)
    if pid is None:
        return None
    path = str(run_dir / SOCKET_FILE)
    if await answers(path, limit):
        return Service(path, own=True, pid=pid, run_dir=run_dir)
    await _end(run_dir, signal.SIGKILL)
    return None


async def _start(run_dir: Path, end: float) -> Service:
    conf = await trial.settings(run_dir, limit=max(end - time.monotonic(), 1.0))
    podman = shutil.which("podman")
    if podman is None:
        raise PodmanUnreachable("Podman is not installed", hint=trial.INSTALL_HINT)
    path = run_dir / SOCKET_FILE
    await asyncio.to_thread(path.unlink, missing_ok=True)
    environ = dict(os.environ)
    if conf is not None:
        environ["CONTAINERS_CONF"] = str(conf)
    log = run_dir / LOG_FILE
    pid = _spawn(podman, path, log, environ)
    started = proc.process(pid)
    if started is not None:
        note = json.dumps({"pid": pid, "start": started.start, "socket": str(path)})
        await asyncio.to_thread(_write_private, run_dir / PID_FILE, note)
    while not await answers(str(path), 1.0):
        _reap(pid)
        if proc.process(pid) is None:
            said = log.read_text(errors="replace").strip()[-500:]
            raise PodmanUnreachable(f"podman system service ended at once: {said}", hint=f"see {log}")
        if time.monotonic() >= end:
            await _end(run_dir)
            raise PodmanTimeout("podman system service did not answer in time", hint=f"see {log}")
        await asyncio.sleep(_STEP)
    return Service(str(path), own=True, pid=pid, run_dir=run_dir)


def _spawn(podman: str, path: Path, log: Path, environ: dict[str, str]) -> int:
    """Start the service in a session of its own. Not a child to wait for: it is to outlive us.

    It begins in the run folder: its conmons leave a file `oom` where it began when the kernel ends a container for
    want of memory (Podman 4.3), and that is not to be wherever somebody typed `outrider up`.
    """
    return os.posix_spawn(
        _SHELL,
        [
            _SHELL,
            "-c",
            'cd "$0" && exec "$@"',
            str(path.parent),
            podman,
            "system",
            "service",
            "--time=0",
            f"unix://{path}",
        ],
        environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            # appending, so that the file can be emptied under it
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


async def _end(run_dir: Path, *signals: signal.Signals) -> None:
    pid = running(run_dir)
    if pid is not None:
        for sign in signals or (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
            if await _gone(run_dir, pid, STOP_LIMIT):
                break
        else:
            raise PodmanTimeout(
                f"the Podman service {pid} does not end, not even killed", hint=f"see /proc/{pid}/stack"
            )
    for name in (PID_FILE, SOCKET_FILE):
        await asyncio.to_thread((run_dir / name).unlink, missing_ok=True)


async def _gone(run_dir: Path, pid: int, limit: float) -> bool:
    end = time.monotonic() + limit
    while running(run_dir) is not None or not _reap(pid):
        if time.monotonic() >= end:
            return False
        await asyncio.sleep(_STEP)
    return True


def _reap(pid: int) -> bool:
    """Take the exit status of a child of ours, so that no zombie stays; True when there is none to take any more.

    A process of many threads is a zombie to `/proc` a moment before its status can be had.
    """
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _write_private(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.chmod(0o600)
    new.replace(path)


@contextlib.asynccontextmanager
async def _lock(run_dir: Path, limit: float) -> AsyncIterator[None]:
    """One starter at a time: `up`, a daemon and a restarted daemon may all want a service at once."""
    end = time.monotonic() + limit
    with (run_dir / LOCK_FILE).open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= end:
                    raise PodmanTimeout(
                        "somebody else has been starting Podman for too long",
                        hint=f"`fuser {run_dir / LOCK_FILE}` says who",
                    ) from error
                await asyncio.sleep(_STEP)
            else:
                break
        yield

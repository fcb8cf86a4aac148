"""Outrider's own processes: `outrider daemon`, `outrider gateway`, and how `up` and `down` handle them.

A process is known by its pid file in the run folder. A pid alone proves nothing
(it may have been given to somebody else), so its command line is looked at too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from api.cli.options import Common, common
from orchestrator.careful import read_small
from orchestrator.errors import Conflict, OutriderError
from orchestrator.paths import Paths

STEP = 0.05
"""Seconds between two looks at a condition."""
LAST_LINES = 12
"""Lines of a log that are shown when its process died."""

_pause = threading.Event()


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(daemon)
    app.command()(gateway)


def daemon(ctx: typer.Context) -> None:
    """Run the control plane in the foreground. SIGTERM ends it and nothing else: engines go on."""
    from api.daemon import run as run_daemon
    from orchestrator.config import load
    from orchestrator.paths import prepare

    paths = prepare(common(ctx).paths)
    raise typer.Exit(run_daemon(paths, config=load(paths)))


def gateway(ctx: typer.Context) -> None:
    """Run the data plane in the foreground: what clients talk to."""
    sys.stdout.flush()
    # Its process has no use for what the command line imports, so it takes this one's place.
    argv = gateway_argv(common(ctx))
    os.execv(argv[0], argv)  # noqa: S606 - our own interpreter, an argument list


def daemon_argv(options: Common) -> list[str]:
    """The daemon's command line. `-P` keeps a folder named `api` in the present folder out of it."""
    return [sys.executable, "-P", "-m", "api.cli", *options.arguments, "daemon"]


def gateway_argv(options: Common) -> list[str]:
    """The gateway's command line."""
    return [sys.executable, "-P", "-m", "api.gateway", *options.arguments]


@dataclass(frozen=True, slots=True)
class Kind:
    """One of our processes: its command, its pid file and its log."""

    command: str
    pid_file: Path
    log: Path

    def pid(self) -> int | None:
        """The process that runs now, if any."""
        found = read_small(self.pid_file)
        try:
            pid = None if found is None else int(found.data.split()[0])
        except (ValueError, IndexError):
            return None
        return pid if found is not None and pid is not None and self._is_ours(pid, found.uid) else None

    def _is_ours(self, pid: int, writer: int) -> bool:
        """Whether it is this kind of process, and the writer's own: nobody may name another user's to root."""
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if writer not in (0, Path(f"/proc/{pid}").stat().st_uid):
                return False
        except OSError:
            return False
        ours = any(b"outrider" in word or word.startswith(b"api.") for word in words)
        return ours and self.command.encode() in b" ".join(words)

    def last_lines(self) -> str:
        """The end of its log."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-LAST_LINES:])


def daemon_of(paths: Paths) -> Kind:
    """The control plane of these folders."""
    return Kind("daemon", paths.run_dir / "daemon.pid", paths.logs / "daemon.log")


def gateway_of(paths: Paths) -> Kind:
    """The data plane of these folders."""
    return Kind("gateway", paths.gateway_pid, paths.logs / "gateway.log")


def up_of(paths: Paths) -> Kind:
    """An `outrider up` in the foreground."""
    return Kind("up", paths.run_dir / "up.pid", paths.logs / "up.log")


def pause(seconds: float = STEP) -> None:
    """The step between two looks at something."""
    _pause.wait(seconds)


def spawn(kind: Kind, options: Common) -> subprocess.Popen[bytes]:
    """Start the process in a session of its own, so that a terminal's Ctrl-C does not reach it."""
    argv = daemon_argv(options) if kind.command == "daemon" else gateway_argv(options)
    with kind.log.open("ab") as log:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd="/"
        )


def died(kind: Kind, code: int) -> OutriderError:
    """A process of ours that ended while it was being waited for."""
    said = kind.last_lines()
    log = f"\n{said}" if said else " without a word"
    return OutriderError(
        f"the {kind.command} ended with exit code {code}; its log ends with:{log}", hint=f"the whole log is {kind.log}"
    )


def until(condition: Callable[[], bool], limit: float) -> bool:
    """Look until it is true; False when `limit` seconds are over."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() >= end:
            return False
        pause()
    return True


def end(kind: Kind, *, first: float, grace: float) -> bool:
    """End a process by its pid: wait `first` seconds for it to go by itself, then SIGTERM,
    and after `grace` seconds SIGKILL. False when there was none."""
    pid = kind.pid()
    if pid is None:
        return False

    def gone() -> bool:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return kind.pid() != pid

    if not (first > 0 and until(gone, first)):
        for number, limit in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if until(gone, limit):
                break
        else:
            raise OutriderError(f"the {kind.command} (pid {pid}) does not end", hint=f"look at /proc/{pid}/stack")
    return True


def check_free(addresses: Sequence[tuple[str, str]], file: Path) -> None:
    """Raise `Conflict` when somebody listens on one of these (key, host:port) already; `file` has the keys."""
    from orchestrator.config import split_listen

    for key, address in addresses:
        host, port = split_listen(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise Conflict(
                    f"{address} cannot be listened on: {error.strerror}",
                    hint=f"give {key} another port in {file}, or end what listens there "
                    f"(`ss -ltnp 'sport = :{port}'` says what)",
                ) from error

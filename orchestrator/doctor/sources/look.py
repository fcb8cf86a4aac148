"""How sources look: files of the machine or of a copied tree, and commands that may not hang."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hosts.reading import LIMIT, read_text
from hosts.roots import Roots
from orchestrator.doctor.machine import Who

_MOST_OUTPUT = 8 * 1024 * 1024
_FOLDERS = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")


class Unseen(Exception):
    """A source says nothing, and why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """Its last words."""
        return (self.err.strip() or self.out.strip())[-500:] or f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class Look:
    """Where to look, and as whom. `environ` is where commands are searched and what they get."""

    roots: Roots = field(default_factory=Roots.from_environ)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    who: Who = field(default_factory=lambda: current())  # noqa: PLW0108 - defined below

    @property
    def real(self) -> bool:
        """Whether this is the machine itself and not a tree: only then its kernel is asked directly."""
        return self.roots == Roots()

    def at(self, path: str | Path) -> Path:
        """Where a path of the machine is to be read."""
        text = os.path.normpath(str(path))
        roots = self.roots
        for prefix, root in (
            ("/var/run", roots.run),
            ("/proc", roots.proc),
            ("/sys", roots.sys),
            ("/etc", roots.etc),
            ("/dev", roots.dev),
            ("/run", roots.run),
            ("/usr", roots.usr),
        ):
            if text == prefix or text.startswith(f"{prefix}/"):
                return root / text[len(prefix) + 1 :]
        return roots.usr.parent / text.lstrip("/")

    def text(self, path: str, limit: int = LIMIT) -> str | None:
        """The text of a file, or None."""
        return read_text(self.at(path), limit)

    def program(self, name: str) -> str | None:
        """Where a command is; the folders of root's commands count even when PATH lacks them."""
        path = self.environ.get("PATH", os.defpath)
        search = os.pathsep.join((path, *_FOLDERS)) if self.real else path
        return shutil.which(name, path=search)

    def ask(self, name: str, *arguments: str, seconds: float = 3.0, environ: Mapping[str, str] | None = None) -> Answer:
        """Run a command to its end. Raises `Unseen` when it is not there, hangs, or says more than can be meant."""
        program = self.program(name)
        if program is None:
            raise Unseen(f"there is no command `{name}`")
        return run([program, *arguments], {**self.environ, **(environ or {}), "LC_ALL": "C"}, seconds)

    def said(self, name: str, *arguments: str, seconds: float = 3.0) -> str:
        """`ask`, and its output. Raises `Unseen` with its complaint when it failed."""
        answer = self.ask(name, *arguments, seconds=seconds)
        if answer.code != 0:
            raise Unseen(f"`{name}`: {answer.complaint}")
        return answer.out


def current() -> Who:
    """This process's user; the person behind a `sudo` is the operator."""
    uid = os.getuid()
    name = os.environ.get("SUDO_USER")
    if not name and uid != 0:
        name = os.environ.get("USER") or os.environ.get("LOGNAME")
    return Who(uid, os.getgid(), tuple(os.getgroups()), name if name and name != "root" else None)


def run(command: list[str], environ: Mapping[str, str], seconds: float) -> Answer:
    """A command in a session of its own, which ends with it: a child that keeps the pipe open is no reason to wait."""
    try:
        process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise Unseen(f"`{os.path.basename(command[0])}` cannot be run: {error}") from error
    with _ended(process):
        out, err = _read(process, time.monotonic() + seconds, seconds)
        try:
            code = process.wait(timeout=1.0)
        except subprocess.TimeoutExpired as error:
            raise Unseen(f"`{os.path.basename(command[0])}` closed its output and does not end") from error
    return Answer(code, out.decode(errors="replace"), err.decode(errors="replace"))


def _read(process: subprocess.Popen[bytes], end: float, seconds: float) -> tuple[bytes, bytes]:
    name = os.path.basename(str(process.args[0] if isinstance(process.args, list) else process.args))
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    parts = {stream.fileno(): bytearray() for stream in streams}
    order = list(parts)
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            left = end - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise Unseen(f"`{name}` did not answer within {seconds:g} s")
            for key, _ in ready:
                part = os.read(key.fd, 65536)
                if not part:
                    selector.unregister(key.fileobj)
                parts[key.fd] += part
                if len(parts[key.fd]) > _MOST_OUTPUT:
                    raise Unseen(f"`{name}` says more than {_MOST_OUTPUT} bytes")
    return bytes(parts[order[0]]), bytes(parts[order[1]])


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever happens, nothing of the command is left."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its group is its own: `start_new_session`
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1.0)

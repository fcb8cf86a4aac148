"""A vendor library in a process of its own, that can be killed: NVML and amdsmi may hang for ever.

The child answers with one JSON object on standard output. What a library prints
goes elsewhere (see `child_main`), and standard error is kept only as evidence.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ANSWER_LIMIT = 1024 * 1024
_EVIDENCE_LIMIT = 4096
_REAP = 0.5
_BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from hosts.{module} import main; main()"


class ChildFailed(Exception):
    """The child gave no answer; `evidence` is the end of what it wrote to standard error."""

    def __init__(self, detail: str, evidence: str = "") -> None:
        super().__init__(detail)
        self.evidence = evidence

    def summary(self) -> str:
        """The failure and the last line of evidence, as one sentence."""
        lines = self.evidence.splitlines()
        return f"{self}: {lines[-1][:500]}" if lines else str(self)


class ChildTimeout(ChildFailed):
    """No answer within the deadline. The child is killed."""


_unkillable: dict[str, subprocess.Popen[bytes]] = {}
_lock = threading.Lock()


class Child:
    """A running `hosts.<module>`; `collect` its answer. Threads may each have their own.

    A child in an uninterruptible wait (a driver that crashed) survives SIGKILL.
    It is then left behind, and no other is started for this module until it is gone.
    """

    def __init__(self, module: str, arguments: Sequence[str], environ: Mapping[str, str], lifetime: float) -> None:
        """Start it. `lifetime`: seconds after which the kernel ends it even without us. Raises `ChildFailed`."""
        self.module = module
        with _lock:
            earlier = _unkillable.get(module)
            if earlier is not None:
                if earlier.poll() is None:
                    raise ChildTimeout(f"an earlier {module} (pid {earlier.pid}) still hangs in the kernel")
                del _unkillable[module]
        package = str(Path(__file__).resolve().parent.parent)
        command = [sys.executable, "-P", "-c", _BOOT.format(module=module), package, f"{lifetime:.3f}", *arguments]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environ),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ChildFailed(f"{module} cannot be started: {error}") from error
        self._answer = b""
        self._evidence = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it still lives."""
        return self._process.poll() is None

    def ask(self, line: str, end: float) -> dict[str, Any]:
        """Send a line to a child that serves, and read one line back before `end` (monotonic).

        Raises `ChildFailed`; the child is then killed.
        """
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            self.close()
            raise ChildFailed(f"{self.module} is gone: {error}") from error
        return self._parse(self._line(end))

    def collect(self, end: float) -> dict[str, Any]:
        """The one answer of a child that asks nothing, at the latest at `end` (monotonic). Raises `ChildFailed`.

        It is killed once it has answered: unloading a vendor library can hang as well as loading it.
        """
        try:
            return self._parse(self._line(end))
        finally:
            self.close()

    def listen(self, end: float) -> dict[str, Any] | None:
        """The next line of a child that speaks by itself; None when it says nothing until `end` (monotonic).

        Raises `ChildFailed` when it is gone or talks nonsense; it is then killed.
        """
        try:
            return self._parse(self._line(end, kill=False))
        except ChildTimeout:
            return None

    def end(self) -> None:
        """Kill it from another thread than the one that listens, which then finds it gone and closes it."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it runs, reap it, close the pipes. May be called twice."""
        process = self._process
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            try:
                process.wait(_REAP)
            except subprocess.TimeoutExpired:
                with _lock:
                    _unkillable[self.module] = process
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # unsent input of a child that died
                    pipe.close()

    def _line(self, end: float, *, kill: bool = True) -> bytes:
        """The next line it writes; without one, what came before both its pipes closed.

        Raises `ChildTimeout` at `end`, having killed it unless it may be silent.
        """
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(process.stderr, selectors.EVENT_READ)
            while b"\n" not in self._answer and selector.get_map():
                ready = selector.select(max(end - time.monotonic(), 0.0))
                if not ready and time.monotonic() >= end:
                    if kill:
                        self.close()
                    raise ChildTimeout(f"{self.module} gave no answer in time", self._tail())
                for key, _ in ready:
                    part = os.read(key.fd, 65536)
                    if not part:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is process.stdout:
                        self._answer += part
                    else:
                        self._evidence = (self._evidence + part)[-_EVIDENCE_LIMIT:]
                if len(self._answer) > _ANSWER_LIMIT:
                    self.close()
                    raise ChildFailed(f"{self.module} answered more than {_ANSWER_LIMIT} bytes", self._tail())
        line, _, self._answer = self._answer.partition(b"\n")
        return line

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict):
            return value
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_REAP)
        self.close()
        raise ChildFailed(f"{self.module} ended without an answer ({self._ending()})", self._tail())

    def _ending(self) -> str:
        code = self._process.returncode
        if code is None:
            return "it still runs"
        if code < 0:
            try:
                return f"killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"killed by signal {-code}"
        return f"exit status {code}"

    def _tail(self) -> str:
        return self._evidence.decode("utf-8", "replace").strip()

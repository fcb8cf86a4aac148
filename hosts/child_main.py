"""The child's half of `hosts.child`. Imports little: every millisecond is in the time of each probe."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any


class Answers:
    """Standard output for our answers alone; whatever a library prints lands on standard error."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._descriptor = os.dup(1)
        os.dup2(2, 1)

    def send(self, answer: dict[str, Any]) -> None:
        """One line of JSON."""
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


def limit_lifetime(seconds: float) -> None:
    """Let the kernel end this process by then, should the parent be gone. 0 lifts the limit.

    The default action of SIGALRM needs no Python code to run: it works inside a hanging C call.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def questions(lifetime: float) -> Iterator[str]:
    """The parent's lines, until it closes the pipe. `lifetime` holds for each answer, not for the wait."""
    while True:
        limit_lifetime(0.0)
        line = sys.stdin.readline()
        if not line:
            return
        limit_lifetime(lifetime)
        yield line.strip()


def attempt(call: Callable[[], Any], errors: tuple[type[BaseException], ...]) -> tuple[Any, BaseException | None]:
    """`(value, None)`, or `(None, error)` for one of these errors."""
    try:
        return call(), None
    except errors as error:
        return None, error

"""`python -m tests.endurance.watched daemon`: each call that blocks the event loop of this Outrider is written down.

blockbuster finds the calls (sleeps, locks, sockets, SQLite, files) and would raise in the middle of them; here the call
goes on, so that what is watched does what it always does, and a line of JSON says what it was, where, and for how many
seconds. The file is what `BLOCKED_CALLS` names. `Blocked.read` gives the lines back.

A SIGUSR2 has it write the names of its asyncio tasks next to that file (`census.task_names`).
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from blockbuster import BlockBuster, blockbuster

VARIABLE = "BLOCKED_CALLS"
ROOT = Path(__file__).parents[2]
OURS = tuple(str(ROOT / name) + "/" for name in ("api", "containers", "hosts", "orchestrator"))


@dataclass(frozen=True)
class Blocked:
    """One call: blockbuster's name of it, our function that made it, those above it, seconds."""

    call: str
    where: str
    above: tuple[str, ...]
    seconds: float

    @classmethod
    def read(cls, file: Path) -> list[Blocked]:
        return cls.parse(file.read_text())

    @classmethod
    def parse(cls, lines: str) -> list[Blocked]:
        return [
            cls(x["call"], x["where"], tuple(x["above"]), x["seconds"]) for x in map(json.loads, lines.splitlines())
        ]


def _frames() -> list[str]:
    """Our own functions that are being called, the innermost first."""
    found = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            found.append(f"{name.removeprefix(str(ROOT) + '/')}:{frame.f_code.co_name}")
        frame = frame.f_back
    return found


def record(file: Path) -> BlockBuster:
    """Write down each blocking call of this process's event loops from now on, until what it returns is deactivated."""
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    write, clock, running = os.write, time.perf_counter, asyncio._get_running_loop
    busy = blockbuster._skip

    def wrap(
        _modules: Sequence[str],
        _excluded: Sequence[str],
        func: Callable[..., Any],
        name: str,
        can_block: list[tuple[str, Iterable[str]]],
        predicate: Callable[..., bool],
    ) -> Callable[..., Any]:
        allowed = {(file, function) for file, functions in can_block for function in functions}

        def may() -> bool:
            frame: FrameType | None = sys._getframe(2)
            while frame is not None:
                code = frame.f_code
                if any(code.co_name == f and code.co_filename.endswith(n) for n, f in allowed):
                    return True
                frame = frame.f_back
            return False

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if busy.value or running() is None:
                return func(*args, **kwargs)
            busy.value = True
            begun = clock()
            try:
                if predicate(*args, **kwargs) or may():
                    return func(*args, **kwargs)
                try:
                    return func(*args, **kwargs)
                finally:
                    ours = _frames()
                    seen = {"call": name, "where": (ours or ["?"])[0], "above": ours[1:5], "seconds": clock() - begun}
                    write(out, (json.dumps(seen) + "\n").encode())
            finally:
                busy.value = False

        return wrapper

    blockbuster._wrap_blocking = wrap  # type: ignore[assignment]
    buster = BlockBuster()
    buster.activate()
    return buster


def tell_tasks(file: Path) -> None:
    """Write what each asyncio task is, and where it waits, to `file` at each SIGUSR2."""

    def write(*_: object) -> None:
        busy = blockbuster._skip
        was, busy.value = busy.value, True
        try:
            lines = []
            for loop in {o for o in gc.get_objects() if isinstance(o, asyncio.AbstractEventLoop)}:
                for task in asyncio.all_tasks(loop):
                    at = [f"{frame.f_code.co_name}:{frame.f_lineno}" for frame in task.get_stack(limit=1)]
                    lines.append(f"{task.get_name()} {getattr(task.get_coro(), '__qualname__', '?')} {at}")
            new = file.with_suffix(".new")
            new.write_text("\n".join(sorted(lines)) + "\n")
            new.replace(file)
        finally:
            busy.value = was

    signal.signal(signal.SIGUSR2, write)


if __name__ == "__main__":
    record(Path(os.environ[VARIABLE]))
    tell_tasks(Path(os.environ[VARIABLE]).with_suffix(".tasks"))
    from api.cli.main import main

    sys.exit(main())

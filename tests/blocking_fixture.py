"""Nothing blocks the event loop of an async test of the daemon's parts: a call of the product's that waits (sleep,
lock, socket, SQLite) or writes to a disk on the loop fails the test. Reads of small files are judged in the soak, by
the time they take (`tests.endurance.blocking`).

A `conftest.py` has it for its folder by importing `nothing_blocks`. A call that a test itself makes, and no coroutine
of the product, is none of the product's doing: `BY_TESTS` names them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from blockbuster import BlockBuster

from tests.endurance import blocking, watched
from tests.endurance.watched import Blocked

BY_TESTS = {
    "orchestrator/paths.py": "the folders of a test's own world; a daemon makes them before its loop begins",
    "orchestrator/engine.py:write_key": "the files of an engine that a former daemon is to have left",
    "orchestrator/engine.py:remove_files": "and their going away",
    "orchestrator/careful.py:make_open_folder": "the folder of that engine",
    "orchestrator/loading_marks.py:inherit": "the daemon does it in a thread, a test by hand",
}
"""Places, and why they are called on the loop in tests alone."""


@cache
def _recording() -> tuple[Path, BlockBuster]:
    """The file that this process's blocked loops are written to, and what writes it."""
    folder = Path(tempfile.mkdtemp(prefix="or-blocked-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / f"{os.getpid()}.jsonl"
    buster = watched.record(file)
    buster.deactivate()
    return file, buster


def kinds(call: Blocked) -> bool:
    return call.call.startswith((*blocking.WAITS, *blocking.WRITES))


def in_a_coroutine(call: Blocked) -> bool:
    return call.where != "?" and not any(call.where.startswith(place) for place in BY_TESTS)


def faults(file: Path, since: int) -> list[str]:
    """What of the product has waited or written on a loop after so many bytes of the file."""
    with file.open("rb") as lines:
        lines.seek(since)
        new = lines.read().decode()
    return blocking.faults([c for c in Blocked.parse(new) if kinds(c) and in_a_coroutine(c)])


@pytest.fixture(autouse=True)
def nothing_blocks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test during which the product blocked a loop."""
    file, buster = _recording()
    begun = file.stat().st_size
    buster.activate()
    try:
        yield
    finally:
        buster.deactivate()  # `shutil` looks for the real functions of `os`, and others' tests use it
    found = faults(file, begun)
    assert not found, f"{request.node.name} blocks its event loop: {found}"

"""One installation into an empty folder, for all tests that only look at it."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from api.cli.main import main


@dataclass(frozen=True)
class Run:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def outrider(*words: str | Path) -> Run:
    """The command line, in this process: a dozen of its own would take longer than what they do."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return Run(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def installed() -> Iterator[Path]:
    """A prefix that `outrider install` filled. Any user may look at it."""
    folder = Path(tempfile.mkdtemp(prefix="or-i-"))
    folder.chmod(0o755)
    try:
        done = outrider("install", "--prefix", folder, "--json")
        assert done.code == 0, done.err
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name, for sockets."""
    with tempfile.TemporaryDirectory(prefix="or-n-") as folder:
        yield Path(folder)

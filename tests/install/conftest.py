"""One installation into an empty folder, for all tests that only look at it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Run:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def outrider(*words: str | Path, **options: Any) -> Run:
    """The command line, as a process of its own."""
    command = [sys.executable, "-P", "-m", "api.cli", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)
    return Run(done.returncode, done.stdout, done.stderr)


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

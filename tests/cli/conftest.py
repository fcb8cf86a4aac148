"""The command line, called in this process against fake servers."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from api.cli import following, library
from api.cli.main import main
from orchestrator.paths import Paths, find
from tests.cli import fake


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as exactly one JSON document."""
        return json.loads(self.out)


Call = Callable[..., Said]


class _Input(io.StringIO):
    """Standard input: a pipe with text, or a terminal."""

    def __init__(self, text: str | None) -> None:
        super().__init__(text or "")
        self._terminal = text is None

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers in this process answer at once: there is no need to look at them five times a second only."""
    monkeypatch.setattr(following, "POLL", 0.01)
    monkeypatch.setattr(library, "POLL", 0.01)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Folders of this test; the sockets' paths are short enough for the kernel."""
    return find(tmp_path / "config", tmp_path / "state", environ={"HOME": str(tmp_path)})


@pytest.fixture
def call(paths: Paths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command in this process; `stdin` is text from a pipe (None: a terminal)."""
    monkeypatch.delenv("OUTRIDER_DEBUG", raising=False)

    def run(*words: str, stdin: str | None = None) -> Said:
        monkeypatch.setattr(sys, "stdin", _Input(stdin))
        options: Sequence[str] = ("--config", str(paths.config_dir), "--state-dir", str(paths.state_dir))
        capsys.readouterr()
        code = main([*words, *options])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture
def daemon(paths: Paths) -> Iterator[fake.Script]:
    """A fake daemon at the control socket."""
    with fake.control(paths.control_socket) as script:
        yield script


@pytest.fixture
def gateway(paths: Paths) -> Iterator[fake.Script]:
    """A fake gateway, named in the configuration."""
    with fake.gateway() as (address, script):
        paths.config_dir.mkdir()
        paths.config_file.write_text(f'[gateway]\nlisten = "{address}"\n')
        yield script

"""A configuration folder to write files into."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator import config, paths
from orchestrator.config import Config, ConfigProblems, Problem

MODEL = """
[[model]]
name = "{name}"
{extra}
[[model.variants]]
name = "q8"
format = "gguf"
quantisation = "q8_0"
path = "{name}.gguf"
"""


@dataclass(frozen=True)
class Folder:
    """`outrider.toml` and `models.d` in a temporary folder."""

    where: paths.Paths

    def settings(self, text: str) -> Path:
        self.where.config_file.write_text(text)
        return self.where.config_file

    def models(self, file: str, text: str) -> Path:
        self.where.models_d.mkdir(exist_ok=True)
        (self.where.models_d / file).write_text(text)
        return self.where.models_d / file

    def model(self, name: str = "m1", extra: str = "", more: str = "", *, file: str | None = None) -> Path:
        """One good model; `extra` are keys of its table, `more` follows the variant."""
        return self.models(file or f"{name}.toml", MODEL.format(name=name, extra=extra) + more)

    def load(self) -> Config:
        return config.load(self.where)

    def problems(self) -> tuple[Problem, ...]:
        with pytest.raises(ConfigProblems) as raised:
            self.load()
        return raised.value.problems

    def problem(self) -> Problem:
        """The only problem there is."""
        found = self.problems()
        assert len(found) == 1, [str(p) for p in found]
        return found[0]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "config").mkdir()
    return Folder(paths.find(tmp_path / "config", tmp_path / "state"))

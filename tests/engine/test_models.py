"""The generator itself: the same bytes every time, and texts that cannot be mistaken."""

from __future__ import annotations

from pathlib import Path

import pytest

from containers.embedded.wheel import digest
from tests.models import generate as models
from tests.models import tokenizer
from tests.models.expected import BY_NAME, TABLE


def test_two_runs_write_the_same_bytes(test_models: Path, tmp_path: Path) -> None:
    again = models.generate(tmp_path)
    assert set(again) == set(models.MODELS)
    assert {name: digest(path) for name, path in again.items()} == {
        name: digest(test_models / name) for name in models.MODELS
    }


def test_every_file_is_another(test_models: Path) -> None:
    assert len({digest(test_models / name) for name in models.MODELS}) == len(models.MODELS)


def test_the_texts() -> None:
    assert models.recital(42) == "abcdefghijklmnopqrstuvwxyz0123456789,. \nab"
    assert models.recital(5, start=38) == " \nabc"
    assert models.recital(41, second=True) == "ABCDEFGHIJKLMNOPQRSTUVWXYZ!#$%&()*+-/:;=A"
    assert len(set(models.FIRST + models.SECOND)) == 2 * models.CYCLE == 80


def test_the_vocabulary() -> None:
    assert len(tokenizer.TOKENS) == len(set(tokenizer.TOKENS)) == tokenizer.VOCABULARY
    assert {"th", "UP", "UPP", "UPPE", "UPPER"} <= set(tokenizer.TOKENS)
    assert tokenizer.MERGES == ["t h", "U P", "UP P", "UPP E", "UPPE R"]


def test_the_table_names_files_that_exist() -> None:
    assert len(BY_NAME) == len(TABLE)
    for row in TABLE:
        assert row.target in models.MODELS
        assert row.drafter is None or row.drafter in models.MODELS


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main([]) == 2
    assert models.main([str(tmp_path), "--light"]) == 2
    capsys.readouterr()
    assert models.main([str(tmp_path / "out")]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == list(models.MODELS)

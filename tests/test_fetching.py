"""What cannot be fetched is named, with why, and the rest is fetched all the same."""

from __future__ import annotations

import sys

import pytest

from orchestrator.models import Runtime
from tests import fetching
from tests.coverage import wheels
from tests.coverage.evidence import Wheel


def test_what_is_missing_is_named_and_the_rest_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    had: list[str] = []

    def refuse() -> None:
        raise wheels.Missing("pip says no")

    things = [("the first", refuse), ("the second", lambda: had.append("second"))]
    monkeypatch.setattr(fetching, "things", lambda: iter(things))
    assert fetching.main() == 1
    said = capsys.readouterr().out
    assert "the first ... MISSING: pip says no" in said
    assert "the second ... there" in said
    assert had == ["second"]


def test_a_wheel_that_no_index_has_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(wheels, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    file = f"no_such-1.0-{tag}-{tag}-manylinux_2_34_x86_64.whl"
    known = Wheel(runtime=Runtime.VLLM, name="no-such", version="1.0", file=file, sha256="0" * 64)
    with pytest.raises(wheels.Missing, match="pip has no no_such"):
        wheels.fetched(known)


def test_another_file_of_the_same_name_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(wheels, "CACHE", tmp_path)
    file = wheels.CACHE / "wheels" / "a-1.0.tar.gz"
    file.parent.mkdir()
    file.write_bytes(b"something else")
    known = Wheel(runtime=Runtime.VLLM, name="a", version="1.0", file=file.name, sha256="0" * 64)
    with pytest.raises(wheels.Missing, match="not the file that is known here"):
        wheels.fetched(known)

"""The trial container holds nobody up: its folder is made and removed beside the event loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from containers import trial
from tests.blocking_fixture import nothing_blocks
from tests.containers.test_service import impostor

__all__ = ["nothing_blocks"]


async def test_a_trial_writes_no_file_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    impostor(tmp_path, '[ -n "$CONTAINERS_CONF" ]', monkeypatch)
    conf = await trial.settings(tmp_path / "run", limit=30)
    assert conf is not None
    assert "default_ulimits" in conf.read_text()

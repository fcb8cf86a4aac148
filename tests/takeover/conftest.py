"""A machine with a fake `systemctl`, and the command in this process."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.blocking_fixture import nothing_blocks  # noqa: F401 - a fixture
from tests.cli.conftest import call, daemon, paths, quick_looks  # noqa: F401 - fixtures


class Units:
    """The units there are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str, **more: Any) -> None:
        unit = {"text": text, "active": True, "enabled": "enabled", **more}
        (self.folder / f"{name}.json").write_text(json.dumps(unit))

    def read(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return found

    def did(self) -> list[str]:
        """What changed something, in order."""
        file = self.folder / "asked"
        asked = file.read_text().splitlines() if file.exists() else []
        return [line for line in asked if line.split()[0] not in ("show", "cat")]


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Units:
    programs, folder = tmp_path / "bin", tmp_path / "units"
    programs.mkdir()
    folder.mkdir()
    script = programs / "systemctl"
    shutil.copy(Path(__file__).with_name("systemctl.py"), script)
    script.write_text(script.read_text().replace("#!/usr/bin/env python3", f"#!{sys.executable}", 1))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv("UNITS", str(folder))
    return Units(folder)

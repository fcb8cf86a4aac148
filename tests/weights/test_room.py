"""A disk that is full, one that is read-only, a quota: said before and in the middle, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.disk import Load
from orchestrator.errors import DiskFull, DiskReadOnly, OutriderError, exit_code, status
from orchestrator.models import Format
from orchestrator.store_files import Copier, Origin
from orchestrator.weights import room
from orchestrator.weights.choosing import Wanted
from orchestrator.weights.meter import Meter
from tests.weights.conftest import Place, some_bytes

GGUF = Wanted(Format.GGUF, file="m.gguf")
MIB = 1 << 20


def said(error: OutriderError) -> str:
    text = f"[{error.code}, exit {exit_code(error)}, HTTP {status(error)}] {error.detail} | {error.hint}"
    print(text)
    return text


@pytest.fixture
def small(place: Place) -> Iterator[Place]:
    """A store of 4 MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place.store)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place.store)], check=True)


async def test_what_does_not_fit_is_refused_before_a_byte_comes(small: Place) -> None:
    small.server.add("org/m", {"m.gguf": some_bytes(6 * MIB)})
    with pytest.raises(DiskFull) as raised:
        await small.pull("org/m", GGUF)
    assert "outrider prune --dry-run" in said(raised.value)
    assert small.server.bytes_sent == 0


async def test_a_disk_that_fills_up_meanwhile(small: Place) -> None:
    small.server.add("org/m", {"m.gguf": some_bytes(3 * MIB)})
    ballast = small.store / "ballast"

    def fill(sent: int) -> None:
        if not ballast.exists():
            ballast.write_bytes(bytes(2 * MIB))

    small.server.pause = fill
    with pytest.raises(DiskFull, match="is full: m") as raised:
        await small.pull("org/m", GGUF)
    assert "goes on where it stopped" in said(raised.value)
    there = small.partials()["m.gguf.partial"]
    assert 0 < there < 3 * MIB
    small.server.pause = None
    ballast.unlink()
    await small.pull("org/m", GGUF)
    assert small.server.ranges("m.gguf") == [None, f"bytes={there}-"]
    assert (next(small.store.rglob("m.gguf"))).read_bytes() == some_bytes(3 * MIB)


async def test_a_store_that_is_read_only(small: Place) -> None:
    small.server.add("org/m", {"m.gguf": some_bytes(MIB)})
    subprocess.run(["mount", "-o", "remount,ro", str(small.store)], check=True)
    with pytest.raises(DiskReadOnly) as raised:
        await small.pull("org/m", GGUF)
    assert "mounted read-only" in said(raised.value)
    settled = await small.settle("org/m", GGUF)
    with pytest.raises(DiskReadOnly, match="cannot be written to") as raised:
        await small.puller().carry_out(settled, Meter(SystemClock().now))
    assert "findmnt" in said(raised.value)
    subprocess.run(["mount", "-o", "remount,rw", str(small.store)], check=True)
    await small.pull("org/m", GGUF)


async def test_a_quota(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(MIB)})
    (place.store / "mine").mkdir()
    (place.store / "mine" / "x.gguf").write_bytes(bytes(MIB))
    with pytest.raises(DiskFull) as raised:
        await place.pull("org/m", GGUF, quota=2 * MIB - 1)
    assert "1.0 MB more, and the store has 1.0 MB of its 2.1 MB" in said(raised.value)
    await place.pull("org/m", GGUF, quota=2 * MIB + 20_000)
    await place.pull("org/m", GGUF, quota=1)  # nothing to bring is always allowed


def test_what_a_start_needs_besides_is_counted(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    all_of_it = free.f_frsize * free.f_bavail
    room.check(tmp_path, 1, "it", quota=None, low_water=0.0)
    with pytest.raises(DiskFull) as raised:
        room.check(tmp_path, 1, "it", quota=None, low_water=0.0, also=[Load(tmp_path, all_of_it, "image x")])
    assert "it and image x need" in said(raised.value)


async def test_a_file_that_is_added_says_of_the_disk_what_a_pull_does(small: Place, tmp_path: Path) -> None:
    source = tmp_path / "mine.gguf"
    source.write_bytes(some_bytes(5 * MIB))
    to = small.store / "mine" / "mine.gguf"
    copier = Copier(lambda _: None)
    with pytest.raises(DiskFull, match="is full: mine"):
        await copier.copy(str(source), 5 * MIB, to, Origin(str(source)))
    subprocess.run(["mount", "-o", "remount,ro", str(small.store)], check=True)
    with pytest.raises(DiskReadOnly, match="cannot be written to"):
        await copier.copy(str(source), 5 * MIB, to, Origin(str(source)))
    subprocess.run(["mount", "-o", "remount,rw,size=12m", str(small.store)], check=True)
    await copier.copy(str(source), 5 * MIB, to, Origin(str(source)))
    assert to.read_bytes() == source.read_bytes()

"""A hub that lies, and a repository that was made to do harm: refused by name, and nothing outside is touched."""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import NotOffered, OutriderError, SourceFailed
from orchestrator.models import Format
from orchestrator.weights import shelf
from orchestrator.weights.choosing import NoChoice, Wanted, choose
from orchestrator.weights.meter import Meter
from tests.weights.conftest import PACE, Place, safetensors, some_bytes

GGUF = Wanted(Format.GGUF, file="*.gguf")
QUICK = replace(PACE, retry=0.001, retry_max=0.001)
NAMES = [
    "../out.gguf",
    "/tmp/out.gguf",
    "a/../../out.gguf",
    "a/./out.gguf",
    "a//out.gguf",
    "..\\out.gguf",
    "out\0.gguf",
    "\x1b[2Jout.gguf",
    ".out.gguf",
    f"{'x' * 300}.gguf",
    f"{'x/' * 300}out.gguf",
]


async def test_a_name_that_is_no_plain_one_is_not_there(place: Place) -> None:
    before = sorted(place.folder.rglob("*"))
    for name in NAMES:
        place.server.add("org/m", {name: some_bytes(5000)})
        with pytest.raises(NotOffered) as raised:
            await place.pull("org/m", GGUF)
        assert raised.value.detail.isprintable(), name
        assert (place.server.served, sorted(place.folder.rglob("*"))) == ([], before), name


async def test_a_file_that_is_named_like_a_note_of_ours_is_not_taken(place: Place) -> None:
    bad = "model.safetensors.partial.json"
    place.server.add("org/m", safetensors() | {bad: b'{"size": 1}'})
    settled = await place.pull("org/m")
    assert bad not in {step.file.path for step in settled.steps}
    assert shelf.find(place.store, settled.part.source) is not None


CLAIMS: list[dict[str, object]] = [
    {"size": 2**63},
    {"size": 10**400},
    {"size": -1},
    {"size": True},
    {"lfs": {"sha256": "../../../etc/passwd", "size": 5000, "pointerSize": 134}},
    {"lfs": None, "blobId": "/etc/passwd"},
    {"lfs": None, "blobId": 7},
    {"lfs": None, "blobId": None},
]


async def test_what_cannot_be_checked_is_not_fetched(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(5000)})
    for claim in CLAIMS:
        place.server.claimed["m.gguf"] = claim
        with pytest.raises(OutriderError) as raised:
            await place.pull("org/m", GGUF, pace=QUICK)
        assert raised.value.code in ("not_offered", "source_failed"), claim
        assert place.server.served == [], claim


async def test_a_size_that_no_disk_has(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(5000)})
    place.server.claimed["m.gguf"] = {"size": 2**63 - 1}
    with pytest.raises(OutriderError) as raised:
        await place.pull("org/m", GGUF)
    assert raised.value.code == "disk_full"


@pytest.mark.parametrize(
    ("paths", "form"),
    [
        ([f"m-{n:05}-of-99999.safetensors" for n in range(1, 100_000)] + ["config.json"], Format.SAFETENSORS),
        ([f"m-{n:05}-of-99999.gguf" for n in range(1, 100_000)], Format.GGUF),
        ([f"{n}.json" for n in range(100_000)] + ["config.json", "model.safetensors"], Format.SAFETENSORS),
        ([f"m{n}.gguf" for n in range(100_000)], Format.GGUF),
    ],
)
def test_a_hundred_thousand_files_hold_nobody_up(paths: list[str], form: Format) -> None:
    began = time.process_time()
    with pytest.raises(NoChoice) as raised:
        choose(paths, Wanted(form))
    assert time.process_time() - began < 2
    assert len(str(raised.value)) < 300


async def test_a_redirect_to_nowhere(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(5000)})
    for location in ("http://127.0.0.1:999999/x", "http://[", "http://:0", "file:///etc/passwd", "//"):
        place.server.location = location
        with pytest.raises(SourceFailed):
            await place.pull("org/m", GGUF, pace=QUICK)
        assert not list(place.store.rglob("*.gguf*")), location


async def test_a_file_that_was_whole_and_not_yet_recorded_is_not_fetched_again(place: Place) -> None:
    """As a kill between the file's new name and its record leaves it, or a disk without room for the record."""
    place.server.add("org/m", {"m.gguf": some_bytes(500_000)})
    settled = await place.pull("org/m", GGUF)
    record = shelf.repository_folder(place.store, "org/m") / f"{settled.commit}.json"
    record.unlink()
    sent = place.server.bytes_sent
    again = await place.pull("org/m", GGUF)
    assert (again.missing, place.server.bytes_sent) == (0, sent)
    file = shelf.commit_folder(place.store, "org/m", again.commit) / "m.gguf"
    assert shelf.find(place.store, again.part.source) is not None
    # and one that is not what it should be is fetched
    record.unlink()
    file.write_bytes(bytes(500_000))
    await place.pull("org/m", GGUF)
    assert file.read_bytes() == some_bytes(500_000)
    assert place.server.bytes_sent == 2 * sent


async def test_a_link_in_the_store_is_not_written_through(place: Place, tmp_path: Path) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(5000)})
    settled = await place.settle("org/m", GGUF)
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    folder = shelf.commit_folder(place.store, "org/m", settled.commit)
    folder.mkdir(parents=True)
    (folder / "m.gguf.partial").symlink_to(victim)
    with pytest.raises(OutriderError):
        await place.pull("org/m", GGUF)
    assert victim.read_bytes() == b"mine"


async def test_the_login_of_a_proxy_is_in_no_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    place.server.add("org/m", {"m.gguf": some_bytes(5000)})
    settled = await place.settle("org/m", GGUF)
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        where = f"http://someone:S3cret@127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        monkeypatch.setenv("https_proxy", where)
        place.server.endpoint = "https://hub.invalid"
        with pytest.raises(SourceFailed, match="407") as raised:
            await place.puller().carry_out(settled, Meter(SystemClock().now))
    assert "S3cret" not in f"{raised.value} {raised.value.hint} {raised.value.evidence}"
    sent = base64.b64encode(b"someone:S3cret")
    assert asked
    assert all(b"CONNECT" in head and sent in head for head in asked)

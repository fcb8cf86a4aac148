"""Bytes: from where they stopped, never two files' in one, and refused when they are wrong."""

from __future__ import annotations

import asyncio
import os

import pytest

from orchestrator.errors import DigestMismatch, OutriderError, RateLimited, SourceFailed
from orchestrator.models import Format
from orchestrator.weights import shelf
from orchestrator.weights.choosing import Wanted
from orchestrator.weights.token import Token
from tests.waiting import until
from tests.weights.conftest import Place, safetensors, some_bytes

GGUF = Wanted(Format.GGUF, file="m.gguf")
SIZE = 3_000_000


def said(error: OutriderError) -> str:
    text = f"[{error.code}] {error.detail} | {error.hint} | {error.evidence}"
    print(text)
    return text


def stored(place: Place, name: str) -> bytes:
    (file,) = place.store.rglob(name)
    return file.read_bytes()


async def cut_off(place: Place, after: int) -> None:
    """Begin to pull `org/m`, and stop once more than so many bytes of it are on disk."""
    place.server.rate = 4_000_000
    pull = asyncio.create_task(place.pull("org/m", GGUF))
    await until(lambda: place.partials().get("m.gguf.partial", 0) > after, 10)
    pull.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pull
    place.server.rate = None


async def test_what_a_model_needs_and_nothing_else(place: Place) -> None:
    place.server.add("org/model", safetensors())
    settled = await place.pull("org/model")
    folder = shelf.commit_folder(place.store, "org/model", settled.commit)
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert stored(place, "model.safetensors") == some_bytes(200_000)
    assert all(p.stat().st_mode & 0o777 == 0o644 for p in folder.iterdir()), "engines are another user"
    asked = len(place.server.api)
    again = await place.pull("org/model")
    assert {step.state for step in again.steps} == {"here"}
    assert len(place.server.api) == asked, "what is here is not asked for"


async def test_it_goes_on_where_it_stopped_in_another_process(place: Place) -> None:
    """As after SIGKILL: a new puller has only what is on disk."""
    data = some_bytes(SIZE)
    place.server.add("org/m", {"m.gguf": data})
    await cut_off(place, 500_000)
    (there,) = place.partials().values()
    sent = place.server.bytes_sent
    await place.pull("org/m", GGUF)
    assert place.server.ranges("m.gguf") == [None, f"bytes={there}-"]
    assert place.server.bytes_sent - sent == SIZE - there
    assert stored(place, "m.gguf") == data
    assert place.partials() == {}
    assert not list(place.store.rglob("*.partial.json"))


async def test_a_connection_that_breaks_is_taken_up_again(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(SIZE)})
    place.server.cut_at = [700_000, 900_000]
    place.server.rate = 8_000_000
    await place.pull("org/m", GGUF)
    first, second, third = place.server.ranges("m.gguf")
    assert first is None
    assert second is not None
    assert third is not None
    assert stored(place, "m.gguf") == some_bytes(SIZE)


async def test_a_hub_that_ignores_ranges_begins_anew_without_damage(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(SIZE)})
    place.server.cut_at = [700_000]
    place.server.no_range = True
    await place.pull("org/m", GGUF)
    assert len(place.server.ranges("m.gguf")) == 2
    assert stored(place, "m.gguf") == some_bytes(SIZE)


async def test_another_etag_begins_anew(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(SIZE)})
    place.server.cut_at = [700_000]

    def change(sent: int) -> None:
        place.server.etag_salt = "x" if sent >= 700_000 else ""

    place.server.pause = change
    await place.pull("org/m", GGUF)
    ranges = place.server.ranges("m.gguf")
    assert [r is None for r in ranges] == [True, False, True]
    assert stored(place, "m.gguf") == some_bytes(SIZE)


async def test_416_begins_anew(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(SIZE)})
    place.server.cut_at = [700_000]

    def refuse(sent: int) -> None:
        if 700_000 <= sent < 700_001:
            place.server.refuse_bytes = [(416, {"Content-Range": f"bytes */{SIZE}"})]

    place.server.pause = refuse
    await place.pull("org/m", GGUF)
    assert [s.status for s in place.server.served if s.host == "cdn"] == [200, 416, 200]
    assert stored(place, "m.gguf") == some_bytes(SIZE)


async def test_only_durable_bytes_survive_another_boot(place: Place) -> None:
    """After a crash of the machine the tail of a file may be zeros: none of it was made sure of here."""
    place.server.add("org/m", {"m.gguf": some_bytes(SIZE)})
    await cut_off(place, 500_000)
    place.boot = "boot-2"
    await place.pull("org/m", GGUF)
    assert place.server.ranges("m.gguf") == [None, None]
    assert stored(place, "m.gguf") == some_bytes(SIZE)


@pytest.mark.parametrize("name", ["m.gguf", "config.json"])
async def test_a_wrong_digest_is_refused_and_removed(place: Place, name: str) -> None:
    place.server.corrupt = {name}
    if name == "m.gguf":
        place.server.add("org/m", {"m.gguf": some_bytes(SIZE)})
    else:
        place.server.add("org/m", safetensors())
    with pytest.raises(DigestMismatch) as raised:
        await place.pull("org/m", GGUF if name == "m.gguf" else None)
    assert f"{name} of org/m" in said(raised.value)
    assert raised.value.retryable
    assert place.partials() == {}
    assert not list(place.store.rglob(name))
    place.server.corrupt = set()
    await place.pull("org/m", GGUF if name == "m.gguf" else None)


async def test_a_wrong_length_is_no_file(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(SIZE)})
    place.server.wrong_length = {"m.gguf"}
    with pytest.raises(SourceFailed) as raised:
        await place.pull("org/m", GGUF)
    assert f"{SIZE - 100} bytes there and should have {SIZE}" in said(raised.value)
    assert [p.name for p in place.store.rglob("*") if p.is_file()] == ["pins.json"], "where nothing came, nothing stays"


async def test_silence_is_noticed_and_gone_on_from(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(SIZE)})
    place.server.silent_after = 1_000_000
    await place.pull("org/m", GGUF)
    assert place.server.ranges("m.gguf") == [None, "bytes=1000000-", "bytes=2000000-"]
    assert stored(place, "m.gguf") == some_bytes(SIZE)


async def test_retry_after_is_waited_for(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(SIZE)})
    place.server.refuse = [(429, {"Retry-After": "1"})]
    place.server.refuse_bytes = [(503, {})]
    began = asyncio.get_running_loop().time()
    await place.pull("org/m", GGUF)
    assert asyncio.get_running_loop().time() - began >= 1.0
    assert [s.status for s in place.server.served if s.host == "cdn"] == [503, 200]


async def test_a_long_retry_after_is_passed_on(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(SIZE)})
    place.server.refuse = [(429, {"RateLimit": '"api";r=0;t=900'})]
    with pytest.raises(RateLimited) as raised:
        await place.pull("org/m", GGUF)
    assert raised.value.evidence["retry_after_s"] == 900.0
    assert "within 900 s" in said(raised.value)


async def test_troubles_of_the_hub_end_after_some_attempts(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(SIZE)})
    place.server.refuse = [(500, {})] * 5
    with pytest.raises(SourceFailed, match="answered 500") as raised:
        await place.pull("org/m", GGUF)
    said(raised.value)
    assert raised.value.retryable
    assert len(place.server.api) == 5


async def test_nobody_there(place: Place) -> None:
    place.server.endpoint = "http://127.0.0.1:9"
    with pytest.raises(SourceFailed, match="cannot be asked") as raised:
        await place.pull("org/m", GGUF)
    said(raised.value)


async def test_the_token_stays_with_the_hub(place: Place) -> None:
    place.server.tokens = {"hf_secret"}
    place.token = Token("hf_secret", "a file")
    place.server.add("org/m", {"m.gguf": some_bytes(SIZE)}, private=True)
    await place.pull("org/m", GGUF)
    assert {(s.host, s.token) for s in place.server.served} == {("hub", "Bearer hf_secret"), ("cdn", None)}
    assert "hf_secret" not in repr(place.token)
    for file in place.store.rglob("*"):
        assert file.is_dir() or b"hf_secret" not in file.read_bytes()


async def test_a_file_that_is_split_comes_whole(place: Place) -> None:
    parts = {f"Q8_0/m-Q8_0-0000{n}-of-00003.gguf": some_bytes(100_000, n) for n in (1, 2, 3)}
    place.server.add("org/m", {**parts, "m-Q4_K_M.gguf": b"x" * 5000})
    settled = await place.pull("org/m", Wanted(Format.GGUF, tag="Q8_0"))
    assert [s.file.path for s in settled.steps] == sorted(parts)
    held = shelf.find(place.store, settled.part.source)
    assert held is not None
    assert held.size == 300_000
    assert os.listdir(held.folder) == ["Q8_0"]


async def test_a_revision_is_settled_once_and_moved_by_a_person_only(place: Place) -> None:
    first = place.server.add("org/m", {"m.gguf": some_bytes(SIZE), "config.json": b"{}"})
    await place.pull("org/m", GGUF)
    second = place.server.add("org/m", {"m.gguf": some_bytes(SIZE), "config.json": b"{ }"})
    assert (await place.pull("org/m", GGUF)).commit == first.commit
    sent = place.server.bytes_sent
    moved = await place.pull("org/m", GGUF, "main")
    assert moved.commit == second.commit
    assert place.server.bytes_sent == sent, "the same file is not fetched again: it is linked"
    assert (await place.pull("org/m", GGUF)).commit == second.commit
    inodes = {p.stat().st_ino for p in place.store.rglob("m.gguf")}
    assert len(inodes) == 1


async def test_a_pull_that_was_cut_off_keeps_to_its_commit(place: Place) -> None:
    """Else a branch that moves would have it begin anew, and the bytes lie there for nothing."""
    first = place.server.add("org/m", {"m.gguf": some_bytes(SIZE)})
    await cut_off(place, 200_000)
    (there,) = place.partials().values()
    place.server.add("org/m", {"m.gguf": some_bytes(SIZE, 2)})
    settled = await place.pull("org/m", GGUF)
    assert settled.commit == first.commit
    assert place.server.ranges("m.gguf") == [None, f"bytes={there}-"]


async def test_weights_in_use_stay_settled_while_a_newer_commit_comes(place: Place) -> None:
    first = place.server.add("org/m", {"m.gguf": some_bytes(SIZE)})
    source = (await place.pull("org/m", GGUF)).part.source
    place.server.add("org/m", {"m.gguf": some_bytes(SIZE, 2)})
    place.server.corrupt = {"m.gguf"}
    with pytest.raises(DigestMismatch):
        await place.pull("org/m", GGUF, "main")
    held = shelf.find(place.store, source)
    assert held is not None
    assert held.commit == first.commit

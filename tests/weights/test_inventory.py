"""What lies in the store and whose it is; what is removed, and what another model keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orchestrator.errors import Conflict, Refused
from orchestrator.models import Format, ModelEntry
from orchestrator.weights import inventory, shelf, verifying
from orchestrator.weights.choosing import Wanted
from orchestrator.weights.shown import shown
from tests.waiting import until
from tests.weights.conftest import Place, some_bytes


def entry(name: str, tag: str = "Q8_0", revision: str | None = None) -> ModelEntry:
    variant = {"name": "v", "format": "gguf", "quantisation": tag, "repository": f"org/m:{tag}", "revision": revision}
    return ModelEntry.model_validate({"name": name, "variants": [variant]})


def tagged(tag: str) -> Wanted:
    return Wanted(Format.GGUF, tag=tag)


@pytest.fixture
async def filled(place: Place) -> Place:
    """Two quantisations of a repository, an older commit of one, a download that was cut off, and odds and ends."""
    first = place.server.add("org/m", {"m-Q8_0.gguf": some_bytes(50_000, 1), "m-Q4_0.gguf": some_bytes(30_000, 2)})
    await place.pull("org/m", tagged("Q8_0"))
    await place.pull("org/m", tagged("Q4_0"))
    assert first.commit
    place.server.add("org/m", {"m-Q8_0.gguf": some_bytes(50_000, 3), "m-Q4_0.gguf": some_bytes(30_000, 2)})
    await place.pull("org/m", tagged("Q8_0"), "main")
    place.server.add("org/cut", {"big.gguf": some_bytes(3_000_000)})
    place.server.rate = 2_000_000
    cut = asyncio.create_task(place.pull("org/cut", Wanted(Format.GGUF)))
    await until(lambda: sum(place.partials().values()) > 100_000, 10)
    cut.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut
    place.server.rate = None
    (place.store / "gone").mkdir()
    (place.store / "gone" / "x.gguf").write_bytes(b"x" * 1000)
    (place.store / "gone" / "x.gguf.json").write_text("{}")
    (place.store / ".incoming-abc").mkdir()
    (place.store / ".incoming-abc" / "y").write_bytes(b"y" * 10)
    return place


async def test_whose_everything_is(filled: Place) -> None:
    items = inventory.inventory(filled.store, [entry("one"), entry("two"), entry("four", "Q4_0")])
    seen = {(i.kind, i.path.name, i.models) for i in items if i.kind != "partial"}
    commit = filled.server.heads["org/m"]
    assert seen == {
        ("weights", "m-Q8_0.gguf", ("one", "two")),
        ("weights", "m-Q8_0.gguf", ()),
        ("weights", "m-Q4_0.gguf", ()),
        ("weights", "x.gguf", ()),
        ("leftover", ".incoming-abc", ()),
    }
    (partial,) = [i for i in items if i.kind == "partial"]
    assert (partial.repository, partial.size == partial.freed) == ("org/cut", True)
    used = next(i for i in items if i.models)
    assert (used.commit, used.size) == (commit, 50_000)
    with pytest.raises(Refused, match="is used by one, two"):
        inventory.remove(filled.store, used)
    for item in items:
        if not item.models:
            inventory.remove(filled.store, item)
    left = inventory.inventory(filled.store, [entry("one")])
    assert [(i.path.name, i.models) for i in left] == [("m-Q8_0.gguf", ("one",))]
    assert [p.name for p in shelf.repositories(filled.store)] == ["org--cut", "org--m"]


async def test_weights_that_another_model_uses_stay(filled: Place) -> None:
    one, other = entry("one"), entry("other")
    with pytest.raises(Conflict, match="also those of other") as raised:
        inventory.remove_weights(filled.store, one, [one, other])
    print(raised.value)
    assert inventory.remove_weights(filled.store, one, [one]) > 50_000
    assert not shelf.repository_folder(filled.store, "org/m").exists()


async def test_another_file_of_the_same_commit_stays(place: Place) -> None:
    place.server.add("org/m", {"m-Q8_0.gguf": some_bytes(50_000, 1), "m-Q4_0.gguf": some_bytes(30_000, 2)})
    await place.pull("org/m", tagged("Q8_0"))
    await place.pull("org/m", tagged("Q4_0"))
    eight, four = entry("eight"), entry("four", "Q4_0")
    assert inventory.remove_weights(place.store, eight, [eight, four]) == 50_000
    assert [f.ok for f in verifying.verify(four, place.store, 5.0, lambda count: None)] == [True]
    (view,) = shown(four, place.store, {})
    assert (view.checked_at, view.bytes, view.origin) == (5.0, 30_000, "hub")
    (gone,) = shown(eight, place.store, {})
    assert gone.state == "missing"
    await place.pull("org/m", tagged("Q8_0"))
    assert len(place.server.ranges("m-Q8_0.gguf")) == 2


def test_an_empty_store(tmp_path: Path) -> None:
    assert inventory.inventory(tmp_path / "none", [entry("one")]) == ()
    assert inventory.remove_weights(tmp_path, entry("one"), []) == 0

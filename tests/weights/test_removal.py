"""What is removed with a model, and what another model keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import Conflict
from orchestrator.models import Format, ModelEntry
from orchestrator.weights import removal, shelf, verifying
from orchestrator.weights.choosing import Wanted
from orchestrator.weights.shown import shown
from tests.weights.conftest import Place, some_bytes


def entry(name: str, tag: str = "Q8_0", revision: str | None = None) -> ModelEntry:
    variant = {"name": "v", "format": "gguf", "quantisation": tag, "repository": f"org/m:{tag}", "revision": revision}
    return ModelEntry.model_validate({"name": name, "variants": [variant]})


def tagged(tag: str) -> Wanted:
    return Wanted(Format.GGUF, tag=tag)


@pytest.fixture
async def filled(place: Place) -> Place:
    """Two quantisations of a repository, and an older commit of one."""
    place.server.add("org/m", {"m-Q8_0.gguf": some_bytes(50_000, 1), "m-Q4_0.gguf": some_bytes(30_000, 2)})
    await place.pull("org/m", tagged("Q8_0"))
    await place.pull("org/m", tagged("Q4_0"))
    place.server.add("org/m", {"m-Q8_0.gguf": some_bytes(50_000, 3), "m-Q4_0.gguf": some_bytes(30_000, 2)})
    await place.pull("org/m", tagged("Q8_0"), "main")
    return place


async def test_weights_that_another_model_uses_stay(filled: Place) -> None:
    one, other = entry("one"), entry("other")
    with pytest.raises(Conflict, match="also those of other") as raised:
        removal.remove_weights(filled.store, one, [one, other])
    print(raised.value)
    assert removal.remove_weights(filled.store, one, [one]) > 50_000
    assert not shelf.repository_folder(filled.store, "org/m").exists(), "older commits go with it"


async def test_another_file_of_the_same_commit_stays(place: Place) -> None:
    place.server.add("org/m", {"m-Q8_0.gguf": some_bytes(50_000, 1), "m-Q4_0.gguf": some_bytes(30_000, 2)})
    await place.pull("org/m", tagged("Q8_0"))
    await place.pull("org/m", tagged("Q4_0"))
    eight, four = entry("eight"), entry("four", "Q4_0")
    assert removal.remove_weights(place.store, eight, [eight, four]) == 50_000
    assert [f.ok for f in verifying.verify(four, place.store, 5.0, lambda count: None)] == [True]
    (view,) = shown(four, place.store, {})
    assert (view.checked_at, view.bytes, view.origin) == (5.0, 30_000, "hub")
    (gone,) = shown(eight, place.store, {})
    assert gone.state == "missing"
    await place.pull("org/m", tagged("Q8_0"))
    assert len(place.server.ranges("m-Q8_0.gguf")) == 2


def test_an_empty_store(tmp_path: Path) -> None:
    assert removal.remove_weights(tmp_path, entry("one"), []) == 0

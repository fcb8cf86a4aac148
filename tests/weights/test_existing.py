"""A Hugging Face cache is used: linked on one file system, mounted from another, never copied."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import catalogue, planner
from orchestrator.file_facts import FileFacts, location
from orchestrator.model_files import FileReader
from orchestrator.models import Format, ModelEntry
from orchestrator.weights import existing, shelf
from orchestrator.weights.choosing import Source, Wanted
from tests.planner import gguf_files
from tests.planner.hosts import cpu_host
from tests.weights.conftest import Place, safetensors
from tests.weights.hub import LFS_FROM, Repo, git_sha1


def fill(cache: Path, repo: Repo, *, leave_out: tuple[str, ...] = ()) -> Path:
    """A cache as the library leaves it: blobs named by digest, a snapshot of relative links, a stray partial."""
    root = existing.repository_of(cache, repo.name)
    for path, data in repo.files.items():
        if path in leave_out:
            continue
        name = hashlib.sha256(data).hexdigest() if len(data) >= LFS_FROM else git_sha1(data)
        blob = root / "blobs" / name
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link = root / "snapshots" / repo.commit / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (root / "blobs" / "abc.1234.incomplete").write_bytes(b"half")
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(repo.commit)
    return root


async def test_what_the_cache_has_is_linked_and_no_byte_is_served(place: Place) -> None:
    repo = place.server.add("org/model", safetensors())
    root = fill(place.cache, repo)
    settled = await place.pull("org/model")
    assert {s.state for s in settled.steps} == {"cache"}
    assert place.server.served == []
    folder = shelf.commit_folder(place.store, "org/model", repo.commit)
    for step in settled.steps:
        blob = (root / "snapshots" / repo.commit / step.file.path).resolve()
        assert (folder / step.file.path).stat().st_ino == blob.stat().st_ino
        assert not (folder / step.file.path).is_symlink()
    assert (root / "blobs" / "abc.1234.incomplete").read_bytes() == b"half"
    held = shelf.find(place.store, settled.part.source)
    assert held is not None
    assert {held.record.files[n].origin for n in held.selection.files} == {"cache"}


async def test_a_cache_that_is_damaged_or_private_is_not_believed(place: Place) -> None:
    repo = place.server.add("org/model", safetensors())
    root = fill(place.cache, repo, leave_out=("tokenizer.json",))
    weights = (root / "snapshots" / repo.commit / "model.safetensors").resolve()
    weights.write_bytes(b"#" + weights.read_bytes()[1:])
    (root / "snapshots" / repo.commit / "config.json").resolve().chmod(0o600)
    await place.pull("org/model")
    fetched = {s.file for s in place.server.served if s.host == "hub"}
    assert fetched == {"tokenizer.json", "model.safetensors", "config.json"}
    folder = shelf.commit_folder(place.store, "org/model", repo.commit)
    assert (folder / "model.safetensors").read_bytes() == repo.files["model.safetensors"]


@pytest.fixture
def other_disk(place: Place) -> Iterator[Place]:
    """The cache on a file system of its own."""
    place.cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place.cache)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place.cache)], check=True)


async def test_a_cache_on_another_disk_is_mounted_where_it_is(other_disk: Place, tmp_path: Path) -> None:
    place = other_disk
    target = gguf_files.target(tmp_path / "m.gguf").read_bytes()
    repo = place.server.add("org/m", {"m-Q8_0.gguf": target, "README.md": b"x"})
    root = fill(place.cache, repo)
    settled = await place.pull("org/m", Wanted(Format.GGUF, tag="Q8_0"))
    assert place.server.served == []
    assert settled.outside == root.resolve()
    assert not list(place.store.rglob("*.gguf")), "it is not copied"
    entry = ModelEntry.model_validate({
        "name": "m",
        "variants": [{"name": "q8", "format": "gguf", "quantisation": "Q8_0", "repository": "org/m:Q8_0"}],
    })  # fmt: skip
    facts = FileReader().inspect(entry, place.store)[location(entry.variants[0])]
    assert isinstance(facts, FileFacts)
    assert facts.root == str(root.resolve())
    assert facts.path == f"{root.resolve()}/snapshots/{repo.commit}/m-Q8_0.gguf"
    files = {location(entry.variants[0]): facts}
    plan = planner.plan(entry, cpu_host(), catalogue.shipped(), files, store=str(place.store)).plan
    assert plan is not None
    (mount,) = plan.mounts
    assert mount.source == str(root.resolve())
    assert f"/models/target/snapshots/{repo.commit}/m-Q8_0.gguf" in plan.argv
    (root / "snapshots" / repo.commit / "m-Q8_0.gguf").unlink()
    assert shelf.find(place.store, Source("org/m", "main", Wanted(Format.GGUF, tag="Q8_0"))) is None, (
        "the cache lost it"
    )


async def test_a_cache_on_another_disk_that_lacks_something_is_left_alone(other_disk: Place) -> None:
    repo = other_disk.server.add("org/model", safetensors())
    fill(other_disk.cache, repo, leave_out=("tokenizer.json",))
    settled = await other_disk.pull("org/model")
    assert {s.state for s in settled.steps} == {"fetch"}
    assert settled.outside is None


async def test_blobs_of_another_commit_are_found_by_their_digest(place: Place) -> None:
    old = place.server.add("org/model", safetensors())
    fill(place.cache, old)
    place.server.add("org/model", {**safetensors(), "config.json": b'{"new": 1}'})
    settled = await place.pull("org/model")
    states = {s.file.path: s.state for s in settled.steps}
    assert states.pop("config.json") == "fetch"
    assert set(states.values()) == {"cache"}

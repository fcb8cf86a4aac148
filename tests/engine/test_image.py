"""The engine's image: the same inputs give the same id, other inputs another, and it runs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from containers.embedded import image, rootfs, wheel
from containers.embedded.errors import ImageBuildFailed
from containers.embedded.rootfs import Copy, Folder, Link, Text, Tree
from containers.podman import Podman
from containers.spec import ContainerSpec, ImageInfo, Mount
from tests.engine.running import call
from tests.models import generate as models
from tests.waiting import until


def tree(**changes: rootfs.Entry) -> Tree:
    found: Tree = {"/a/b": Text(b"one"), "/a/link": Link("b"), "/tmp": Folder(0o1777)}
    found.update({f"/{name}": entry for name, entry in changes.items()})
    return found


def built(what: Tree, folder: Path, **env: str) -> image.BuiltImage:
    return image.write(image.recipe("test", what, env=env), folder / "image.tar")


def test_equal_trees_make_equal_bytes_in_any_order(tmp_path: Path) -> None:
    first = built(tree(), tmp_path / "1")
    (tmp_path / "source").write_bytes(b"one")
    second = built({"/tmp": Folder(0o1777), "/a/link": Link("b"), "/a/b": Copy(tmp_path / "source")}, tmp_path / "2")
    assert first.archive.read_bytes() == second.archive.read_bytes()
    assert replace(first, archive=second.archive) == second


@pytest.mark.parametrize(
    ("changes", "env"),
    [
        ({"c": Text(b"")}, {}),
        ({"c": Text(b"", 0o755)}, {}),
        ({"c": Folder()}, {}),
        ({"c": Link("a")}, {}),
        ({}, {"NAME": "value"}),
    ],
)
def test_every_input_counts(changes: Tree, env: dict[str, str], tmp_path: Path) -> None:
    plain, other = built(tree(), tmp_path / "1"), built(tree(**changes), tmp_path / "2", **env)
    assert other.image_id != plain.image_id
    assert other.inputs_digest != plain.inputs_digest
    assert other.name == f"localhost/outrider/llama-cpu:{other.inputs_digest[:12]}"


def test_the_archive_is_what_its_id_says(tmp_path: Path) -> None:
    what = built(tree(), tmp_path)
    with tarfile.open(what.archive) as tar:
        manifest = json.loads(_read(tar.extractfile("manifest.json")))[0]
        config = _read(tar.extractfile(manifest["Config"]))
        layer = _read(tar.extractfile(manifest["Layers"][0]))
    assert what.image_id == f"sha256:{hashlib.sha256(config).hexdigest()}"
    value = json.loads(config)
    assert value["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert value["config"]["Entrypoint"] == ["/app/llama-server"]
    assert value["config"]["Labels"] == {
        "io.outrider.image": "test",
        "io.outrider.image.inputs": what.inputs_digest,
    }


def _read(file: IO[bytes] | None) -> bytes:
    assert file is not None
    return file.read()


def test_two_builds_of_the_engine_are_the_same(xllamacpp_wheel: Path, test_cache: Path, tmp_path: Path) -> None:
    said: list[str] = []
    one = image.build_archive(tmp_path / "1" / "a.tar", wheel=xllamacpp_wheel, cache=test_cache, progress=said.append)
    # another folder for the unpacked wheel: where the inputs lie must not matter
    two = image.build_archive(tmp_path / "2" / "b.tar", wheel=xllamacpp_wheel)
    assert (one.image_id, one.inputs_digest) == (two.image_id, two.inputs_digest)
    assert wheel.digest(one.archive) == wheel.digest(two.archive)
    assert said


def test_the_engine_changes_with_its_launcher(
    xllamacpp_wheel: Path, test_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = wheel.given(xllamacpp_wheel)
    before = image.wheel_recipe(source, test_cache)
    monkeypatch.setattr(image, "_SCRIPT", b"#!/usr/bin/python3\n")
    assert image.wheel_recipe(source, test_cache).inputs_digest != before.inputs_digest
    names = set(before.tree)
    assert {"/app/llama-server", "/app/containers/embedded/launcher.py", "/etc/passwd", "/usr/bin/python3"} <= names
    assert any(name.endswith("/libc.so.6") for name in names)
    assert not any("/test/" in name or "__pycache__" in name for name in names)


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"no")
    with pytest.raises(ImageBuildFailed, match="is not a wheel"):
        image.build_archive(tmp_path / "a.tar", wheel=tmp_path / "x.whl")
    with zipfile.ZipFile(tmp_path / "y.whl", "w") as file:
        file.writestr("empty/__init__.py", "")
    with pytest.raises(ImageBuildFailed, match="holds no library"):
        image.build_archive(tmp_path / "a.tar", wheel=tmp_path / "y.whl")


def test_a_wheel_unpacks_once(tmp_path: Path) -> None:
    archive = tmp_path / "w.whl"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("package/__init__.py", "x = 1\n")
    folder = wheel.unpack(wheel.given(archive), tmp_path / "cache")
    (folder / "mark").touch()
    assert wheel.unpack(wheel.given(archive), tmp_path / "cache") == folder
    assert (folder / "mark").exists()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


def test_a_virtual_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to("/usr/bin/python3")
    with pytest.raises(ImageBuildFailed, match="virtual environment"):
        rootfs.interpreter(tmp_path / "bin" / "python3")


def test_a_failed_download_says_why(tmp_path: Path) -> None:
    pin = wheel.Pin("no-such-project-of-ours", "1", "no.whl", "0" * 64)
    with pytest.raises(ImageBuildFailed, match="could not fetch no-such-project-of-ours 1: false: status 1"):
        wheel.fetch(tmp_path, pin, python=["false"])
    assert list(tmp_path.iterdir()) == []


class Shelf:
    """A store in memory that knows what `podman load` would find out."""

    def __init__(self) -> None:
        self.images: dict[str, ImageInfo] = {}
        self.loads = 0
        self.tagged = ""

    async def image(self, ref: str) -> ImageInfo | None:
        return self.images.get(ref)

    async def load_image(self, archive: Path) -> ImageInfo:
        self.loads += 1
        with tarfile.open(archive) as tar:
            manifest = json.loads(_read(tar.extractfile("manifest.json")))[0]
            config = _read(tar.extractfile(manifest["Config"]))
        name, labels = manifest["RepoTags"][0], json.loads(config)["config"]["Labels"]
        info = ImageInfo(f"sha256:{hashlib.sha256(config).hexdigest()}", (name,), None, len(config), labels)
        self.images[name] = info
        return info

    async def tag(self, ref: str, repository: str, tag: str) -> None:
        self.tagged = f"{repository}:{tag} {ref}"


async def test_an_image_in_storage_is_not_built_again(tmp_path: Path) -> None:
    shelf = Shelf()
    first = await image.ensure(shelf, image.recipe("test", tree()), tmp_path)
    assert await image.ensure(shelf, image.recipe("test", tree()), tmp_path) == first
    assert shelf.loads == 1
    assert shelf.tagged == f"localhost/outrider/llama-cpu:latest {first.id}"
    other = await image.ensure(shelf, image.recipe("test", tree(c=Text(b"x"))), tmp_path)
    assert other.id != first.id
    assert shelf.loads == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
async def test_it_serves_in_a_container_without_a_network(
    embedded_image: str, podman_socket: str, podman_owner: str, test_models: Path, podman_run_dir: Path
) -> None:
    run = podman_run_dir / "e"
    run.mkdir(mode=0o777)
    run.chmod(0o777)
    podman = Podman(podman_socket)
    spec = ContainerSpec(
        name=f"outrider-engine-test-{secrets.token_hex(4)}",
        image=embedded_image,
        argv=(
            *("-m", f"/models/{models.TARGET}", "-md", f"/models/{models.DSPARK}", "--spec-type", "draft-dspark"),
            *("--spec-draft-n-max", "8", "-c", "4096", "-np", "2", "-t", "1", "--host", "/run/engine/engine.sock"),
        ),
        env={"LLAMA_API_KEY": "sesame"},
        labels={"io.outrider.owner": podman_owner},
        mounts=(Mount(str(test_models), "/models"), Mount(str(run), "/run/engine", read_only=False)),
    )
    container = await podman.create(spec)
    try:
        await podman.start(container)
        key = {"Authorization": "Bearer sesame"}

        async def healthy() -> bool:
            try:
                return (await asyncio.to_thread(call, run / "engine.sock", "/health"))[0] == 200
            except OSError:
                return False

        await until(healthy, 20, "the engine's health")
        body = {"messages": [{"role": "user", "content": "Say it."}], "max_tokens": 256, "temperature": 0}
        status, value = await asyncio.to_thread(call, run / "engine.sock", "/v1/chat/completions", body, key)
        assert status == 200
        assert value["choices"][0]["message"]["content"] == models.recital(256)
        assert (value["timings"]["draft_n"], value["timings"]["draft_n_accepted"]) == (226, 226)
        await podman.stop(container, 10)
        state = await podman.inspect(container)
        assert state is not None
        assert state.exit_code == 0
    finally:
        await podman.remove(container)
        await podman.close()

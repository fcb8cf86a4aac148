"""`outrider prune` against a real daemon and a real Podman: planted things, used and unused, its own and others'."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from api.cli.main import main
from containers import labels
from containers.embedded.image import LABEL_IMAGE, REPOSITORY
from containers.embedded.wheel import XLLAMACPP
from tests.housekeeping.conftest import remote
from tests.stack.stack import Stack, model_toml

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
DAY = 86_400


def archive(name: str, label: str | None, target: Path) -> str:
    """An image of one file; its id."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        data = name.encode() * 20_000
        info = tarfile.TarInfo("file")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    found = {LABEL_IMAGE: label} if label else {}
    diff = "sha256:" + hashlib.sha256(layer.getvalue()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/file"], "Labels": found},
            "rootfs": {"type": "layers", "diff_ids": [diff]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(target, mode="w") as tar:
        for inside, content in (("config.json", config), ("layer.tar", layer.getvalue()), ("manifest.json", manifest)):
            info = tarfile.TarInfo(inside)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return "sha256:" + hashlib.sha256(config).hexdigest()


def put(path: Path, size: int = 4096, *, days: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    if days:
        then = path.stat().st_mtime - days * DAY
        os.utime(path, (then, then))
    return path


def volume(image: str, purpose: str = "vllm") -> str:
    return f"outrider-{purpose}-{hashlib.sha256(image.encode()).hexdigest()[:12]}-sm_86"


class Planted:
    """A daemon with things around it."""

    def __init__(self, stack: Stack, socket: str, scratch: Path) -> None:
        self.stack, self.socket, self.scratch = stack, socket, scratch
        self.ids: dict[str, str] = {}

    def image(self, name: str, label: str | None = "llama-cpu") -> str:
        file = self.scratch / "image.tar"
        self.ids[name] = archive(name, label, file)
        remote(self.socket, "load", "--input", str(file))
        return self.ids[name]

    def prune(self, **body: Any) -> dict[str, Any]:
        answer = self.stack.send("POST", "/api/v1/prune", body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def going(self, **body: Any) -> dict[str, str]:
        """Name to reason of what would go."""
        found = self.prune(dry_run=True, **body)
        assert found["problems"] == []
        return {thing["name"]: thing["reason"] for thing in found["things"] if thing["action"] == "remove"}

    def images(self) -> set[str]:
        said = remote(self.socket, "images", "--format", "{{.Id}}", "--no-trunc").split()
        return {f"sha256:{one.removeprefix('sha256:')}" for one in said}


@pytest.fixture(scope="module")
def planted(own_podman: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    with Stack(own_podman, gateway=False) as stack:
        yield Planted(stack, own_podman, tmp_path_factory.mktemp("images"))


def fates(found: dict[str, Any], kind: str) -> dict[str, str]:
    return {thing["name"]: thing["reason"] for thing in found["things"] if thing["kind"] == kind}


@pytest.mark.slow
def test_images_and_compile_caches(planted: Planted) -> None:
    old, latest, taken = (planted.image(f"{REPOSITORY}:{tag}") for tag in ("0ld", "latest", "taken"))
    renamed, unnamed = planted.image(f"{REPOSITORY}:renamed"), planted.image(f"{REPOSITORY}:unnamed")
    foreign = planted.image("docker.io/library/foreign:1", None)
    remote(planted.socket, "tag", renamed, "localhost/mine:keep")
    remote(planted.socket, "untag", unnamed)
    other = ("--label", f"{labels.OWNER}=somebody", "--label")
    plan = json.dumps({"caches": [[volume(old, "shared"), "/cache"]]})
    remote(planted.socket, "create", "--name", "theirs", *other, f"{labels.PLAN_JSON}={plan}", taken)
    mine = [volume("sha256:gone"), volume(latest), volume(old, "shared"), "outrider-notes", "theirs"]
    for name in mine:
        remote(planted.socket, "volume", "create", name)
    asked = {"groups": ["images", "caches"]}

    found = planted.prune(dry_run=True, **asked)
    assert fates(found, "image") == {
        f"{REPOSITORY}:0ld": "superseded",
        unnamed.removeprefix("sha256:")[:12]: "unnamed",
        f"{REPOSITORY}:latest": "wanted",
        f"{REPOSITORY}:taken": "in_use",
        "docker.io/library/foreign:1": "not_ours",
        **{name: "in_use" for name in fates(found, "image") if "localhost/mine:keep" in name},
    }
    assert {n: r for n, r in fates(found, "cache").items() if n.startswith("volume")} == {
        f"volume {volume('sha256:gone')}": "no_image",
        f"volume {volume(latest)}": "wanted",
        f"volume {volume(old, 'shared')}": "in_use",
    }
    by = {thing["name"]: thing["used_by"] for thing in found["things"]}
    assert by[f"{REPOSITORY}:taken"] == ["container theirs (owner somebody)"]
    assert by[f"{REPOSITORY}:latest"] == ["embedded-cpu of the catalogue"]
    assert all(thing["outcome"] is None for thing in found["things"])
    before = planted.images()
    assert {old, unnamed, latest, taken, renamed, foreign} <= before

    done = planted.prune(dry_run=False, **asked)
    assert before - planted.images() == {old, unnamed}
    assert set(remote(planted.socket, "volume", "ls", "-q").split()) == set(mine[1:])
    assert {t["name"] for t in done["things"] if t["outcome"]} == {
        t["name"] for t in found["things"] if t["action"] == "remove"
    }
    assert done["freed_bytes"] == found["reclaimable_bytes"] > 0
    assert planted.going(**asked) == {}

    assert planted.going(**asked, everything=True) == {
        f"{REPOSITORY}:latest": "superseded",
        f"volume {volume(latest)}": "rebuildable",
    }


def test_what_is_taken_into_use_after_it_was_shown_stays(planted: Planted) -> None:
    image = planted.image(f"{REPOSITORY}:late")
    shown = planted.prune(dry_run=True, groups=["images"])
    only = [thing["id"] for thing in shown["things"] if thing["action"] == "remove"]
    assert only == [f"image:{image}"]
    remote(planted.socket, "create", "--name", "late", image)
    done = planted.prune(dry_run=False, groups=["images"], only=only)
    assert {thing["outcome"] for thing in done["things"]} == {None}
    assert image in planted.images()
    remote(planted.socket, "rm", "late")
    # and what was not shown stays as well
    another = planted.image(f"{REPOSITORY}:another")
    planted.prune(dry_run=False, groups=["images"], only=only)
    assert image not in planted.images()
    assert another in planted.images()


def test_what_pulls_brought_and_left(planted: Planted) -> None:
    image = planted.image("r.io/pulled:1", None)
    pulls = Path(planted.socket).parent / "pulls"
    left = [pulls / "storage1", pulls / "storage2"]
    for folder in left:
        put(folder / "layer", days=2)
        os.utime(folder, ((folder / "layer").stat().st_mtime,) * 2)
    put(pulls / "somebody's", days=2)
    asked = {"groups": ["images"]}
    assert "r.io/pulled:1" not in planted.going(**asked)
    with closing(sqlite3.connect(planted.stack.paths.database, timeout=10)) as database:  # as a pull notes it
        database.execute("INSERT INTO pulled VALUES (?, 'r.io/pulled:1', 1.0)", (image,))
        database.commit()
    with (left[1] / "layer").open("rb"):  # somebody is at work in it
        shown = planted.going(**asked)
        assert (shown["r.io/pulled:1"], shown[str(left[0])]) == ("not_named", "left_over")
        assert str(left[1]) not in shown
        planted.prune(dry_run=False, **asked)
    assert image not in planted.images()
    assert sorted(path.name for path in pulls.iterdir()) == ["somebody's", "storage2"]


def test_weights(planted: Planted) -> None:
    stack, store = planted.stack, planted.stack.paths.store
    variants = [{"name": "f", "format": "gguf", "quantisation": "F32", "path": "kept/a-00001-of-00002.gguf"}]
    (stack.paths.models_d / "kept.toml").write_text(model_toml({"name": "kept", "variants": variants}))
    kept = [
        put(store / "kept" / "a-00001-of-00002.gguf"),
        put(store / "kept" / "a-00002-of-00002.gguf"),
        put(store / "kept" / "README.md"),
        put(store / "kept" / "young.gguf.partial"),
        put(store / "begun" / "b.gguf.partial"),
    ]
    gone = [
        put(store / "kept" / "other.gguf", 1 << 20),
        put(store / "kept" / "other.gguf.json"),
        put(store / "kept" / "old.gguf.partial", days=2),
        put(store / "kept" / "old.gguf.partial.json", days=2),
        put(store / "removed" / "c.gguf", 1 << 20),
        put(store / "removed" / "c.gguf.json"),
        put(store / ".incoming-x" / "model.gguf", days=2),
    ]
    os.utime(gone[-1].parent, (gone[-1].stat().st_mtime,) * 2)
    # it is written down, and the daemon has not been told: its weights are claimed all the same
    assert planted.going(groups=["weights"]) == {
        "kept/other.gguf": "no_model",
        "kept/old.gguf.partial": "left_over",
        "models/removed": "no_model",
        "models/.incoming-x": "left_over",
    }
    assert planted.going(groups=["weights"], older_than_days=1.5) == {
        "kept/old.gguf.partial": "left_over",
        "models/.incoming-x": "left_over",
    }
    bad = stack.paths.models_d / "bad.toml"
    bad.write_text("[[model]\n")
    try:
        refused = planted.prune(dry_run=True, groups=["weights"])
    finally:
        bad.unlink()
    assert not [thing for thing in refused["things"] if thing["action"] == "remove"]
    assert any("bad.toml" in by for thing in refused["things"] for by in thing["used_by"])

    done = planted.prune(dry_run=False, groups=["weights"])
    assert {thing["outcome"] for thing in done["things"] if thing["action"] == "remove"} == {"removed"}
    assert done["freed_bytes"] >= 2 << 20
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in gone)
    assert planted.going(groups=["weights"]) == {}
    removed = [event for event in stack.events() if event["code"] == "removed" and event["kind"] == "housekeeping"]
    assert sorted(event["evidence"]["bytes"] for event in removed)[-2] >= 1 << 20


def test_what_cannot_be_removed_is_named_and_the_rest_goes(planted: Planted) -> None:
    store = planted.stack.paths.store
    held, free = put(store / "a-held" / "in" / "x.gguf"), put(store / "z-free" / "x.gguf")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", held.parent], check=True)
    try:
        done = planted.prune(dry_run=False, groups=["weights"])
    finally:
        subprocess.run(["umount", held.parent], check=True)
    ended = {thing["name"]: thing for thing in done["things"] if thing["outcome"]}
    assert ended["models/a-held"]["outcome"] == "failed"
    assert "is mounted at" in ended["models/a-held"]["error"]["text"]
    assert ended["models/z-free"]["outcome"] == "removed"
    assert not free.exists()
    assert "not_removed" in planted.stack.codes()
    assert planted.prune(dry_run=False, groups=["weights"])["freed_bytes"] > 0


def test_the_command_shows_asks_and_removes(planted: Planted, capfd: pytest.CaptureFixture[str]) -> None:
    stack, cache = planted.stack, planted.stack.paths.cache
    old = [
        put(cache / "some-1.whl"),
        put(cache / f"unpacked-{'a' * 16}" / "x"),
        put(cache / f"build-{'b' * 16}" / "x", days=2),
        put(stack.paths.logs / "daemon.log.1", days=2),
    ]
    os.utime(old[2].parent, (old[2].stat().st_mtime,) * 2)
    kept = [
        put(cache / XLLAMACPP.file_name),
        put(cache / f"build-{'c' * 16}" / "x"),
        put(cache / "something of a person's"),
        put(stack.paths.logs / "gateway.log.1"),
    ]
    state = ("--state-dir", str(stack.folder))

    assert main(["prune", *state, "--dry-run"]) == 0
    shown = capfd.readouterr().out
    assert f"cache/unpacked-{'a' * 16}" in shown
    assert "it may be wanted again (--all removes it): `outrider image build cpu`" in shown
    assert "something of a person's" not in shown
    assert all(path.exists() for path in old)

    assert main(["prune", *state]) == 4
    assert "there is nobody to ask" in capfd.readouterr().err
    assert main(["prune", *state, "--json"]) == 4
    assert json.loads(capfd.readouterr().out)["error"]["code"] == "refused"
    assert all(path.exists() for path in old)

    assert main(["prune", *state, "--caches", "--yes"]) == 0
    assert "removed 3, " in capfd.readouterr().out
    assert [path.exists() for path in old] == [False, False, False, True]
    assert main(["prune", *state, "--yes", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert "logs/daemon.log.1" in [thing["name"] for thing in document["things"] if thing["outcome"] == "removed"]
    assert not old[3].exists()
    assert all(path.exists() for path in kept)
    assert main(["prune", *state, "--yes"]) == 0
    assert "nothing that could go" in capfd.readouterr().err

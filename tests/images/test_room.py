"""One look at the disks for all that a start needs: its image and its weights, and what other pulls still bring."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.images.conftest import REAL, Registries
from tests.images.registry import Faults, Image, PodmanOfMine, layer, noise, publish
from tests.stack.stack import LIMIT, Stack, model_toml
from tests.waiting import until_sync
from tests.weights import hub as hubs

WEIGHTS = 7_000_000


@pytest.fixture
def hub() -> Iterator[hubs.HubServer]:
    with hubs.running() as server:
        server.add("org/seven", {"seven-F32.gguf": bytes(WEIGHTS)})
        yield server


@pytest.fixture
def four(registries: Registries) -> Image:
    registries.proxy.faults = Faults()
    return publish(registries.behind, "outrider/four", "1", [layer({"x": noise(4_000_000, 5)})])


@pytest.fixture
def stack(
    registries: Registries, four: Image, hub: hubs.HubServer, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stack]:
    """The store and Podman's storage on one disk of 16 MiB; a model whose image and weights are both elsewhere."""
    with PodmanOfMine({REAL: registries.proxy.where}, root=small_disk / "root") as mine:
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(mine.registries))
        monkeypatch.setenv("REGISTRY_AUTH_FILE", "/nonexistent/auth.json")
        stack = Stack(mine.socket, gateway=False)
        settle(stack, hub, "missing")
        for folder in (small_disk / "store", stack.paths.store):
            folder.mkdir(exist_ok=True)
        subprocess.run(["mount", "--bind", small_disk / "store", stack.paths.store], check=True)
        variant = {
            "name": "f32",
            "format": "gguf",
            "quantisation": "F32",
            "repository": "org/seven:F32",
            "weight_bytes": WEIGHTS,
        }
        entry = {"name": "m", "image": f"{REAL}/outrider/four:1", "context": 2048, "parallel": 1, "threads": 1}
        (stack.paths.models_d / "m.toml").write_text(model_toml({**entry, "variants": [variant]}))
        try:
            with stack:
                yield stack
        finally:
            subprocess.run(["umount", "-l", stack.paths.store], check=True)


def settle(stack: Stack, hub: hubs.HubServer, pull: str) -> None:
    stack.write_settings(
        f'[hub]\nendpoint = "{hub.endpoint}"\ncache = "/nonexistent"\n'
        f'[store]\nlow_water = 0.0\n[images]\npull = "{pull}"\n'
    )


def ended(stack: Stack, path: str, body: object) -> Any:
    """A job at its end."""
    begun = stack.send("POST", f"/api/v1/{path}", body)
    assert begun.status_code == 202, begun.text
    where = f"/api/v1/jobs/{begun.json()['id']}"
    return until_sync(lambda: (v := stack.get(where))["state"] != "running" and v, LIMIT, "the job ends")


def test_what_fits_alone_and_not_together_is_refused_before_a_byte(
    stack: Stack, hub: hubs.HubServer, registries: Registries, four: Image
) -> None:
    command = [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), "start", "m", "--pull", "--json"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    print(refused.stderr)
    assert refused.returncode == 4
    error = json.loads(refused.stdout)["error"]
    assert error["code"] == "disk_full"
    (event,) = [e for e in stack.get("/api/v1/events") if e["code"] == "disk_full"]
    needed = int((WEIGHTS + int(four.compressed * 2.5)) * 1.1)
    assert event["evidence"]["needed_bytes"] == needed > event["evidence"]["free_bytes"]
    assert "m and image docker.io/outrider/four:1 need" in event["text"]
    assert (hub.served, hub.bytes_sent) == ([], 0)
    assert not [a for a in registries.proxy.faults.asked if "/blobs/" in a]

    # the weights alone fit, where no start brings the image; while they come, the image is refused
    settle(stack, hub, "never")
    assert stack.send("POST", "/api/v1/reload", {}).status_code == 200
    hub.rate = 2_000_000
    pulling = stack.send("POST", "/api/v1/pulls", {"model": "m"}).json()
    until_sync(lambda: hub.bytes_sent, LIMIT, "bytes come")
    said = ended(stack, "images/pull", {"image": "outrider/four:1"})["error"]
    print(said)
    assert said["code"] == "disk_full"
    assert "image docker.io/outrider/four:1 and m, which is on its way, need" in said["text"]
    assert stack.send("DELETE", f"/api/v1/jobs/{pulling['id']}").json()["state"] == "cancelled"

    # and the image alone fits as well
    for partial in stack.paths.store.rglob("*.partial"):
        partial.unlink()
    assert ended(stack, "images/pull", {"image": "outrider/four:1"})["state"] == "done"

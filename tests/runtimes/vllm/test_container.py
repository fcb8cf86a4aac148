"""A whole Outrider with vLLM: planned, started in Podman without a network, proven, asked through the gateway."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from orchestrator.catalogue import shipped
from tests.models import hf
from tests.models.tokenizer import recital
from tests.runtimes.vllm import image
from tests.runtimes.vllm.venv import ensure
from tests.stack.stack import Stack, model_toml

IMAGE = "vllm-cpu"
"""The catalogue's name of it. What is run is our own image under its reference: registries are out of reach."""
START_S = 420.0
TOKENS = 128

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def vllm_image() -> Iterator[str]:
    """Our image, under the reference that plans name."""
    ours = image.ensure(ensure())
    (reference,) = (entry.reference for entry in shipped().images if entry.name == IMAGE)
    held = subprocess.run(["podman", "image", "exists", reference], check=False, timeout=60).returncode == 0
    if not held:
        subprocess.run(["podman", "tag", ours, reference], check=True, timeout=60)
    yield reference
    if not held:
        subprocess.run(["podman", "untag", ours, reference], check=False, timeout=60)


@pytest.fixture(scope="module")
def stack(podman_socket: str, vllm_image: str) -> Iterator[Stack]:
    stack = Stack(podman_socket, scale=0.5)
    hf.generate(stack.paths.store, (hf.TARGET, hf.DFLASH))
    entry = {
        "name": "recital",
        "aliases": ["org/Recital"],
        "image": IMAGE,
        "variants": [{"name": "f32", "format": "safetensors", "quantisation": "F32", "path": hf.TARGET}],
        "drafters": [{"name": "dflash", "method": "dflash", "format": "safetensors", "path": hf.DFLASH}],
        "speculation": {"method": "dflash"},
        "context": 1024,
        "parallel": 2,
        "threads": 1,
        "load_s": START_S,
    }
    (stack.paths.models_d / "recital.toml").write_text(model_toml(entry))
    with stack:
        answer = stack.want("recital", "running")
        assert answer.status_code < 300, answer.text
        stack.wait_state("recital", "ready", limit=START_S)
        yield stack


def test_it_is_planned_started_and_drafts(stack: Stack) -> None:
    view = stack.deployment("recital")
    engine = view["engine"]
    assert (engine["runtime"], engine["method"], engine["draft_tokens"], engine["port"]) == ("vllm", "dflash", 7, None)
    for model in ("recital", "org/Recital"):
        answer = stack.chat(model, TOKENS, prompt="Say it.")
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == recital(TOKENS)
        assert answer.headers["x-outrider-method"] == "dflash"
    what = "{{.HostConfig.NetworkMode}} {{.HostConfig.ReadonlyRootfs}}"
    state = stack.podman("inspect", "--format", what, engine["container_id"])
    assert state.split() == ["none", "true"]


def test_it_ends_when_it_is_told_to(stack: Stack) -> None:
    container = stack.deployment("recital")["engine"]["container_id"]
    stack.want("recital", "stopped")
    stack.wait_state("recital", "stopped", limit=60)
    assert container not in stack.containers()

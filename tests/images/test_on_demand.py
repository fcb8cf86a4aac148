"""A request for a model whose image takes longer to come than the request waits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.images.conftest import REAL, Registries
from tests.images.registry import PodmanOfMine
from tests.models import generate as g
from tests.stack.stack import LIMIT, Stack


@pytest.fixture
def engine(registries: Registries, podman_socket: str, embedded_image: str) -> str:
    """The embedded engine's image in the open registry."""
    what = (embedded_image.removeprefix("sha256:"), f"{registries.behind}/outrider/llama-cpu:1")
    command = ["podman", "--url", f"unix://{podman_socket}", "push", "-q", "--tls-verify=false", *what]
    subprocess.run(command, check=True, timeout=120)
    return f"{REAL}/outrider/llama-cpu:1"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_who_waited_for_a_pull_is_told_how_far_it_is_and_the_pull_goes_on(
    mine: PodmanOfMine, registries: Registries, engine: str, test_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(mine.registries))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", "/nonexistent/auth.json")
    stack = Stack(mine.socket)
    stack.define("m", test_models / g.TARGET, method="none", image=engine)
    file = stack.paths.config_file
    file.write_text(file.read_text().replace("[gateway]", "[gateway]\nhold_s = 3"))
    registries.proxy.faults.pace_rate = 500_000
    with stack:
        assert stack.want("m", "on_demand").status_code == 200
        answer = stack.chat("m", 4)
        assert answer.status_code == 503, answer.text
        error = answer.json()["error"]
        print(error["message"], answer.headers["retry-after"])
        assert error["code"] == "hold_timeout"
        assert "pulling docker.io/outrider/llama-cpu:1, " in error["message"]
        assert " MB (" in error["message"], "how far it is"
        assert "; it goes on, ask again later [pulling]" in error["message"]
        assert int(answer.headers["retry-after"]) >= 1
        assert stack.deployment("m")["state"] == "pulling"
        registries.proxy.faults.pace_rate = None
        stack.wait(lambda: stack.deployment("m")["state"] == "ready", limit=2 * LIMIT, what="it comes, unasked")
        assert stack.text("m", 4) == "abcd"
        jobs = [j for j in stack.get("/api/v1/jobs") if j["kind"] == "image_pull"]
        assert [j["state"] for j in jobs] == ["done"], "one pull, never called off"

"""A whole daemon that starts a model whose image is not here: pulled, shown, called off, or parked with its reason."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.images.conftest import CLOSED, REAL, Registries
from tests.images.registry import PASSWORD, USER, Faults, PodmanOfMine, Proxy, layer, publish, registry
from tests.models import generate as g
from tests.stack.stack import LIMIT, Stack
from tests.waiting import until_sync

IMAGE = f"{REAL}/outrider/llama-cpu:1"


@pytest.fixture(scope="module")
def engine(registries: Registries, podman_socket: str, embedded_image: str) -> str:
    """The embedded engine's image in both registries."""
    for where, login in ((registries.behind, ()), (registries.closed, (f"--creds={USER}:{PASSWORD}",))):
        what = (embedded_image.removeprefix("sha256:"), f"{where}/outrider/llama-cpu:1")
        command = ["podman", "--url", f"unix://{podman_socket}", "push", "-q", "--tls-verify=false", *login, *what]
        subprocess.run(command, check=True, timeout=120)
    return IMAGE


@pytest.fixture
def stack(mine: PodmanOfMine, test_models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(mine.registries))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", "/nonexistent/auth.json")
    stack = Stack(mine.socket, gateway=False)
    for name in ("m", "n"):
        stack.define(name, test_models / g.TARGET, method="none", image=IMAGE)
    stack.define("closed", test_models / g.TARGET, method="none", image=f"{CLOSED}/outrider/llama-cpu:1")
    with stack:
        yield stack


def slow(proxy: Proxy, rate: float) -> None:
    """Blobs come at so many bytes a second from now on."""
    proxy.faults.pace_rate = rate


def test_a_start_brings_its_image(stack: Stack, mine: PodmanOfMine, registries: Registries, engine: str) -> None:
    slow(registries.proxy, 10_000_000)
    for name in ("m", "n"):
        assert stack.want(name, "running").status_code < 300
    seen: list[float] = []

    def pulled() -> bool:
        for name in ("m", "n"):
            view = stack.deployment(name)
            assert view["state"] != "failed", view["reason"]
            if view["state"] == "pulling" and (view["progress"] or {}).get("fraction"):
                seen.append(view["progress"]["fraction"])
        return stack.deployment("m")["state"] not in ("pulling", "creating", "stopped")

    until_sync(pulled, LIMIT, "the image is here")
    assert len(set(seen)) >= 2, "bytes rose"
    assert max(seen) <= 1
    for name in ("m", "n"):
        stack.wait_state(name, "ready")
    jobs = [j for j in stack.get("/api/v1/jobs") if j["kind"] == "image_pull"]
    assert [(j["subject"], j["state"]) for j in jobs] == [(engine, "done")], "one pull for both"
    (image,) = [i for i in stack.get("/api/v1/images") if i["reference"] == engine]
    assert image["used_by"] == ["m", "n"]
    view = stack.deployment("m")
    assert view["engine"]["image"] == image["id"], "the plan names the id, which fixes its digest"
    assert not view["drifted"]
    refused = stack.send("DELETE", f"/api/v1/images?image={engine}")
    assert refused.status_code == 409
    assert "is used by m, n" in refused.json()["detail"]
    assert mine.left_over() == []

    # pinned to what it means anyway, the plan launches the same
    pinned = stack.send("PUT", "/api/v1/images/pin", {"image": engine})
    assert (pinned.status_code, pinned.json()["digest"]) == (200, image["digest"])
    plan = stack.send("POST", "/api/v1/plans", {"model": "m"}).json()["plan"]
    assert plan["image"] == f"{REAL}/outrider/llama-cpu@{image['digest']}"
    assert stack.send("POST", "/api/v1/deployments/m/apply").status_code < 300
    until_sync(lambda: "plan_unchanged" in stack.codes("m"), LIMIT, "a plan with the pinned image")

    # what runs does not notice a pull that goes wrong
    registries.proxy.faults.corrupt = 0
    job = stack.send("POST", "/api/v1/images/pull", {"image": f"{REAL}/outrider/tiny:1"}).json()
    until_sync(lambda: stack.get(f"/api/v1/jobs/{job['id']}")["state"] == "failed", LIMIT, "the pull fails")
    after = stack.deployment("m")
    assert (after["state"], after["engine"]["pid"]) == ("ready", view["engine"]["pid"])
    assert after["restarts"] == 0


def test_a_stop_calls_the_pull_off(stack: Stack, mine: PodmanOfMine, registries: Registries, engine: str) -> None:
    slow(registries.proxy, 500_000)
    stack.want("m", "running")
    until_sync(lambda: registries.proxy.faults.open and mine.left_over(), LIMIT, "bytes move")
    assert stack.deployment("m")["state"] == "pulling"
    stack.want("m", "stopped")
    stack.wait_state("m", "stopped")
    until_sync(lambda: not registries.proxy.faults.open and not mine.left_over(), LIMIT, "nothing is left")
    assert {j["state"] for j in stack.get("/api/v1/jobs")} == {"cancelled"}
    assert mine.run("images", "-q") == ""


@pytest.mark.slow
def test_a_daemon_that_is_killed_pulls_again(
    stack: Stack, mine: PodmanOfMine, registries: Registries, engine: str
) -> None:
    slow(registries.proxy, 500_000)
    stack.want("m", "running")
    until_sync(lambda: registries.proxy.faults.open and mine.left_over(), LIMIT, "bytes move")
    stack.kill_daemon(signal.SIGKILL)
    until_sync(lambda: not registries.proxy.faults.open and not mine.left_over(), LIMIT, "Podman cleans up")
    registries.proxy.faults = Faults()
    stack.start_daemon()
    stack.wait_state("m", "ready")
    assert mine.left_over() == []


def ended(stack: Stack, job: str) -> Any:
    """A job at its end."""
    return until_sync(lambda: (v := stack.get(f"/api/v1/jobs/{job}"))["state"] != "running" and v, LIMIT, "it ends")


@pytest.mark.slow
def test_what_trying_cannot_heal_parks(stack: Stack, mine: PodmanOfMine, engine: str, tmp_path: Path) -> None:
    stack.want("closed", "running")
    view = stack.wait_state("closed", "failed", may_fail=True)
    print(view["reason"])
    assert view["reason"]["code"] == "auth_failed"
    assert "podman login ghcr.io" in view["reason"]["hint"]
    assert view["next_attempt_s"] is None, "a login is for a person to give"

    # with a login that is wrong, and one that is right: neither is in anything that the daemon or Podman wrote
    secrets = [b"wrong-horse", PASSWORD.encode()]
    file = tmp_path / "auth.json"
    stack.write_settings(f'[images]\nauth_file = "{file}"\n')
    assert stack.send("POST", "/api/v1/reload", {}).status_code == 200
    for secret, state in zip(secrets[:], ("failed", "done"), strict=True):
        basic = base64.b64encode(USER.encode() + b":" + secret)
        secrets.append(basic)
        file.write_text(json.dumps({"auths": {CLOSED: {"auth": basic.decode()}}}))
        job = stack.send("POST", "/api/v1/images/pull", {"image": f"{CLOSED}/outrider/tiny:1"}).json()["id"]
        assert ended(stack, job)["state"] == state
    told = json.dumps([stack.get(f"/api/v1/{path}") for path in ("jobs", "events", "issues", "images")]).encode()
    for folder in (stack.folder, mine.folder):
        written = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        assert written
        for text in (told, *(path.read_bytes() for path in written)):
            assert not [secret for secret in secrets if secret in text]


@pytest.mark.slow
def test_what_may_heal_is_tried_again(stack: Stack, registries: Registries, engine: str) -> None:
    registries.proxy.faults.status = 429
    registries.proxy.faults.retry_after = "3600"
    stack.want("m", "running")
    view = stack.wait_state("m", "failed", may_fail=True)
    print(view["reason"])
    assert view["reason"]["code"] == "rate_limited"
    until_sync(lambda: stack.deployment("m")["next_attempt_s"] is not None, LIMIT, "it is tried again")
    registries.proxy.faults = Faults()
    stack.wait_state("m", "ready", may_fail=True)


@pytest.mark.slow
def test_a_start_may_be_told_to_pull_nothing(stack: Stack, registries: Registries, engine: str) -> None:
    stack.write_settings('[images]\npull = "never"\n')
    assert stack.send("POST", "/api/v1/reload", {}).status_code == 200
    stack.want("m", "running")
    reason = stack.wait_state("m", "failed", may_fail=True)["reason"]
    assert reason["code"] == "image_missing"
    assert f"`outrider image pull {engine}` fetches it" in reason["hint"]
    assert registries.proxy.faults.asked == []


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A registry with `outrider/large:1`, a gigabyte that does not compress."""
    with registry(tmp_path_factory.mktemp("large")) as where:
        data = os.urandom(1_000_000_000)
        yield where, publish(where, "outrider/large", "1", [layer({"large": data}, level=0)]).layer_bytes


def gigabyte(stack: Stack) -> dict[str, object]:
    """Begin to pull it, and wait until a third is here; the job."""
    answer = stack.send("POST", "/api/v1/images/pull", {"image": f"{REAL}/outrider/large:1"})
    assert answer.status_code == 202, answer.text
    job: dict[str, object] = answer.json()
    seen: list[int] = []

    def third() -> bool:
        now = stack.get(f"/api/v1/jobs/{job['id']}")
        assert now["state"] == "running", now
        seen.append(now["done_bytes"] or 0)
        return seen[-1] > (now["total_bytes"] or 0) / 3 > 0

    until_sync(third, 120, "a third is here")
    assert seen == sorted(seen)
    assert len(set(seen)) >= 3, "progress in bytes"
    print(f"bytes seen: {sorted(set(seen))}")
    return job


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_gigabyte_is_killed_half_way_in_every_way(
    large: tuple[str, int], tmp_path: Path, test_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, size = large
    with Proxy(where) as proxy, PodmanOfMine({REAL: proxy.where}) as mine:
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(mine.registries))
        slow(proxy, 60_000_000)
        with Stack(mine.socket, gateway=False) as stack:
            # cancelled by a person
            job = gigabyte(stack)
            assert stack.send("DELETE", f"/api/v1/jobs/{job['id']}").json()["state"] == "cancelled"
            until_sync(lambda: not proxy.faults.open and not mine.left_over(), LIMIT, "nothing is left")
            # the daemon killed
            gigabyte(stack)
            stack.kill_daemon(signal.SIGKILL)
            until_sync(lambda: not proxy.faults.open and not mine.left_over(), LIMIT, "nothing is left")
            stack.start_daemon()
            # Podman killed: the pull goes on with the next Podman
            job = gigabyte(stack)
            mine.kill()
            assert mine.left_over(), "a killed Podman cleans up nothing"
            mine.start()
            done = until_sync(
                lambda: (v := stack.get(f"/api/v1/jobs/{job['id']}"))["state"] != "running" and v, 300, "it is here"
            )
            assert done["state"] == "done", done
            assert done["done_bytes"] == done["total_bytes"] == size
            codes = stack.codes()
            assert "image_leftovers_swept" in codes
            assert "image_pull_again" in codes
            assert mine.left_over() == []
            assert len(mine.layers()) == 1
            assert stack.send("DELETE", f"/api/v1/images?image={REAL}/outrider/large:1").status_code == 200
            assert mine.layers() == []

"""The commands on a whole Outrider: pulled, killed half-way, gone on with, started, answering, verified, removed."""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.stack import Stack, model_toml
from tests.waiting import until_sync
from tests.weights import hub as hubs
from tests.weights.test_existing import fill

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
TOKEN = "hf_" + "TopSecret" * 3


def outrider(stack: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    print(f"$ outrider {' '.join(words)} -> {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def as_json(stack: Stack, *words: str, code: int = 0) -> Any:
    done = outrider(stack, *words, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def job(stack: Stack, path: str, body: object = None) -> Any:
    """A long call by the API, which is quicker than a command: the job at its end."""
    answer = stack.send("POST", f"/api/v1/{path}", body)
    if answer.is_error:
        found = answer.json()
        print(f"POST {path} {body} -> [{found['code']}] {found['detail']} | {found['hint']}")
        return {"state": "refused", "error": {**found, "text": found["detail"]}}
    name = answer.json()["id"]
    found = until_sync(lambda: (v := stack.get(f"/api/v1/jobs/{name}"))["state"] != "running" and v, 60, "the job")
    error = found["error"]
    said = found["detail"] if error is None else f"[{error['code']}] {error['text']} | {error['hint']}"
    print(f"POST {path} {body} -> {found['state']}: {said}")
    return found


@pytest.fixture
def make(
    podman_socket: str, embedded_image: str, hub: hubs.HubServer, tmp_path: Path
) -> Iterator[Callable[..., Stack]]:
    """A stack whose hub is ours, whose cache is empty, and whose token lies in a file."""
    made: list[Stack] = []
    secret = tmp_path / "token"
    secret.write_text(TOKEN + "\n")
    secret.chmod(0o600)
    hub.tokens = {TOKEN}

    def one(store: str = "", cache: Path | None = None) -> Stack:
        stack = Stack(str(podman_socket))
        stack.write_settings(
            f'[hub]\nendpoint = "{hub.endpoint}"\ntoken_file = "{secret}"\n'
            f'cache = "{cache or tmp_path / "cache"}"\n[store]\nlow_water = 0.0\n{store}'
        )
        made.append(stack)
        return stack

    yield one
    for stack in made:
        stack.close()


def define(stack: Stack, name: str = "tiny") -> None:
    """A model of two repositories of ours: a target, and its DFlash drafter."""
    data = {
        "name": name,
        "variants": [
            {
                "name": "f32",
                "format": "gguf",
                "quantisation": "F32",
                "repository": "org/tiny-GGUF:F32",
                "weight_bytes": 1331136,
            }
        ],
        "drafters": [
            {
                "name": "fast",
                "method": "dflash",
                "format": "gguf",
                "repository": "org/tiny-dflash:F32",
                "weight_bytes": 417248,
            }
        ],
        "context": 2048,
        "parallel": 1,
        "threads": 1,
    }
    (stack.paths.models_d / f"{name}.toml").write_text(model_toml(data))


def offer(hub: hubs.HubServer, models: Path) -> None:
    target, drafter = (models / g.TARGET).read_bytes(), (models / g.DFLASH).read_bytes()
    hub.add("org/tiny-GGUF", {"tiny-F32.gguf": target, "tiny-Q4_0.gguf": b"no" * 4000, "README.md": b"x"}, private=True)
    hub.add("org/tiny-dflash", {"tiny-dflash-F32.gguf": drafter, "train.py": b"import os"})


@pytest.mark.slow
def test_from_the_hub_to_an_answer_with_a_daemon_killed_on_the_way(
    make: Callable[..., Stack], hub: hubs.HubServer, test_models: Path
) -> None:
    offer(hub, test_models)
    target = (test_models / g.TARGET).read_bytes()
    stack = make()
    define(stack)
    with stack:
        plan = stack.send("POST", "/api/v1/plans", {"model": "tiny"}).json()["plan"]
        assert {"weights_missing", "drafter_missing"} <= {r["code"] for r in plan["reasons"]}
        stack.want("tiny", "running")
        why = stack.wait_state("tiny", "failed", may_fail=True)["reason"]
        assert "outrider start tiny --pull" in why["hint"]
        dry = as_json(stack, "model", "pull", "tiny", "--dry-run")
        assert dry["fetch_bytes"] == dry["total_bytes"] == len(target) + (test_models / g.DFLASH).stat().st_size
        assert [f["path"] for p in dry["parts"] for f in p["files"]] == ["tiny-F32.gguf", "tiny-dflash-F32.gguf"]
        assert dry["fits"] is True
        assert hub.bytes_sent == 0

        hub.rate = len(target) / 2
        command = [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), "model", "pull", "tiny"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as pulling:
            until_sync(lambda: hub.bytes_sent > len(target) // 3, 30, "a third of it")
            stack.kill_daemon()
            _, errors = pulling.communicate(timeout=30)
        assert pulling.returncode == 6
        assert re.search(r"tiny-F32.gguf \(file 1 of 1\), [\d.]+ of [\d.]+ MB, [\d.]+ MB/s", errors), errors
        hub.rate = None
        (partial,) = stack.paths.store.rglob("*.partial")
        there = partial.stat().st_size
        assert there > 0
        stack.start_daemon()
        before = hub.bytes_sent
        started = outrider(stack, "start", "tiny", "--pull", "--wait")
        assert started.returncode == 0, started.stderr
        assert hub.ranges("tiny-F32.gguf") == [None, f"bytes={there}-"]
        assert hub.bytes_sent - before == dry["total_bytes"] - there
        assert stack.text("tiny", 40) == recital(40)
        engine = stack.deployment("tiny")["engine"]
        assert engine["method"] == "dflash"

        said = stack.get("/api/v1/models")
        variant, drafter = next(m for m in said if m["name"] == "tiny")["weights"]
        assert (variant["state"], variant["revision"]) == ("here", hub.heads["org/tiny-GGUF"])
        assert (drafter["bytes"], drafter["origin"], drafter["checked_ok"]) == (
            (test_models / g.DFLASH).stat().st_size,
            "hub",
            True,
        )
        asked = len(hub.api)
        assert job(stack, "pulls", {"model": "tiny"})["result"]["fetched_bytes"] == 0
        assert len(hub.api) == asked, "what is here needs no hub"

        good = job(stack, "models/tiny/verify")["result"]
        assert (good["ok"], len(good["files"])) == (True, 2)
        assert stack.send("DELETE", "/api/v1/models/tiny?weights=true").status_code == 409, "it runs"
        stack.want("tiny", "stopped")
        stack.wait_state("tiny", "stopped")
        weights = Path(variant["path"])
        with weights.open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"\x55")
        bad = as_json(stack, "model", "verify", "tiny", code=1)
        assert [f["ok"] for f in bad["files"]] == [False, True]
        assert "weights_damaged" in {i["code"] for i in stack.get("/api/v1/issues")}
        assert job(stack, "pulls", {"model": "tiny"})["state"] == "done"
        assert weights.read_bytes() == target, "what was damaged is fetched again"
        assert job(stack, "models/tiny/verify")["result"]["ok"] is True
        assert "weights_damaged" not in {i["code"] for i in stack.get("/api/v1/issues")}
        no_secret(stack)


def no_secret(stack: Stack, token: str = TOKEN) -> None:
    """The token is in no file of ours, and in no answer."""
    for file in stack.folder.rglob("*"):
        assert not file.is_file() or token.encode() not in file.read_bytes(), file
    for path in ("jobs", "events", "issues", "models", "deployments"):
        assert token not in json.dumps(stack.get(f"/api/v1/{path}"))


@pytest.mark.slow
def test_a_repository_becomes_a_model_of_its_own(
    make: Callable[..., Stack], hub: hubs.HubServer, test_models: Path
) -> None:
    offer(hub, test_models)
    stack = make("quota_bytes = 30000000\n")
    with stack:
        unnamed = job(stack, "pulls", {"model": "org/tiny-GGUF"})["error"]
        assert (unnamed["code"], "--name NAME" in unnamed["hint"]) == ("not_found", True)
        ambiguous = job(stack, "pulls", {"repository": "org/tiny-GGUF", "name": "mine"})["error"]
        assert ambiguous["code"] == "not_offered"
        assert "--file" in ambiguous["hint"]
        words = ("org/tiny-GGUF", "--file", "*F32*", "--name", "mine", "--threads", "1", "--context", "2048")
        pulled = as_json(stack, "model", "pull", *words)
        assert pulled["result"]["fetched_bytes"] == (test_models / g.TARGET).stat().st_size
        text = (stack.paths.models_d / "mine.toml").read_text()
        assert f'revision = "{hub.heads["org/tiny-GGUF"]}"' in text
        assert 'file = "tiny-F32.gguf"' in text
        stack.start("mine")
        assert stack.text("mine", 20) == recital(20)
        stack.want("mine", "stopped")
        stack.wait_state("mine", "stopped")

        sent = hub.bytes_sent
        second = ("--repository", "org/tiny-GGUF", "--file", "tiny-F32.gguf", "--threads", "1")
        assert outrider(stack, "model", "add", "other", *second).returncode == 0
        assert hub.bytes_sent == sent, "two models share the file"
        # what is on its way from the same repository is not removed under the pull
        hub.rate = 2000
        coming = {"repository": "org/tiny-GGUF", "file": "tiny-Q4_0.gguf", "name": "coming"}
        pulling = stack.send("POST", "/api/v1/pulls", coming).json()["id"]
        until_sync(lambda: list(stack.paths.store.rglob("*.partial")), 20, "it comes")
        assert stack.send("DELETE", "/api/v1/models/other").status_code == 204
        busy = stack.send("DELETE", "/api/v1/models/mine?weights=true")
        print(busy.text)
        assert (busy.status_code, busy.json()["code"]) == (409, "conflict")
        assert list(stack.paths.store.rglob("*.partial"))
        assert stack.send("DELETE", f"/api/v1/jobs/{pulling}").json()["state"] == "cancelled"
        hub.rate = None
        assert outrider(stack, "model", "add", "other", *second).returncode == 0
        shared = outrider(stack, "model", "rm", "other", "--weights")
        assert shared.returncode == 4
        assert "also those of mine" in shared.stderr
        assert stack.send("DELETE", "/api/v1/models/other").status_code == 204
        assert outrider(stack, "model", "rm", "mine", "--weights").returncode == 0
        assert not list(stack.paths.store.rglob("*.gguf"))
        assert job(stack, "pulls", {"model": "mine"})["error"]["code"] == "not_found"

        hub.add("org/large", {"model.gguf": bytes(40_000_000)})
        full = job(stack, "pulls", {"repository": "org/large", "file": "*.gguf", "name": "large"})["error"]
        assert full["code"] == "disk_full"
        assert "quota_bytes" in full["hint"]
        stack.write_settings(f'[hub]\nendpoint = "{hub.endpoint}"\n[store]\nlow_water = 0.0\n')
        change = stack.send("POST", "/api/v1/reload", {}).json()["changes"]
        assert {c["subject"]: c["action"] for c in change}["hub.token_file"] == "none"
        unseen = job(stack, "pulls", {"repository": "org/tiny-GGUF", "file": "*F32*", "name": "mine"})["error"]
        assert unseen["code"] == "auth_failed", "the token's file is named no longer"


@pytest.mark.slow
def test_progress_at_least_every_two_seconds_also_when_nothing_comes(
    make: Callable[..., Stack], hub: hubs.HubServer, test_models: Path
) -> None:
    """A drip, then silence; Ctrl-C cancels the job, and the bytes stay."""
    data = bytes(2_000_000)
    hub.add("org/drip", {"model.gguf": data})
    hub.rate = 150_000
    hub.silent_after = 400_000
    stack = make()
    with stack:
        command = [sys.executable, "-u", "-m", "api.cli", "--state-dir", str(stack.folder), "model", "pull"]
        command += ["org/drip", "--file", "*.gguf", "--name", "drip"]
        pulling = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        seen: list[tuple[float, str]] = []
        assert pulling.stderr is not None
        for line in pulling.stderr:
            seen.append((time.monotonic(), line.strip()))
            if "nothing came for" in line:
                break
        pulling.send_signal(2)
        rest = pulling.stderr.read()
        pulling.stderr.close()
        assert pulling.stdout is not None
        pulling.stdout.close()
        assert pulling.wait(20) == 130
        print("\n".join(f"{at - seen[0][0]:6.2f} {line}" for at, line in seen[:: max(1, len(seen) // 12)]), rest)
        gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(seen)]
        assert max(gaps) < 2.0, gaps
        assert seen[-1][0] - seen[0][0] > 2.5
        assert "goes on where" in rest
        (job,) = stack.get("/api/v1/jobs")
        assert job["state"] == "cancelled"
        (partial,) = stack.paths.store.rglob("*.partial")
        assert partial.stat().st_size == 400_000


def test_each_refusal_as_its_owner_sees_it(make: Callable[..., Stack], hub: hubs.HubServer, tmp_path: Path) -> None:
    """401, 403, 404, 429, a wrong digest, a disk that is full, one that is read-only; and the way out of each."""
    size = 2 * 2**20
    for name, more in {"gated": {"gated": True}, "secret": {"private": True}, "open": {}}.items():
        hub.add(f"org/{name}", {"m.gguf": bytes(range(256)) * (size // 256)}, **more)
    stack = make()
    secret = tmp_path / "token"
    stack.paths.store.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(stack.paths.store)], check=True)
    try:
        with stack:

            def refused(repository: str, code: str) -> str:
                error = job(stack, "pulls", {"repository": repository, "file": "m.gguf", "name": "m"})["error"]
                assert error["code"] == code
                assert error["hint"]
                return f"{error['text']} {error['hint']}"

            secret.write_text("hf_one\nhf_two\n")
            said = outrider(stack, "model", "pull", "org/secret", "--file", "m.gguf", "--name", "m")
            assert said.returncode == 4
            assert re.search(r"error\[auth_failed\]: .* holds a line break", said.stderr)
            assert hub.api == [], "nothing was sent"
            secret.write_text("hf_wrong")
            secret.chmod(0o644)
            assert "does not know the token" in refused("org/secret", "auth_failed")
            assert "token_readable" in {i["code"] for i in stack.get("/api/v1/issues")}
            secret.write_text("hf_x-nogate")
            secret.chmod(0o600)
            hub.tokens |= {"hf_x-nogate"}
            assert f"accept it at {hub.endpoint}/org/gated" in refused("org/gated", "auth_gated")
            assert "token_readable" not in {i["code"] for i in stack.get("/api/v1/issues")}
            refused("org/none", "not_offered")
            hub.refuse = [(429, {"Retry-After": "1800"})]
            assert "no more within 1800 s" in refused("org/open", "rate_limited")
            hub.corrupt = {"m.gguf"}
            assert "its digest differs" in refused("org/open", "digest_mismatch")
            assert not list(stack.paths.store.rglob("*.partial"))
            hub.corrupt = set()

            ballast = stack.paths.store / "ballast"

            def fill(sent: int) -> None:
                if not ballast.exists():
                    ballast.write_bytes(bytes(6 * 2**20 - size))

            hub.pause = fill
            refused("org/open", "disk_full")
            hub.pause = None
            assert list(stack.paths.store.rglob("*.partial")), "what came stays"
            ballast.unlink()
            subprocess.run(["mount", "-o", "remount,ro", str(stack.paths.store)], check=True)
            refused("org/open", "disk_read_only")
            subprocess.run(["mount", "-o", "remount,rw", str(stack.paths.store)], check=True)
            hub.refuse_bytes = [(503, {})]
            assert "is no GGUF file" in refused("org/open", "model_file"), "it came, and is no model"
            assert [s.status for s in hub.served if s.host == "cdn"][-2:] == [503, 206]
            for token in ("hf_one", "hf_two", "hf_wrong", "hf_x-nogate"):
                no_secret(stack, token)
    finally:
        subprocess.run(["umount", "-l", str(stack.paths.store)], check=True)


def one_tensor(data: bytes) -> bytes:
    """A safetensors file that holds these bytes."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    return len(header).to_bytes(8, "little") + header + data


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_gigabyte_with_its_daemon_killed_half_way(
    make: Callable[..., Stack], hub: hubs.HubServer, tmp_path: Path
) -> None:
    """At full size: resumed at the byte, progress all along, and the digest over all of it is right."""
    piece = random.Random(3).randbytes(2**20)
    data = one_tensor(b"".join(i.to_bytes(4, "big") + piece[4:] for i in range(1000)))
    hub.add("org/large", {"config.json": b"{}", "model.safetensors": data})
    hub.rate = 400_000_000
    stack = make()
    with stack:
        command = [
            sys.executable,
            "-u",
            "-m",
            "api.cli",
            "--state-dir",
            str(stack.folder),
            "model",
            "pull",
            "org/large",
        ]
        with subprocess.Popen([*command, "--name", "large"], stderr=subprocess.PIPE, text=True) as pulling:
            until_sync(lambda: hub.bytes_sent > len(data) // 2, 60, "half of it")
            stack.kill_daemon()
            pulling.communicate(timeout=30)
        (partial,) = stack.paths.store.rglob("*.partial")
        there = partial.stat().st_size
        stack.start_daemon()
        seen: list[float] = []
        began, before = time.monotonic(), hub.bytes_sent
        with subprocess.Popen([*command, "--name", "large"], stderr=subprocess.PIPE, text=True) as pulling:
            assert pulling.stderr is not None
            for line in pulling.stderr:
                seen.append(time.monotonic())
                print(f"{seen[-1] - began:6.2f} {line.strip()}")
        assert pulling.returncode == 0
        assert max(b - a for a, b in itertools.pairwise(seen)) < 2.0
        assert hub.ranges("model.safetensors") == [None, f"bytes={there}-"]
        assert hub.bytes_sent - before == len(data) - there
        print(f"{len(data) / 1e6:.0f} MB, killed at {there / 1e6:.0f} MB; the rest in {time.monotonic() - began:.1f} s")
        assert as_json(stack, "model", "verify", "large")["ok"] is True


@pytest.mark.slow
def test_an_engine_runs_from_a_cache_on_another_disk(
    make: Callable[..., Stack], hub: hubs.HubServer, test_models: Path, tmp_path: Path
) -> None:
    """Its repository is mounted as it is, symbolic links and all; nothing is copied and nothing fetched."""
    offer(hub, test_models)
    cache = tmp_path / "other" / "hub"
    cache.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(cache)], check=True)
    try:
        for name in ("org/tiny-GGUF", "org/tiny-dflash"):
            fill(cache, hub.repos[name, hub.heads[name]])
        stack = make(cache=cache)
        define(stack)
        with stack:
            assert job(stack, "pulls", {"model": "tiny"})["result"]["fetched_bytes"] == 0
            assert hub.served == []
            assert not list(stack.paths.store.rglob("*.gguf"))
            stack.start("tiny")
            assert stack.text("tiny", 40) == recital(40)
            assert stack.deployment("tiny")["engine"]["method"] == "dflash"
            assert job(stack, "models/tiny/verify")["result"]["ok"] is True
            outrider(stack, "model", "ls")
            stack.want("tiny", "stopped")
            stack.wait_state("tiny", "stopped")
            assert stack.send("DELETE", "/api/v1/models/tiny?weights=true").status_code == 409, "a person defined it"
            assert list(cache.rglob("tiny-F32.gguf")), "the cache is not ours to empty"
    finally:
        subprocess.run(["umount", "-l", str(cache)], check=True)


@pytest.mark.slow
def test_two_pulls_at_once_wait_for_each_other(make: Callable[..., Stack], hub: hubs.HubServer) -> None:
    hub.add("org/one", {"config.json": b"{}", "model.safetensors": one_tensor(bytes(2_000_000))})
    hub.add("org/two", {"config.json": b"{}", "model.safetensors": one_tensor(bytes(1_000_000))})
    hub.rate = 1_500_000
    stack = make()
    with stack:
        ids = [
            stack.send("POST", "/api/v1/pulls", {"repository": f"org/{name}", "name": name}).json()["id"]
            for name in ("one", "two")
        ]

        def jobs() -> list[Any]:
            return [stack.get(f"/api/v1/jobs/{i}") for i in ids]

        until_sync(lambda: "waiting for another pull" in jobs()[1]["detail"], 20, "the second waits")
        until_sync(lambda: {j["state"] for j in jobs()} == {"done"}, 60, "both are done")
        assert {m["name"] for m in stack.get("/api/v1/models") if m["files_ok"]} >= {"one", "two"}

"""Whatever is wrong gets a clear error with the next step, and what runs goes on running.

One stack with a healthy model, `bystander`, serves all tests: after each it must be the same
container as before, and still say the same.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.stack import Stack
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

JSON = {"content-type": "application/json"}
MEGABYTES = "x" * 10_000_000
ENGINE_MEMORY = 1_600_000_000
"""Bytes that all engines together may take: enough for three of them."""


@pytest.fixture(scope="module")
def served(podman_socket: str, embedded_image: str, test_models: Path) -> Iterator[Stack]:
    stack = Stack(podman_socket, settings=f"[host]\nengine_memory = {ENGINE_MEMORY}\n")
    stack.define("bystander", test_models / g.TARGET, method="none")
    with stack:
        stack.start("bystander")
        yield stack


@pytest.fixture
def stack(served: Stack) -> Iterator[Stack]:
    """The shared stack. Afterwards: the bystander is as it was, and what the test defined is gone."""
    before = served.deployment("bystander")["engine"]["container_id"]
    yield served
    assert_unharmed(served, before)
    extra = [file for file in served.paths.models_d.iterdir() if file.name != "bystander.toml"]
    for file in extra:
        file.unlink()
    if extra:
        assert served.send("POST", "/api/v1/reload", {"dry_run": False}).status_code == 200


def assert_unharmed(stack: Stack, container: str) -> None:
    now = stack.wait_state("bystander", "ready", limit=20)
    assert now["engine"]["container_id"] == container
    assert stack.text("bystander", 40) == recital(40)


def outrider(stack: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def reloaded(stack: Stack) -> None:
    answer = stack.send("POST", "/api/v1/reload", {"dry_run": False})
    assert answer.status_code == 200, answer.text


def failed(stack: Stack, name: str) -> Any:
    """Ask for a model that cannot run: the reason it fails with, having looked wherever a person would."""
    assert stack.want(name, "running").status_code == 200
    view = stack.wait_state(name, "failed", may_fail=True)
    reason = view["reason"]
    assert reason["hint"], "a next step"
    told = [event for event in stack.events(name) if event["code"] == "failed"]
    assert told[-1]["evidence"]["code"] == reason["code"], "the journal says the same"
    assert reason["text"] in told[-1]["text"]
    assert f'"ev_code": "{reason["code"]}"' in stack.log("daemon"), "and so does the log"
    answer = stack.chat(name, 4)
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert error["code"] == "model_not_ready"
    assert reason["code"] in error["message"]
    assert f"`outrider why {name}`" in error["message"]
    return view


# models that there are not


def test_an_unknown_model(stack: Stack) -> None:
    for method, path, body in (
        ("GET", "/api/v1/deployments/nobody", None),
        ("PUT", "/api/v1/deployments/nobody/desired", {"state": "running"}),
        ("POST", "/api/v1/deployments/nobody/restart", None),
        ("GET", "/api/v1/deployments/nobody/logs", None),
        ("POST", "/api/v1/plans", {"model": "nobody"}),
        ("DELETE", "/api/v1/models/nobody", None),
    ):
        answer = stack.send(method, path, body)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
        assert "'nobody'" in answer.json()["detail"]
        assert "outrider models" in answer.json()["hint"]
    for words in (("start", "nobody"), ("stop", "nobody"), ("logs", "nobody"), ("model", "rm", "nobody")):
        said = outrider(stack, *words)
        assert said.returncode == 3, words
        assert "'nobody'" in said.stderr
        assert "`outrider model" in said.stderr
    answer = stack.chat("nobody")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "bystander" in answer.json()["error"]["message"], "it lists the models there are"


# model files


def _missing(file: Path) -> None:
    file.unlink()


def _cut_in_its_tensors(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _cut_in_its_header(file: Path) -> None:
    os.truncate(file, 500)


def _garbage(file: Path) -> None:
    file.write_bytes(bytes(range(256)) * 400)


def _garbage_behind_the_magic(file: Path) -> None:
    file.write_bytes(b"GGUF\x03\0\0\0" + b"\xa5" * 50_000)


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("spoil", "words", "hint"),
    [
        (_missing, "does not exist", "check the path"),
        (_cut_in_its_tensors, "is truncated: it has 665568 of 1331136 bytes", "fetch the file again"),
        (_cut_in_its_header, "claims 47 tensors where 476 bytes can follow", "download the file again"),
        (_garbage, "is no GGUF file", "download the file again"),
        (_garbage_behind_the_magic, "metadata entries where", "download the file again"),
        (_empty, "is empty", "download the file again"),
        (_a_folder, "is a folder", "give the path of the .gguf file itself"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_model_file_that_is_none(
    stack: Stack, test_models: Path, spoil: Callable[[Path], None], words: str, hint: str
) -> None:
    stack.define("bad", test_models / g.TARGET, method="none")
    file = stack.paths.store / "bad" / g.TARGET
    spoil(file)
    reloaded(stack)
    view = failed(stack, "bad")
    assert view["reason"]["code"] == "model_file"
    assert str(file) in view["reason"]["text"]
    assert words in view["reason"]["text"]
    assert hint in view["reason"]["hint"]
    assert view["next_attempt_s"] is None, "nobody tries again what only a person can mend"
    plan = stack.send("POST", "/api/v1/plans", {"model": "bad"}).json()
    assert plan["plan"] is None
    assert words in plan["alternatives"][0]["rejected"]["text"]
    if file.is_dir():
        file.rmdir()


def test_a_model_file_that_was_mended_starts(stack: Stack, test_models: Path) -> None:
    stack.define("bad", test_models / g.TARGET, method="none")
    file = stack.paths.store / "bad" / g.TARGET
    _cut_in_its_tensors(file)
    reloaded(stack)
    failed(stack, "bad")
    file.write_bytes((test_models / g.TARGET).read_bytes())
    stack.start("bad")
    assert stack.text("bad", 20) == recital(20)


# drafters


@pytest.mark.parametrize(
    ("method", "drafter", "words"),
    [
        ("dflash", g.DFLASH_WIDE, "was made for width 96, the target has 64"),
        ("draft", g.DRAFT_FOREIGN, "numbers its tokens differently from the target"),
        ("dflash", g.EAGLE3, "holds a eagle3 model, not a dflash drafter"),
        ("eagle3", g.DFLASH, "holds a dflash model, not a eagle3 drafter"),
        ("draft", g.DFLASH, "is a dflash drafter, not a draft model of its own"),
    ],
    ids=["width", "vocabulary", "eagle3 as dflash", "dflash as eagle3", "dflash as draft"],
)
def test_a_drafter_that_does_not_match(stack: Stack, test_models: Path, method: str, drafter: str, words: str) -> None:
    stack.define("bad", test_models / g.TARGET, drafter=test_models / drafter, method=method)
    reloaded(stack)
    reason = failed(stack, "bad")["reason"]
    assert reason["code"] == "refused"
    assert f"{drafter} " in reason["text"]
    assert words in reason["text"]
    assert "use the drafter that was made for this model" in reason["hint"]


def test_an_image_that_is_not_there(stack: Stack, test_models: Path) -> None:
    stack.define("bad", test_models / g.TARGET, method="none", image="localhost/outrider-test/not-there:1")
    reloaded(stack)
    reason = failed(stack, "bad")["reason"]
    assert reason["code"] == "image_missing"
    assert "localhost/outrider-test/not-there:1 is not in local storage" in reason["text"]
    assert "podman build -t localhost/outrider-test/not-there:1" in reason["hint"]
    assert "outrider start bad" in reason["hint"]


# an engine that is killed


def test_an_engine_that_is_killed_comes_back_later_and_later(stack: Stack, test_models: Path) -> None:
    stack.define("killed", test_models / g.TARGET, method="none")
    reloaded(stack)
    assert stack.want("killed", "running").status_code == 200
    for number in (1, 2):
        engine = stack.wait_state("killed", "ready", may_fail=True)["engine"]
        os.kill(engine["pid"], signal.SIGKILL)
        until_sync(lambda n=number: stack.deployment("killed")["restarts"] == n, 20, "the crash was noticed")  # type: ignore[misc]
    view = stack.wait_state("killed", "ready", may_fail=True)
    assert view["engine"]["generation"] == 3
    assert stack.text("killed", 20) == recital(20)
    events = stack.events("killed")
    codes = [event["code"] for event in events]
    assert codes.count("engine_ended") == 2
    failures = [event for event in events if event["code"] == "failed"]
    assert [event["evidence"]["code"] for event in failures] == ["engine_killed"] * 2
    assert [event["evidence"]["exit_code"] for event in failures] == [137] * 2
    assert [event["evidence"]["failures"] for event in failures] == [1, 2]
    starts = [event["at"] for event in events if event["code"] == "starting"]
    scale, jitter = stack.scale, 0.75
    assert starts[1] - failures[0]["at"] >= 1.0 * scale * jitter, "the first retry comes soon"
    assert starts[2] - failures[1]["at"] >= 10.0 * scale * jitter, "the next one later"


# bodies


def test_bodies_that_the_gateway_refuses(stack: Stack) -> None:
    chat = f"{stack.base_url}/chat/completions"
    for body, status, code, words in (
        ("{nope", 400, "invalid_json", "not JSON"),
        ("", 400, "invalid_json", "not JSON"),
        ("[]", 400, "invalid_json", "an object"),
        ("[" * 100_000, 400, "invalid_json", "not JSON"),
        (MEGABYTES, 400, "invalid_json", "not JSON"),
        ('{"messages": []}', 400, "missing_required_parameter", "GET /v1/models lists them"),
        ('{"model": 5}', 400, "invalid_type", "GET /v1/models lists"),
        (json.dumps({"model": "nobody", "x": MEGABYTES}), 404, "model_not_found", "models here: "),
        ("x" * (33 << 20), 413, "request_too_large", "max_body_bytes"),
    ):
        answer = httpx.post(chat, content=body, headers=JSON, timeout=30)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code), body[:40]
        assert words in error["message"]
        assert error["type"] == "invalid_request_error"
    unanswerable: tuple[tuple[dict[str, Any], str], ...] = (
        ({"model": "bystander"}, "'messages' is required"),
        ({"model": "bystander", "messages": 5}, "'messages' to be an array"),
        (
            {"model": "bystander", "messages": [{"role": "user", "content": "y" * 100_000}]},
            "context size (2048 tokens)",
        ),
    )
    for ask, words in unanswerable:
        answer = httpx.post(chat, json=ask, timeout=30)
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"], "the engine's own words"


def test_ten_megabytes_that_are_valid_are_answered(stack: Stack) -> None:
    assert stack.text("bystander", 20, user=MEGABYTES) == recital(20)


def test_bodies_that_the_control_api_refuses(stack: Stack) -> None:
    large = json.dumps({"name": "m", "path": MEGABYTES})
    with stack.api() as api:
        for method, path in (
            ("POST", "/api/v1/models"),
            ("POST", "/api/v1/plans"),
            ("PUT", "/api/v1/deployments/bystander/desired"),
        ):
            for body, status, code, words in (
                (large, 413, "body_too_large", "larger than 1048576 bytes"),
                ("{nope", 400, "usage", "body: not JSON"),
                ("", 400, "usage", "body"),
                ("[]", 400, "usage", "body"),
                ('{"colour": "red"}', 400, "usage", "Field required"),
            ):
                answer = api.request(method, path, content=body, headers=JSON)
                problem = answer.json()
                assert answer.headers["content-type"] == "application/problem+json"
                assert (answer.status_code, problem["code"]) == (status, code), (path, body[:40])
                assert words in problem["detail"]
                assert problem["hint"]
        answer = api.put("/api/v1/deployments/bystander/desired", json={"state": "flying"})
        assert "'running', 'on_demand' or 'stopped'" in answer.json()["detail"]
    assert stack.deployment("bystander")["desired"] == "running"


# processes that cannot start: the ones before them, and engines, go on


def _ends(stack: Stack, command: str) -> tuple[int, str]:
    """Start daemon or gateway, which must end by itself: its exit code and what it said."""
    log = stack.folder / f"{command}.log"
    before = log.stat().st_size
    if command == "daemon":
        stack.start_daemon(wait=False)
        process = stack.daemon
    else:
        process = stack.gateway = stack._run("gateway")
    assert process is not None
    code = process.wait(20)
    return code, log.read_bytes()[before:].decode()


@pytest.mark.slow
def test_a_daemon_that_cannot_start(stack: Stack) -> None:
    stack.kill_daemon(signal.SIGTERM)
    with socket.create_server(("127.0.0.1", stack.api_port)):
        code, said = _ends(stack, "daemon")
    assert code == 4
    assert f"error[conflict]: port {stack.api_port} on 127.0.0.1 is in use by another program" in said
    assert "hint: stop that program, or set another port in `[api] listen`" in said
    for file, text, key, hint in (
        (
            "outrider.toml",
            "[gatway]\nlisten = '127.0.0.1:1'\n",
            "gatway: is not a known key",
            "did you mean 'gateway'?",
        ),
        ("models.d/x.toml", "[[model]]\nname = 'x'\nvariant = 5\n", "model[x].variants: is missing", "hint: "),
        ("models.d/x.toml", "[[model]\n", "x.toml", "hint: "),
    ):
        path = stack.paths.config_dir / file
        good = path.read_text() if path.exists() else None
        path.write_text((good or "") + text)
        code, said = _ends(stack, "daemon")
        assert code == 1, text
        assert "error[config_invalid]: " in said
        assert str(path) in said
        assert key in said
        assert hint in said
        path.unlink() if good is None else path.write_text(good)
    assert stack.text("bystander", 20) == recital(20), "nobody needs the daemon to talk to a model"
    stack.start_daemon()


@pytest.mark.parametrize(("port", "key"), [("gateway_port", "listen"), ("ops_port", "ops_listen")])
def test_a_gateway_whose_port_is_in_use(stack: Stack, port: str, key: str) -> None:
    assert stack.gateway is not None
    stack.gateway.terminate()
    stack.gateway.wait(20)
    with socket.create_server(("127.0.0.1", getattr(stack, port))):
        code, said = _ends(stack, "gateway")
        assert code == 1
        last = json.loads(said.splitlines()[-1])
        assert last["code"] == "cannot_listen"
        assert f"127.0.0.1:{getattr(stack, port)}: address already in use" in last["detail"]
        assert f"[gateway] {key}" in last["hint"]
        assert stack.deployment("bystander")["state"] == "ready"
    stack.start_gateway()


def test_a_model_that_does_not_fit(stack: Stack, test_models: Path) -> None:
    stack.define("big", test_models / g.TARGET, method="none", context=32768, parallel=32)
    reloaded(stack)
    reason = failed(stack, "big")["reason"]
    assert reason["code"] == "too_big"
    needed, free = (int(number) for number in re.findall(r"\((\d+) bytes\)", reason["text"]))
    assert needed > free
    assert free < ENGINE_MEMORY - 300_000_000, "what the bystander takes is not free"
    assert "stop another model, or give this one less context" in reason["hint"]

"""`outrider run`: a model is started if needed, and its answer streams through the gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.paths import Paths
from tests.cli import fake
from tests.cli.conftest import Call


def chunk(text: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    return f"data: {json.dumps(body)}\n\n".encode()


def answer(*texts: str) -> fake.Answer:
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(texts)}}
    last = [chunk(finish="stop"), f"data: {json.dumps(usage)}\n\n".encode(), b"data: [DONE]\n\n"]
    pieces = [b'data: {"choices": [{"delta": {"role": "assistant", "content": null}}]}\n\n']
    return fake.Answer(kind="text/event-stream", pieces=[*pieces, *(chunk(t) for t in texts), *last])


@pytest.fixture
def ready(daemon: fake.Script, gateway: fake.Script) -> fake.Script:
    """A model that serves; the gateway's script."""
    daemon.on("GET", "/deployments/smollm2", fake.view())
    daemon.on("GET", "/deployments/SmolLM2", fake.view())
    gateway.on("POST", "/chat/completions", answer("Hel", "lo", " [b]you[/b]"))
    return gateway


def test_one_shot(call: Call, ready: fake.Script, daemon: fake.Script) -> None:
    said = call("run", "SmolLM2", "-p", "Hi")
    assert (said.code, said.out, said.err) == (0, "Hello [b]you[/b]\n", "")
    (asked,) = ready.asked
    assert asked.body == {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 1024,
    }
    assert not daemon.asked_for("PUT", "/deployments/smollm2/desired")


def test_an_answer_that_was_cut_says_so(call: Call, ready: fake.Script) -> None:
    pieces = [chunk("Hel"), chunk(finish="length"), b"data: [DONE]\n\n"]
    ready.on("POST", "/chat/completions", fake.Answer(kind="text/event-stream", pieces=pieces))
    said = call("run", "smollm2", "-p", "Hi")
    assert (said.code, said.out) == (0, "Hel\n")
    assert "--max-tokens" in said.err


def test_a_pipe_is_the_prompt(call: Call, ready: fake.Script) -> None:
    assert call("run", "smollm2", stdin="What?\n").code == 0
    assert call("run", "smollm2", "-p", "Shorten:", stdin="a text").code == 0
    assert [a.body["messages"][0]["content"] for a in ready.asked] == ["What?\n", "Shorten:\n\na text"]


def test_an_empty_pipe_is_nothing_to_say(call: Call, ready: fake.Script) -> None:
    said = call("run", "smollm2", stdin=" \n")
    assert said.code == 2
    assert ready.asked == []


def test_json_is_one_document(call: Call, ready: fake.Script) -> None:
    said = call("run", "smollm2", "-p", "Hi", "--json", "--max-tokens", "5", "--temperature", "0")
    assert said.document == {
        "model": "smollm2",
        "content": "Hello [b]you[/b]",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 3, "completion_tokens": 3},
    }
    assert (ready.asked[0].body["max_tokens"], ready.asked[0].body["temperature"]) == (5, 0.0)


def test_a_stopped_model_is_started_first(call: Call, ready: fake.Script, daemon: fake.Script) -> None:
    stopped = fake.view("stopped")
    daemon.on("GET", "/deployments/smollm2", stopped, stopped, fake.view("loading"), fake.view("ready"))
    daemon.on("PUT", "/deployments/smollm2/desired", fake.view("loading"))
    said = call("run", "smollm2", "-p", "Hi")
    assert said.code == 0
    assert said.err.splitlines() == ["smollm2: loading", "smollm2 is ready"]
    assert daemon.asked_for("PUT", "/deployments/smollm2/desired")[0].body == {"state": "running"}


def test_a_model_on_demand_is_woken_and_stays_on_demand(call: Call, ready: fake.Script, daemon: fake.Script) -> None:
    idle = fake.view("idle", desired="on_demand", engine=None)
    daemon.on("GET", "/deployments/smollm2", idle, fake.view("loading", desired="on_demand"), fake.view("ready"))
    said = call("run", "smollm2", "-p", "Hi")
    assert (said.code, said.out) == (0, "Hello [b]you[/b]\n")
    assert said.err.splitlines()[-1] == "smollm2 is ready"
    assert daemon.asked_for("PUT", "/deployments/smollm2/desired") == [], "nobody wants it to run for ever now"
    assert [(a.body["max_tokens"], a.body["model"]) for a in ready.asked] == [(1, "smollm2"), (1024, "smollm2")]


def test_a_model_on_demand_that_cannot_come_says_why(call: Call, ready: fake.Script, daemon: fake.Script) -> None:
    daemon.on("GET", "/deployments/smollm2", fake.view("idle", desired="on_demand", engine=None))
    error = {"error": {"message": "no room for smollm2: big is pinned", "code": "no_room"}}
    ready.on("POST", "/chat/completions", fake.Answer(error, 503))
    said = call("run", "smollm2", "-p", "Hi")
    assert (said.code, said.out) == (1, "")
    assert "big is pinned" in said.err


def test_a_conversation_remembers(call: Call, ready: fake.Script, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["Hi", "", "And?", "/clear", "Again", "/bye"])
    monkeypatch.setattr("builtins.input", lambda _prompt: next(lines))
    ready.on("POST", "/chat/completions", answer("one"), answer("two"), answer("three"))
    said = call("run", "smollm2")
    assert said.code == 0
    assert said.out == "one\ntwo\nthree\n"
    asked = [[m["content"] for m in a.body["messages"]] for a in ready.asked]
    assert asked == [["Hi"], ["Hi", "one", "And?"], ["Again"]]


def test_a_conversation_survives_an_error(call: Call, ready: fake.Script, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["Hi", "Again"])

    def typed(_prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    full = fake.Answer({"error": {"message": "queue full", "code": "queue_full"}}, 503, headers={"retry-after": "3"})
    ready.on("POST", "/chat/completions", full, answer("there"))
    said = call("run", "smollm2")
    assert said.code == 0
    assert "error[queue_full]: queue full" in said.err
    assert said.out == "there\n\n"
    assert [m["content"] for m in ready.asked[1].body["messages"]] == ["Again"]


def test_the_gateways_refusal(call: Call, ready: fake.Script) -> None:
    body = {"error": {"message": "the model is loading", "type": "unavailable", "code": "loading"}}
    ready.on("POST", "/chat/completions", fake.Answer(body, 503, headers={"retry-after": "7"}))
    said = call("run", "smollm2", "-p", "Hi")
    assert said.code == 1
    assert said.err == "error[loading]: the model is loading\nhint: try again in 7 s\n"


def test_an_answer_that_breaks_off(call: Call, ready: fake.Script) -> None:
    pieces = [chunk("Hel"), b'data: {"error": {"message": "the engine went away"}}\n\n']
    ready.on("POST", "/chat/completions", fake.Answer(kind="text/event-stream", pieces=pieces))
    said = call("run", "smollm2", "-p", "Hi")
    assert said.code == 1
    assert said.out == "Hel"
    assert "the answer broke off: the engine went away" in said.err


def test_no_gateway(call: Call, paths: Paths, daemon: fake.Script) -> None:
    daemon.on("GET", "/deployments/smollm2", fake.view())
    with fake.gateway() as (address, _):
        pass  # nobody listens on its port any more
    paths.config_dir.mkdir()
    paths.config_file.write_text(f'[gateway]\nlisten = "{address}"\n')
    said = call("run", "smollm2", "-p", "Hi")
    assert said.code == 1
    assert f"the gateway at http://{address}/v1 broke off" in said.err
    assert "hint: `outrider status`" in said.err

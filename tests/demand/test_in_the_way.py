"""What a client is told when the model it asks for, which is there on demand, does not come: what is in the way and
the next step, as an answer or as the last event of a stream that was held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.models import generate as g
from tests.stack.stack import LIMIT, Stack
from tests.stack_fixture import MakeStack

pytestmark = pytest.mark.real


def refused(stack: Stack, model: str) -> tuple[Any, int]:
    """The error of a plain request, and its Retry-After."""
    answer = stack.chat(model, 4)
    assert answer.status_code == 503, answer.text
    assert answer.headers["content-type"] == "application/json"
    return error_of(answer.json()), int(answer.headers["retry-after"])


def error_of(document: Any) -> Any:
    error = document["error"]
    assert (error["type"], error["param"]) == ("server_error", None)
    return error


def streamed(stack: Stack, model: str) -> Any:
    """The error of a request for a stream: its answer, or the last event of one that was held."""
    body = {"model": model, "messages": [{"role": "user", "content": "x"}], "stream": True}
    answer = httpx.post(f"{stack.base_url}/chat/completions", json=body, timeout=LIMIT)
    if answer.status_code == 503:
        assert "retry-after" in answer.headers
        return error_of(answer.json())
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [part for part in answer.text.split("\n\n") if part and not part.startswith(":")]
    assert len(events) == 1, "one error, and no [DONE]"
    return error_of(json.loads(events[0].removeprefix("data: ")))


def on_demand(stack: Stack, *names: str) -> None:
    for name in names:
        assert stack.want(name, "on_demand").status_code == 200


@pytest.mark.slow
def test_what_has_no_room_is_refused_and_told_who_is_in_the_way(
    make_stack: MakeStack, fake_engine_image: str, test_models: Path
) -> None:
    """Room for one of them, taken by what makes way for nobody."""
    stack = make_stack(settings="[host]\nengine_memory = 650000000\n")
    stack.define_fake("huge", fake_engine_image, test_models / g.TARGET, context=2048, parallel=64)
    stack.define_fake("always", fake_engine_image, test_models / g.TARGET)
    stack.define_fake("pinned", fake_engine_image, test_models / g.TARGET, pinned=True)
    stack.define_fake("one", fake_engine_image, test_models / g.TARGET)
    with stack:
        on_demand(stack, "huge", "one", "pinned")
        for error in (refused(stack, "huge")[0], streamed(stack, "huge")):  # nobody is in its way
            assert error["code"] == "model_not_ready"
            assert "nothing can be launched for huge" in error["message"]
            assert "[too_big]; next: stop another model, or give this one less context" in error["message"]
            assert "beside it" not in error["message"]

        stack.start("always")
        for error in (refused(stack, "one")[0], streamed(stack, "one")):
            assert error["code"] == "model_not_ready"
            assert "; beside it always is to run always [too_big]" in error["message"]
            assert "; next: `outrider start --on-demand always` lets it make way; " in error["message"]

        assert stack.want("always", "stopped").status_code == 200
        stack.wait_state("always", "stopped")
        stack.wait(lambda: stack.chat("pinned", 4).status_code == 200, what="pinned has come")

        def named() -> bool:
            message = str(refused(stack, "one")[0]["message"])
            return "; beside it pinned is pinned [" in message and "`pinned = false` in the definition" in message

        stack.wait(named, what="who is in the way now is named")
        # when it goes after all, the next request is answered; nobody has to start anything again
        assert stack.want("pinned", "stopped").status_code == 200
        stack.wait_state("pinned", "stopped")
        stack.wait(lambda: stack.chat("one", 4).status_code == 200, what="one has come")


@pytest.mark.slow
def test_whatever_keeps_it_from_coming_is_told_with_the_next_step(
    make_stack: MakeStack, fake_engine_image: str, test_models: Path
) -> None:
    """A load that outlasts the wait, one that fails until it is parked, weights that are gone, a pause."""
    stack = make_stack()
    file = stack.paths.config_file
    file.write_text(file.read_text().replace("[gateway]", "[gateway]\nhold_s = 1"))
    scripts: dict[str, dict[str, Any]] = {
        "slow": {"load_seconds": 600},
        "bad": {"load_fail": 1, "load_log": "error: no such tensor"},
        "gone": {},
        "still": {},
    }
    made = {n: stack.define_fake(n, fake_engine_image, test_models / g.TARGET, script=s) for n, s in scripts.items()}
    (stack.paths.store / "gone" / g.TARGET).unlink()
    with stack:
        on_demand(stack, *scripts)

        # the wait is over, the load is not: it goes on, and the answer says how far it is
        for error in (refused(stack, "slow")[0], streamed(stack, "slow")):
            assert error["code"] == "hold_timeout"
            assert error["message"].startswith("no engine for slow became ready within 1 s: ")
            assert "; it goes on, ask again later [" in error["message"]
        made["slow"].write()
        stack.wait(lambda: stack.chat("slow", 4).status_code == 200, what="slow has come")
        assert stack.codes("slow").count("starting") == 1

        # parked at once: only a person mends it, and clients are not to ask every few seconds
        first, again = refused(stack, "gone")
        assert again == 60
        for error in (first, streamed(stack, "gone")):
            assert error["code"] == "model_not_ready"
            assert f": {g.TARGET} does not exist [model_file]; next: check the path" in error["message"]
            assert str(stack.folder) not in error["message"], "clients are told no folders of the host"

        # paused: nothing is started, and who can change that is told how
        assert stack.send("PUT", "/api/v1/deployments/still/pause").status_code == 200
        first, again = refused(stack, "still")
        assert again == 60
        for error in (first, streamed(stack, "still")):
            assert error["code"] == "model_not_ready"
            assert (
                ": still is paused by api: no request starts it [paused]; next: `outrider resume still` ("
                in error["message"]
            )
        assert "starting" not in stack.codes("still")
        assert stack.codes("still").count("call_withheld") == 1
        assert stack.send("DELETE", "/api/v1/deployments/still/pause").status_code == 200
        stack.wait(lambda: stack.chat("still", 4).status_code == 200, what="still comes once it is resumed")

        # failing: whoever asks between two tries is told why, and so is who asks when it is given up
        def parked() -> bool:
            error, _ = refused(stack, "bad")
            assert error["code"] in {"hold_timeout", "model_not_ready"}
            return "keeps_failing" in stack.codes("bad")

        stack.wait(parked, what="it is given up")
        first, again = refused(stack, "bad")
        assert again == 60
        for error in (first, streamed(stack, "bad")):
            assert error["code"] == "model_not_ready"
            assert " ended with exit code 1: error: no such tensor [engine_exited]; next: " in error["message"]

"""Three real engines in real Podman: groups that may not run together, pins, and reservations, whatever the worth."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.demand.three import ALPHABET, BUDGET, MODELS, defined, events, loaded, on_demand, streaming, told
from tests.models import generate as g
from tests.stack.stack import LIMIT
from tests.stack_fixture import MakeStack

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(180)]
CLIENTS = 3
"""So many ask again and again for an engine with one slot: it always answers somebody."""


def test_members_of_a_group_take_turns_and_an_exclusive_one_has_the_host_to_itself(
    make_stack: MakeStack, test_models: Path
) -> None:
    """There is memory for all three."""
    calm = "[demand]\nresidence_s = 0\n"
    stack = make_stack(settings=f'{calm}[[group]]\nname = "card"\nmembers = ["one", "two"]\n')
    defined(stack, test_models)
    with stack:
        on_demand(stack, *MODELS)
        assert stack.text("three", 8) == stack.text("one", 8) == ALPHABET[:8]
        assert loaded(stack) == {"one", "three"}
        room = stack.get("/api/v1/deployments/two/room")
        assert (room["action"], room["reason"], room["evict"]) == ("evict", "group", ["one"])
        assert loaded(stack) == {"one", "three"}, "looking changes nothing"

        # `one` was used last and is of the group; `three`, idle for longer, is not
        assert stack.text("two", 8) == ALPHABET[:8]
        assert loaded(stack) == {"two", "three"}
        (evicted,) = events(stack, "evicted")
        assert (evicted["deployment"], evicted["text"]) == ("one", "one makes room for two")
        assert (evicted["evidence"]["why"], evicted["evidence"]["groups"]) == ("group", ["card"])

        # another rule holds from the next request on; a reload touches no engine
        alone = f'{calm}[[group]]\nname = "alone"\nmembers = ["one"]\nexclusive = true\n'
        stack.write_settings(alone)
        answer = stack.send("POST", "/api/v1/reload")
        assert (answer.status_code, answer.json()["warnings"]) == (200, [])
        assert loaded(stack) == {"two", "three"}
        assert stack.text("one", 8) == ALPHABET[:8]
        assert loaded(stack) == {"one"}
        last = events(stack, "evicted")[1:]
        assert {e["deployment"] for e in last} == {"two", "three"}
        assert {tuple(e["evidence"]["groups"]) for e in last} == {("alone",)}

        # pinned, it never gives way: said when it is written, and to who asks for another
        stack.define("one", test_models / g.TARGET, method="none", pinned=True)
        (warning,) = stack.send("POST", "/api/v1/reload").json()["warnings"]
        assert "group[alone].members: one is pinned and once loaded never makes way" in warning
        assert [e["text"] for e in events(stack, "config_caution")] == [warning]
        refused = stack.chat("two", 8)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_not_ready")
        told_client = refused.json()["error"]["message"]
        assert "there is no room for two: the group alone is taken; one is pinned [too_big]" in told_client
        assert "next: `pinned = false` in the definition of one lets it make way" in told_client
        assert loaded(stack) == {"one"}


def test_what_answers_and_what_is_pinned_stays_though_it_is_worth_least(
    make_stack: MakeStack, test_models: Path
) -> None:
    """Two of three fit. `one` has the lowest priority, and is never the one that goes."""
    stack = make_stack(settings=f"[host]\nengine_memory = {BUDGET}\n[demand]\nresidence_s = 0\nturn_s = 6000\n")
    defined(stack, test_models, one={"priority": -10})
    with stack:
        on_demand(stack, *MODELS)
        assert stack.text("one", 8) == stack.text("two", 8) == ALPHABET[:8]
        room = stack.get("/api/v1/deployments/three/room")
        assert (room["action"], room["evict"]) == ("evict", ["one"]), "idle, it would go"

        enough = threading.Event()

        def keep_asking(_: int) -> list[tuple[str, bool]]:
            streams = []
            while not enough.is_set():
                with streaming(stack, "one", 1900, client) as lines:
                    streams.append(told(lines))
            return streams

        with httpx.Client(timeout=LIMIT) as client, ThreadPoolExecutor(CLIENTS) as clients:
            asking = [clients.submit(keep_asking, n) for n in range(CLIENTS)]
            try:
                stack.wait(lambda: stack.deployment("one")["in_flight"] >= 2, what="the daemon knows of them")
                assert stack.text("three", 8) == ALPHABET[:8]
                evicted, *more = events(stack, "evicted")
            finally:
                enough.set()
            for client_done in asking:
                for text, done in client_done.result(LIMIT):
                    assert (len(text) >= 1890, done) == (True, True)
        assert (evicted["deployment"], more) == ("two", [])
        assert evicted["evidence"]["kept"]["one"]["code"] == "in_use"
        assert loaded(stack) == {"one", "three"}
        assert stack.codes("one").count("starting") == 1
        assert stack.codes().count("unload_called_off") == 0

        stack.define("one", test_models / g.TARGET, method="none", priority=-10, pinned=True)
        assert stack.send("POST", "/api/v1/reload").status_code == 200
        room = stack.get("/api/v1/deployments/two/room")
        assert (room["evict"], room["kept"]["one"]["code"]) == (["three"], "pinned")
        assert "`pinned = false`" in room["kept"]["one"]["hint"]
        assert stack.text("two", 8) == ALPHABET[:8]
        assert loaded(stack) == {"one", "two"}
        assert [e["deployment"] for e in events(stack, "evicted")] == ["two", "three"]

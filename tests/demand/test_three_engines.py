"""Three real engines in real Podman that do not all fit the memory that the host is declared to have for engines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.demand.three import ALPHABET, BUDGET, EACH, MODELS, defined, events, loaded, on_demand, streaming, told
from tests.stack.stack import LIMIT, Stack
from tests.stack_fixture import MakeStack

pytestmark = pytest.mark.real
WAITING = [f"waiting for room: one is {state}" for state in ("answering 1 request", "being unloaded")]


def state_at_gateway(stack: Stack, name: str) -> str:
    """A model's state as clients are told it: what the gateway has heard, later than the journal has it."""
    listed = httpx.get(f"{stack.base_url}/models", timeout=LIMIT).json()["data"]
    return str({m["id"]: m["state"] for m in listed}[name])


@pytest.mark.timeout(180)
def test_the_first_request_brings_a_model_and_the_least_valuable_makes_way(
    make_stack: MakeStack, test_models: Path
) -> None:
    """Idle models are listed; many first requests are one start; what does not fit evicts; nothing is thrashed;
    `desired` is what a person said all along."""
    stack = make_stack(settings=f"[host]\nengine_memory = {BUDGET}\n[demand]\nresidence_s = 40\n")
    defined(stack, test_models)
    with stack:
        plan = stack.send("POST", "/api/v1/plans", {"model": "one"}).json()["plan"]
        assert plan["expected_memory"]["total"] == EACH
        on_demand(stack, *MODELS)
        assert {name: state_at_gateway(stack, name) for name in MODELS} == dict.fromkeys(MODELS, "idle")

        with ThreadPoolExecutor(12) as clients:
            texts = list(clients.map(lambda _: stack.text("one", 8), range(12)))
        assert texts == [ALPHABET[:8]] * 12
        assert (stack.codes("one").count("called"), stack.codes("one").count("starting")) == (1, 1)
        assert len(stack.containers()) == 1

        assert stack.text("two", 8) == ALPHABET[:8]
        assert loaded(stack) == {"one", "two"}
        room = stack.get("/api/v1/deployments/three/room")
        assert room["needed_bytes"] == {"host": EACH}
        assert room["free_bytes"]["host"] == BUDGET - 2 * EACH
        assert (room["action"], set(room["kept"])) in [("wait", {"one", "two"}), ("evict", {"two"})]
        # for two seconds (40 s at this scale) neither makes way; then the one that was used longer ago does
        assert stack.text("three", 8) == ALPHABET[:8]
        assert loaded(stack) == {"two", "three"}
        (evicted,) = events(stack, "evicted")
        assert (evicted["deployment"], evicted["evidence"]["by"]) == ("one", "three")
        assert evicted["evidence"]["evict"] == ["one"]
        waited = events(stack, "waiting_for_room")
        assert [w["deployment"] for w in waited] == ["three"]
        assert waited[0]["evidence"]["kept"]["two"]["code"] == "just_loaded"
        views = {d["deployment"]: d for d in stack.get("/api/v1/deployments")}
        assert {v["desired"] for v in views.values()} == {"on_demand"}
        assert {v["desired_by"] for v in views.values()} == {"api"}
        assert views["one"]["state"] == "idle"
        assert views["three"]["demand"]["kept"]["code"] == "just_loaded"
        assert len(stack.containers()) == 2


def test_what_is_in_use_is_emptied_after_a_turn_and_no_stream_is_cut(make_stack: MakeStack, test_models: Path) -> None:
    """While `one` streams, `two` is asked for: `one` admits nothing more and goes when its stream has ended. Who asked
    for it meanwhile is answered when it is back."""
    settings = f"[host]\nengine_memory = {int(1.5 * EACH)}\n[demand]\nresidence_s = 0\nturn_s = 2\n"
    stack = make_stack(settings=settings)
    defined(stack, test_models)
    with stack:
        on_demand(stack, "one", "two")
        with streaming(stack, "one", 1900) as lines, ThreadPoolExecutor(2) as clients:
            assert next(line for line in lines if line.startswith("data: "))
            two = clients.submit(stack.text, "two", 8)
            stack.wait(lambda: state_at_gateway(stack, "one") != "ready", what="one is to make way")
            again = clients.submit(stack.text, "one", 8)
            text, done = told(lines)
            assert (len(text) >= 1890, done) == (True, True)
            assert two.result(LIMIT) == again.result(LIMIT) == ALPHABET[:8]
        waiting = events(stack, "waiting_for_room")[0]
        assert waiting["text"] in WAITING, "it may be on its way already"
        first, *_ = events(stack, "evicted")
        assert (first["deployment"], first["evidence"]["drain"]) == ("one", ["one"])
        assert loaded(stack) == {"one"}
        assert stack.codes().count("unload_called_off") == 0


@pytest.mark.slow
def test_idle_models_are_unloaded_after_their_time_and_pinned_ones_are_not(
    make_stack: MakeStack, test_models: Path
) -> None:
    stack = make_stack(settings="[demand]\nby_default = true\nttl_s = 30\n")
    defined(stack, test_models, two={"pinned": True}, three={"on_demand": False})
    with stack:
        stack.wait(lambda: len(events(stack, "desired_on_demand")) == 2, what="two are there on demand by default")
        assert {e["evidence"]["by"] for e in events(stack, "desired_on_demand")} == {"configuration"}
        assert stack.text("one", 8) == stack.text("two", 8) == ALPHABET[:8]
        assert stack.deployment("one")["demand"]["ttl_s"] == 1.5
        stack.wait_state("one", "idle")
        (unloaded,) = events(stack, "idle_unload")
        assert unloaded["evidence"]["idle_s"] >= unloaded["evidence"]["ttl_s"] == 1.5
        two = stack.deployment("two")
        assert (two["state"], two["demand"]["kept"]["code"]) == ("ready", "pinned")
        assert stack.deployment("one")["desired"] == "on_demand"
        # the next request brings it again, from the plan it had; a daemon that is restarted stops nothing
        assert stack.text("one", 8) == ALPHABET[:8]
        assert stack.codes("one").count("planned") == 1
        before = stack.deployment("two")["engine"]["container_id"]
        stack.kill_daemon()
        stack.start_daemon()
        two = stack.wait_state("two", "ready")
        assert (two["engine"]["container_id"], two["desired"]) == (before, "on_demand")

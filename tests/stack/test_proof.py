"""Engines that are healthy and lie: plans that the planner would never make, run for real, and what proof says.

The planner's own checks are by-passed by changing what it planned; every liar has twins
that must not be taken for one.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from containers.errors import SpecRefused
from orchestrator.engine import socket_folder
from orchestrator.engine_client import EngineClient
from orchestrator.errors import EngineFailed, WeightsMissing
from orchestrator.plan import Method, Plan
from orchestrator.views import State
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.bench import Bench, filled_store, opened

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

CUT, GARBAGE, ABSENT = "cut.gguf", "garbage.gguf", "absent.gguf"
"""Model files that are none."""
ENDLESS = "endless.gguf"
"""A pipe that nobody writes: who opens it waits for ever."""


@pytest.fixture(scope="module")
def store(test_models: Path) -> Iterator[Path]:
    """A state folder whose store has all models, whole and broken."""
    with filled_store(test_models) as state:
        models = state / "models" / "models"
        target = (models / g.TARGET).read_bytes()
        (models / CUT).write_bytes(target[: len(target) // 2])
        (models / GARBAGE).write_bytes(b"no model at all" * 1000)
        os.mkfifo(models / ENDLESS)
        yield state


@pytest.fixture
async def bench(podman_socket: str, embedded_image: str, store: Path) -> AsyncIterator[Bench]:
    async with opened(store, podman_socket) as bench:
        yield bench


def swapped(plan: Plan, before: str, after: str) -> Plan:
    """The plan with one model file in place of another: all lie in the folder that is mounted."""
    argv = tuple(
        word.removesuffix(f"/{before}") + f"/{after}" if word.endswith(f"/{before}") else word for word in plan.argv
    )
    assert argv != plan.argv
    return replace(plan, argv=argv)


def without_flags(plan: Plan) -> Plan:
    """A plan that says it speculates and an engine that is not told to."""
    words = list(plan.argv)
    for flag in ("--spec-type", "-md", "--spec-draft-n-max"):
        at = words.index(flag)
        del words[at : at + 2]
    return replace(plan, argv=tuple(words))


async def failure(bench: Bench, plan: Plan) -> EngineFailed:
    with pytest.raises(EngineFailed) as caught:
        await bench.bring_up(plan)
    assert caught.value.hint, "every failure names a next step"
    return caught.value


# engines that come up healthy, and are not what the plan says


async def test_a_draft_model_with_a_foreign_vocabulary_never_drafts(bench: Bench) -> None:
    plan = swapped(await bench.plan(Method.DRAFT, g.DRAFT), g.DRAFT, g.DRAFT_FOREIGN)
    error = await failure(bench, plan)
    assert (error.code, error.retryable) == ("speculation_off", False)
    assert "drafter" in str(error.hint)
    assert error.evidence == {"method": "draft", "drafter": "drafter", "cause": "vocabulary_differs"}
    assert any(line.startswith(State.WARMING) for line in bench.said), "it had loaded and said it was healthy"


async def test_a_plan_that_says_dflash_and_an_engine_without_its_flags(bench: Bench) -> None:
    error = await failure(bench, without_flags(await bench.plan(Method.DFLASH, g.DFLASH)))
    assert (error.code, error.retryable) == ("speculation_off", False)


async def test_an_eagle3_file_as_dflash_answers_every_chat_with_an_error(bench: Bench) -> None:
    error = await failure(bench, swapped(await bench.plan(Method.DFLASH, g.DFLASH), g.DFLASH, g.EAGLE3))
    assert (error.code, error.retryable) == ("chat_failed", False)
    assert error.evidence == {"status": 500, "cause": "drafter_of_another_kind"}
    assert "speculative" in error.detail, "the engine's own words"


# engines that end


async def test_a_drafter_of_another_width_aborts_the_engine(bench: Bench) -> None:
    error = await failure(bench, swapped(await bench.plan(Method.DFLASH, g.DFLASH), g.DFLASH, g.DFLASH_WIDE))
    assert (error.code, error.retryable) == ("engine_assert", False)
    assert "width" in str(error.hint)
    assert error.evidence["exit_code"] == 139, (
        "abort() ends process 1 of a container with SIGSEGV, for it gets no SIGABRT"
    )


async def test_a_model_file_that_is_cut_off(bench: Bench) -> None:
    error = await failure(bench, swapped(await bench.plan(Method.NONE), g.TARGET, CUT))
    assert (error.code, error.retryable) == ("model_truncated", False)


async def test_a_model_file_that_is_gone(bench: Bench) -> None:
    """No engine is started for it; it may come back with its disk."""
    with pytest.raises(WeightsMissing, match=f"{ABSENT} is not there any more") as caught:
        await bench.bring_up(swapped(await bench.plan(Method.NONE), g.TARGET, ABSENT))
    assert caught.value.retryable


async def test_a_drafter_file_that_is_none(bench: Bench) -> None:
    error = await failure(bench, swapped(await bench.plan(Method.DFLASH, g.DFLASH), g.DFLASH, GARBAGE))
    assert (error.code, error.retryable) == ("model_unreadable", False)


async def test_mtp_on_a_target_without_a_head(bench: Bench) -> None:
    plan = swapped(await bench.plan(Method.MTP, target=g.TARGET_MTP), g.TARGET_MTP, g.TARGET)
    assert (await failure(bench, plan)).code == "no_mtp_head"


async def test_a_word_that_the_engine_does_not_know(bench: Bench) -> None:
    plan = await bench.plan(Method.DFLASH, g.DFLASH)
    argv = tuple("draft-telepathy" if word == "draft-dflash" else word for word in plan.argv)
    assert (await failure(bench, replace(plan, argv=argv))).code == "bad_flag"


async def test_an_engine_that_takes_too_long(bench: Bench) -> None:
    engine = bench.engine(swapped(await bench.plan(Method.NONE), g.TARGET, ENDLESS))
    with pytest.raises(EngineFailed) as caught:
        await bench.up(engine, limit=1.0)
    await bench.down(engine)
    assert (caught.value.code, caught.value.retryable) == ("load_timed_out", True)
    assert "load_s" in str(caught.value.hint)


# the twins: what must not be taken for a liar


async def test_a_right_drafter_passes(bench: Bench) -> None:
    """One of them; `test_methods` has all."""
    proven = await bench.bring_up(await bench.plan(Method.DFLASH, g.DFLASH))
    assert proven.text == recital(len(proven.text))
    assert proven.drafted == proven.accepted > 0, "acceptance rate 1.0"
    assert proven.says_speculating is True


@pytest.mark.parametrize(("method", "drafter"), [(Method.DRAFT, g.DRAFT_BAD), (Method.DFLASH, g.DFLASH_WRONG)])
async def test_a_drafter_that_is_always_wrong_drafts_all_the_same(bench: Bench, method: Method, drafter: str) -> None:
    """Slow, and not a lie: whether it pays is the governor's question."""
    proven = await bench.bring_up(await bench.plan(method, drafter))
    assert proven.drafted > 10 * proven.accepted
    assert proven.text == recital(len(proven.text)), "speculation never changes the text"


async def test_a_plan_without_speculation_passes(bench: Bench) -> None:
    proven = await bench.bring_up(await bench.plan(Method.NONE))
    assert (proven.drafted, proven.accepted, proven.says_speculating) == (0, 0, None)


async def test_ngram_that_found_nothing_to_repeat_passes(bench: Bench) -> None:
    """n-gram lookup waits for text that repeats: 256 tokens that must match are never found."""
    plan = await bench.plan(Method.NGRAM)
    at = plan.argv.index("--spec-ngram-mod-n-match") + 1
    proven = await bench.bring_up(replace(plan, argv=(*plan.argv[:at], "256", *plan.argv[at + 1 :])))
    assert (proven.drafted, proven.says_speculating) == (0, True)


# an engine on a loopback port, as runtimes without a socket have it


async def test_an_engine_on_a_port_is_proven_there_and_nowhere_else(bench: Bench) -> None:
    plan = await bench.plan(Method.DFLASH, g.DFLASH)
    words = list(plan.argv)
    at = words.index("--host")
    words[at : at + 2] = ["--host", "0.0.0.0", "--port", "{port}"]
    engine = bench.engine(replace(plan, socket=False, argv=tuple(words)))
    try:
        proven = await bench.up(engine)
        assert proven.drafted == proven.accepted > 0
        assert engine.port is not None
        assert 17000 <= engine.port <= 17999
        assert await asyncio.to_thread(_status, engine.port, None) == 401
        assert await asyncio.to_thread(_status, engine.port, "not the key") == 401
        assert await asyncio.to_thread(_status, engine.port, engine.key) == 200
        assert _listening_on(engine.port) == {"127.0.0.1"}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((_other_address(), engine.port), timeout=5)
        assert not list(socket_folder(bench.paths, engine.id).iterdir()), "and there is no socket"
    finally:
        await bench.down(engine)


async def test_a_port_of_another_range_is_refused(bench: Bench) -> None:
    plan = replace(await bench.plan(Method.NONE), socket=False)
    engine = bench.engine(plan)
    bench.runner.ports.take = lambda: 8080  # type: ignore[method-assign]
    with pytest.raises(SpecRefused, match="17000-17999"):
        await bench.up(engine)
    await bench.down(engine)


async def test_a_client_with_neither_socket_nor_port_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="a socket or a port"):
        EngineClient(socket=None, port=None, key="k", timeout=1)


def _status(port: int, key: str | None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        connection.request("GET", "/slots", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def _listening_on(port: int) -> set[str]:
    """The IPv4 addresses on which anybody listens on this port; IPv6 listeners would show as `::`."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:
                raw = bytes.fromhex(address)[::-1]
                found.add(socket.inet_ntoa(raw) if table == "tcp" else "::")
    return found


def _other_address() -> str:
    """An address of this machine that is not 127.0.0.1: another one of loopback serves as well as a LAN's."""
    return "127.0.0.2"

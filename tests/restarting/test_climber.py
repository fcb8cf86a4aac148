"""The ladder as a deployment climbs it: down after failures, over a new daemon, up again by a person or after a day.

Engines are `sleep` processes that are really killed (`tests.daemon.world`); the planner's ladder is the test's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.context import Cause
from orchestrator.engine import Engine
from orchestrator.errors import EngineFailed
from orchestrator.plan import Method, Rung
from orchestrator.restarting.standing import Standing
from orchestrator.telling.next_steps import advice, what_comes
from orchestrator.timing import Timing
from orchestrator.views import Desired, State
from tests.daemon.world import LIMIT, World, a_plan
from tests.waiting import until

QUICK = Timing(backoff_first=0.02, backoff_next=0.02, backoff_max=0.02, reconcile_period=0.05)
PLAIN = a_plan(argv=("plain",))
BEST = replace(PLAIN, argv=("best",), method=Method.DFLASH, drafter="d", draft_tokens=7, parallel=4)
FEWER = replace(BEST, argv=("fewer",), parallel=2)
LADDER = (
    Rung("plan", "the plan as it is", BEST),
    Rung("fewer_slots", "2 slots instead of 4", FEWER),
    Rung("method_none", "no speculation", PLAIN),
)


async def a_world(folder: Path, timing: Timing = QUICK) -> World:
    world = await World.open(folder, timing)
    world.planner.answer, world.planner.ladder = BEST, LADDER
    return world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = await a_world(tmp_path)
    yield made
    await made.close()


async def killed(world: World, times: int = 1) -> None:
    """Kill the engine that serves, so often; each time wait until the failure is noted."""
    for _ in range(times):
        engine = await serving(world)
        noted = world.d.restarts
        world.runner.kill()
        await until(lambda n=noted: world.d.restarts > n, LIMIT, "it is noticed")  # type: ignore[misc]
        await until(lambda e=engine: e not in world.d.live(), LIMIT, "it is gone")  # type: ignore[arg-type, misc]


async def serving(world: World) -> Engine:
    def there() -> Engine | None:
        engine = world.d.serving_engine
        return engine if engine is not None and engine.state is State.READY and not engine.exited.is_set() else None

    found = await until(there, LIMIT, "an engine serves")
    assert found is not None
    return found


async def evidence(world: World, code: str) -> list[Mapping[str, Any]]:
    return [e.evidence async for e in world.journal.follow() if e.code == code]


async def noted(world: World, number: int) -> Sequence[Mapping[str, object]]:
    """The rows of the ledger, once there are so many."""

    async def there() -> Sequence[Mapping[str, object]] | None:
        rows = await world.store.crashes("m")
        return rows if len(rows) >= number else None

    found = await until(there, LIMIT, f"{number} failures are noted")
    assert found is not None
    return found


def issues(world: World) -> dict[str, str]:
    return {issue.code: issue.text for issue in world.context.issues.list()}


async def test_it_climbs_down_rung_by_rung_and_stops_at_the_end(world: World) -> None:
    await world.started()
    assert world.actor.view().rung is None
    await killed(world, 3)
    engine = await serving(world)
    assert engine.plan.digest == FEWER.digest
    rung = world.actor.view().rung
    assert rung is not None
    assert (rung.change, rung.text, rung.method) == ("fewer_slots", "2 slots instead of 4", "dflash")
    assert [(r.text, r.code, r.failures) for r in rung.left] == [("the plan as it is", "engine_killed", 3)]
    assert 86_000 < rung.up_in_s <= 86_400
    assert issues(world)["on_lower_rung"] == (
        "m runs with 2 slots instead of 4, for the plan as it is failed 3 times (engine_killed)"
    )
    await killed(world, 3)
    assert (await serving(world)).plan.digest == PLAIN.digest
    assert len(world.actor.view().rung.left) == 2  # type: ignore[union-attr]
    ups = world.runner.ups
    await killed(world, 3)
    await until(lambda: world.d.failures.parked, LIMIT, "it is parked")
    view = world.actor.view()
    assert (view.state, view.next_attempt_s) == (State.FAILED, None)
    assert view.reason is not None
    assert view.reason.code == "engine_killed"
    assert issues(world)["keeps_failing"] == "m is not started again: killed"
    assert world.runner.ups == ups + 2, "two retries, and no more"
    moved = await evidence(world, "climbed_down")
    assert [(e["from"], e["to"], e["code"]) for e in moved] == [
        ("the plan as it is", "2 slots instead of 4", "engine_killed"),
        ("2 slots instead of 4", "no speculation", "engine_killed"),
    ]
    failed = await evidence(world, "failed")
    assert [(e["failures"], e["action"]) for e in failed] == [
        (1, "retry_same"),
        (2, "retry_same"),
        (3, "next_rung"),
    ] * 2 + [(1, "retry_same"), (2, "retry_same"), (3, "park")]


async def test_every_failure_is_a_row_of_the_ledger(world: World) -> None:
    await world.started()
    await killed(world, 3)
    await serving(world)
    rows = await noted(world, 3)
    assert [(r["rung"], r["code"], r["fault"], r["action"]) for r in rows] == [
        ("the plan as it is", "engine_killed", "crash", "retry_same"),
        ("the plan as it is", "engine_killed", "crash", "retry_same"),
        ("the plan as it is", "engine_killed", "crash", "next_rung"),
    ]
    assert {r["plan"] for r in rows} == {BEST.digest}


async def test_what_starting_again_cannot_heal_tries_each_rung_once_and_no_more(world: World) -> None:
    """A fault before the engine is ready: it would be the same again."""
    world.runner.fail_up = EngineFailed("out_of_memory", "cudaMalloc failed", retryable=False, hint="take less")
    world.run()
    await asyncio.sleep(0)
    await world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: world.d.failures.parked, LIMIT, "it is parked")
    assert world.runner.ups == 3
    rows = await noted(world, 3)
    assert [r["rung"] for r in rows] == [rung.text for rung in LADDER]
    reason = world.actor.view().reason
    assert reason is not None
    assert (reason.code, reason.hint) == ("out_of_memory", "take less")
    assert "keeps_failing" in issues(world)


async def test_a_fault_that_no_rung_mends_is_parked_at_once(world: World) -> None:
    world.runner.fail_up = EngineFailed("model_truncated", "the file is cut off", retryable=False, hint="fetch it")
    world.run()
    await asyncio.sleep(0)
    await world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: world.d.failures.parked, LIMIT, "it is parked")
    assert world.runner.ups == 1
    assert world.actor.view().rung is None


async def test_what_is_not_the_launchs_fault_never_climbs(world: World) -> None:
    world.runner.fail_up = EngineFailed("network_path_broken", "its port leads nowhere")
    world.run()
    await asyncio.sleep(0)
    await world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: world.runner.ups >= 6, LIMIT, "it is tried again and again")
    world.runner.fail_up = None
    assert (await serving(world)).plan.digest == BEST.digest
    assert world.actor.view().rung is None
    assert (await evidence(world, "failed"))[0]["fault"] == "place"


async def test_the_rung_and_its_failures_outlive_the_daemon(tmp_path: Path) -> None:
    first = await a_world(tmp_path)
    await first.started()
    await killed(first, 5)  # two of them on the lower rung
    await serving(first)
    await first.actor.set_desired(Desired.STOPPED, "t")
    await until(lambda: not first.d.live(), LIMIT, "it is stopped")
    await first.close()
    second = await a_world(tmp_path)
    try:
        assert second.actor.view().rung is not None
        second.d.desired = Desired.RUNNING  # as the daemon reads it from the database: no person asks again
        second.run()
        assert (await serving(second)).plan.digest == FEWER.digest
        assert second.actor.view().rung.text == "2 slots instead of 4"  # type: ignore[union-attr]
        await killed(second)  # the third one
        assert (await serving(second)).plan.digest == PLAIN.digest
    finally:
        await second.close()


async def test_an_engine_that_is_adopted_stands_on_its_rung(tmp_path: Path) -> None:
    first = await a_world(tmp_path)
    await first.started()
    await killed(first, 3)
    engine = await serving(first)
    assert first.task is not None
    first.task.cancel()
    second = await a_world(tmp_path)
    try:
        second.d.desired = Desired.RUNNING
        again = Engine(engine.id, "m", engine.generation, FEWER, "k", None, None, 0.0, state=State.READY)
        again.container_id, again.ready_at = engine.container_id, second.clock.now()
        again.follow(first.runner.children[-1].pid)
        second.actor.adopt(again)
        second.run()
        first.runner.children[-1].kill()
        await until(lambda: second.d.restarts == 1, LIMIT, "it is noticed")
        rows = await noted(second, 4)
        assert rows[-1]["rung"] == "2 slots instead of 4"
    finally:
        await second.close()
        await first.store.close()
        first.runner.kill()


@pytest.mark.parametrize("verb", ["start", "apply", "reload"])
async def test_a_person_brings_it_up_again(world: World, verb: str) -> None:
    await world.started()
    await killed(world, 3)
    await serving(world)
    if verb == "start":
        await world.actor.set_desired(Desired.STOPPED, "t")
        await until(lambda: not world.d.live(), LIMIT, "it is stopped")
        await world.actor.set_desired(Desired.RUNNING, "t")
    elif verb == "apply":
        await world.actor.replan(Cause("apply", "t"))
    else:
        await world.actor.define(world.d.entry, Cause("reload", "configuration"))
    await until(lambda: (e := world.d.serving_engine) and e.plan.digest == BEST.digest, LIMIT, "the best plan serves")
    assert world.actor.view().rung is None
    assert "on_lower_rung" not in issues(world)
    assert (await evidence(world, "climbed_up"))[-1]["on_trial"] is False
    await until(lambda: world.context.ledger.of("m") == Standing(), LIMIT, "nothing is remembered")
    await killed(world, 2)
    assert (await serving(world)).plan.digest == BEST.digest, "it has three failures again"


async def test_an_automatic_change_brings_nothing_up(world: World) -> None:
    await world.started()
    await killed(world, 3)
    engine = await serving(world)
    await world.actor.replan(Cause("qps", "governor", automatic=True))
    await until(lambda: "plan_unchanged" in world.journal_codes(), LIMIT, "it was planned")
    assert world.d.serving_engine is engine


async def test_after_a_day_it_is_tried_once_and_left_at_the_first_failure(tmp_path: Path) -> None:
    world = await a_world(tmp_path, replace(QUICK, rung_up=1.0))
    try:
        await world.started()
        await killed(world, 3)
        assert (await serving(world)).plan.digest == FEWER.digest
        await until(lambda: (e := world.d.serving_engine) and e.plan.digest == BEST.digest, LIMIT, "it goes up")
        assert world.actor.view().rung is None
        assert (await evidence(world, "climbed_up"))[-1]["on_trial"] is True
        await killed(world)
        assert (await serving(world)).plan.digest == FEWER.digest
        failed = (await evidence(world, "failed"))[-1]
        assert (failed["failures"], failed["failures_limit"], failed["why"]) == (1, 1, "on_trial")
    finally:
        await world.close()


async def test_a_better_plan_that_does_not_come_up_leaves_the_lower_one_serving(tmp_path: Path) -> None:
    world = await a_world(tmp_path, replace(QUICK, rung_up=1.0))
    try:
        await world.started()
        await killed(world, 3)
        await serving(world)
        world.runner.fail_up = EngineFailed("out_of_memory", "cudaMalloc failed", retryable=False)
        await until(lambda: "switch_taken_back" in world.journal_codes(), LIMIT, "the switch is taken back")
        world.runner.fail_up = None
        assert (await serving(world)).plan.digest == FEWER.digest
        assert world.actor.view().rung is not None
        assert [g.code for g in world.context.ledger.of("m").left] == ["out_of_memory"]
    finally:
        await world.close()


async def test_paused_nothing_is_started_again_and_it_is_said(world: World) -> None:
    await world.started()
    world.context.automation.pause("m", "lead")
    await killed(world)
    await until(lambda: "would_retry_same" in world.journal_codes(), LIMIT, "it is said")
    assert (world.runner.ups, world.d.failures.parked) == (1, True)
    assert (await evidence(world, "would_retry_same"))[-1]["by"] == "lead"
    world.context.automation.resume("m")
    await serving(world)
    assert world.runner.ups == 2


HINT = "too many slots for DFlash in this build: lower parallel to 2"


@pytest.mark.parametrize(
    ("bears", "told", "hint"),
    [
        (2, "2 slots instead of 4, for the plan as it is failed 1 time (drafter_overrun)", HINT),
        (0, "no speculation, for 2 slots instead of 4 failed 1 time (drafter_overrun)", "`outrider apply m` tries"),
    ],
    ids=["it drafts as before", "nothing is drafted"],
)
async def test_what_helps_the_drafter_is_advice_only_while_it_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bears: int, told: str, hint: str
) -> None:
    """The hint is of the rung that was left: it goes with what the next one gave up. One failure is told as one, and
    what never ran is not said to run."""
    world = await a_world(tmp_path)
    try:
        bring_up = world.runner.bring_up

        async def aborts(engine: Engine, **more: Any) -> Any:
            if engine.plan.method is Method.DFLASH and engine.plan.parallel > bears:
                raise EngineFailed("drafter_overrun", "it aborted", retryable=False, hint=HINT)
            return await bring_up(engine, **more)

        monkeypatch.setattr(world.runner, "bring_up", aborts)
        await world.started()
        await until(lambda: "on_lower_rung" in issues(world), LIMIT, "a lower rung")
        (opened,) = [e async for e in world.journal.follow() if e.code == "on_lower_rung"]
        assert opened.text == f"m runs with {told}"
        (issue,) = [issue for issue in world.context.issues.list() if issue.code == "on_lower_rung"]
        assert (issue.hint or "").startswith(hint)
        advised = [text for text in advice(world.actor.view(), world.context.issues.list()) if "parallel" in text]
        assert advised == ([HINT] if bears else [])
    finally:
        await world.close()


async def test_on_the_last_rung_it_is_said_that_failures_park_it(world: World) -> None:
    await world.started()
    assert world.actor.view().failures_left is None
    await killed(world)
    await serving(world)
    assert world.actor.view().failures_left is None, "there are rungs below"
    await killed(world, 5)
    assert (await serving(world)).plan.digest == PLAIN.digest
    said = " ".join(what_comes(world.actor.view()))
    assert "Nothing simpler is left to try on this host: 3 more failures in a short time park it" in said
    await killed(world, 2)
    await serving(world)
    assert world.actor.view().failures_left == 1
    assert "the next failure parks it, and then it waits for you" in " ".join(what_comes(world.actor.view()))
    await killed(world)
    await until(lambda: world.d.failures.parked, LIMIT, "it is parked")
    assert not [text for text in what_comes(world.actor.view()) if "parks it" in text]


async def test_good_running_takes_the_warning_back(tmp_path: Path) -> None:
    world = await a_world(tmp_path, replace(QUICK, backoff_reset=0.5))
    try:
        world.planner.ladder = LADDER[:1]
        await world.started()
        await killed(world, 2)
        await serving(world)
        await until(lambda: world.actor.view().failures_left is None, LIMIT, "it has served for long enough")
    finally:
        await world.close()

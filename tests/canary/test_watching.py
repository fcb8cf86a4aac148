"""The watch over engines that serve: drafters that never hit, drafters that always do, and the canary of an idle hour.

Real engines as processes; what stands in for the rest of the daemon are values, and an actor that notes whom it ends.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.automation import Automation
from orchestrator.canary.watching import CanaryWatch
from orchestrator.deployment import Deployment
from orchestrator.engine import Engine, new_id
from orchestrator.engine_client import EngineClient
from orchestrator.errors import EngineFailed
from orchestrator.issues import Issues
from orchestrator.plan import Method, Plan
from orchestrator.timing import Timing
from orchestrator.views import Desired, State
from tests.canary.asked import Desk, a_plan
from tests.canary.conftest import Start
from tests.daemon.world import an_entry
from tests.engine.running import Running
from tests.models import generate as g

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]


@dataclass
class Ends:
    """An actor that notes whom it was told to end."""

    deployment: Deployment
    ended: list[EngineFailed] = field(default_factory=list)

    async def fail_engines(self, generations: Collection[int], verdict: EngineFailed) -> None:
        assert list(generations) == [1]
        self.ended.append(verdict)


class Clock:
    """Monotonic time that passes when a test says so."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at


class Traffic:
    heard = True

    def __init__(self) -> None:
        self.in_flight = 0
        self.gave: float | None = None

    def data_at(self, engine: str) -> float | None:
        return self.gave

    def engine_in_flight(self, engine: str) -> int:
        return self.in_flight

    def waiting(self, model: str) -> int:
        return 0


class Scene:
    """One engine that serves, and its watch."""

    def __init__(self, desk: Desk, plan: Plan, running: Running) -> None:
        self.clock, self.traffic, self.automation = Clock(), Traffic(), Automation()
        self.issues = Issues(desk.journal, self.clock)  # type: ignore[arg-type]
        self.timing, self.desk, self.running = Timing(), desk, running
        self.engine = Engine(new_id(), "m", 1, plan, "k", str(running.socket), None, 0.0, state=State.READY)
        deployment = Deployment(an_entry(), "h", desired=Desired.RUNNING, engines=[self.engine], serving=1)
        self.actor = Ends(deployment)
        context: Any = SimpleNamespace(
            runner=SimpleNamespace(client=self._client, tail=self._tail, canary=desk.canary),
            gateway=self.traffic,
            automation=self.automation,
            journal=desk.journal,
            issues=self.issues,
            clock=self.clock,
            timing=self.timing,
        )
        self.watch = CanaryWatch(context)

    def _client(self, engine: Engine) -> EngineClient:
        return EngineClient(socket=str(self.running.socket), port=None, key="k", timeout=10)

    async def _tail(self, engine: Engine) -> list[Any]:
        return [SimpleNamespace(text=line) for line in self.running.log.splitlines()]

    async def look(self) -> None:
        await self.watch.look([self.actor])

    def open(self) -> list[str]:
        return [issue.code for issue in self.issues.list()]

    async def idle(self) -> None:
        """Nobody wants anything for as long as it takes."""
        await self.look()
        self.clock.at += self.timing.canary_period
        await self.look()


async def test_a_drafter_that_never_hits_raises_an_alarm_and_a_right_one_ends_it(
    desk: Desk, start: Start, test_models: Path
) -> None:
    words = ("-m", test_models / g.TARGET, "--spec-type", "draft-eagle3", "--spec-draft-n-max", "4")
    wrong = start(*words, "-md", test_models / g.EAGLE3_WRONG)
    scene = Scene(desk, a_plan(test_models / g.TARGET, method=Method.EAGLE3, draft_tokens=4), wrong)
    await scene.look()
    wrong.chat(120)
    await scene.look()
    assert scene.open() == [], "not 200 drafts yet"
    wrong.chat(160)
    await scene.look()
    assert scene.open() == ["drafts_useless"]
    issue = scene.issues.list()[0]
    assert (issue.evidence["length"], issue.evidence["length_limit"]) == (1.0, 1.02)
    assert isinstance(issue.evidence["drafts"], int)
    assert issue.evidence["drafts"] >= 200
    print(issue.text)
    # its successor has the right drafter: the issue goes with the engine that it was about
    scene.actor.deployment.engines.clear()
    await scene.look()
    assert scene.open() == []
    assert desk.last().code == "drafts_useless_over"


async def test_a_right_drafter_of_which_all_is_accepted_raises_none(
    desk: Desk, start: Start, test_models: Path
) -> None:
    words = ("--spec-type", "draft-dflash", "--spec-draft-n-max", "7", "-md", test_models / g.DFLASH)
    engine = start("-m", test_models / g.TARGET, *words)
    scene = Scene(desk, a_plan(test_models / g.TARGET, method=Method.DFLASH, draft_tokens=7), engine)
    await scene.look()
    engine.chat(1700)
    counted = await desk.counters(scene.engine.plan, engine.socket)
    assert counted.drafts is not None
    assert counted.drafts >= 200
    assert counted.drafted == counted.accepted, "a rate of 1.0"
    await scene.look()
    assert scene.open() == []
    print(f"{counted.accepted} of {counted.drafted} accepted in {counted.drafts} drafts, no alarm")


async def test_an_engine_that_does_not_draft_is_named(desk: Desk, start: Start, test_models: Path) -> None:
    """MTP of which its command line says nothing: found at the first look after the one that met it."""
    engine = start("-m", test_models / g.TARGET_MTP)
    scene = Scene(desk, a_plan(test_models / g.TARGET_MTP, method=Method.MTP, draft_tokens=3), engine)
    await scene.look()
    await scene.look()
    assert scene.open() == ["speculation_off"]
    issue = scene.issues.list()[0]
    assert issue.evidence["cause"] == "method_not_said"
    assert "--spec-type is missing" in issue.text


async def test_requests_for_a_token_or_two_are_no_silence(desk: Desk, start: Start, test_models: Path) -> None:
    """Nothing is drafted for them. The engine is put to the proof, drafts, and nobody hears of it."""
    words = ("--spec-type", "draft-dflash", "--spec-draft-n-max", "7", "-md", test_models / g.DFLASH)
    engine = start("-m", test_models / g.TARGET, *words)
    scene = Scene(desk, a_plan(test_models / g.TARGET, method=Method.DFLASH, draft_tokens=7), engine)
    await scene.look()
    assert engine.call("/completion", {"prompt": ["x"] * 260, "n_predict": 2, "temperature": 0})[0] == 200
    counted = await desk.counters(scene.engine.plan, engine.socket)
    assert (counted.drafted or 0, (counted.generated or 0) >= 512) == (0, True)
    scene.traffic.in_flight = 1
    await scene.look()
    assert not (await desk.counters(scene.engine.plan, engine.socket)).drafted, "while it works it is left alone"
    scene.traffic.in_flight = 0
    await scene.look()
    assert scene.open() == []
    assert (await desk.counters(scene.engine.plan, engine.socket)).drafted, "it was put to the proof"


async def test_an_idle_engine_is_asked_again_and_a_working_one_is_not(
    desk: Desk, start: Start, test_models: Path
) -> None:
    engine = start("-m", test_models / g.RANDOM_1)
    scene = Scene(desk, a_plan(test_models / g.RANDOM_1), engine)
    await scene.look()
    scene.clock.at += scene.timing.canary_period
    engine.chat(5)
    scene.traffic.gave = scene.clock.at
    await scene.look()
    assert desk.events() == [], "it was used a moment ago"
    scene.clock.at += scene.timing.canary_idle
    scene.traffic.in_flight = 1
    await scene.look()
    assert desk.events() == [], "it is in use"
    scene.traffic.in_flight = 0
    await scene.look()
    assert [e.code for e in desk.events()] == ["canary_passed"]
    assert desk.last().evidence["whole"] is True
    await scene.look()
    assert len(desk.events()) == 1, "rarely"


async def test_one_that_answers_wrongly_when_idle_is_asked_twice_and_then_ended(
    desk: Desk, start: Start, test_models: Path
) -> None:
    """The first answer may be a bit that fell; paused, nothing is ended, and it is said what would have been."""
    plan = a_plan(test_models / g.RANDOM_1)
    await desk.look(plan, start("-m", test_models / g.RANDOM_1).socket)
    scene = Scene(desk, plan, start("-m", test_models / g.RANDOM_2))
    await scene.idle()
    assert scene.actor.ended == [], "one answer is none"
    scene.automation.pause("m", "somebody")
    scene.clock.at += scene.timing.canary_idle
    await scene.look()
    assert scene.actor.ended == []
    assert desk.last().code == "would_restart"
    await scene.look()
    assert scene.actor.ended == []
    scene.automation.resume("m")
    scene.traffic.in_flight = 1
    await scene.look()
    assert [e.code for e in scene.actor.ended] == ["canary_failed"], "at once: what it says is wrong, idle or not"
    assert scene.actor.ended[0].evidence["reason"] == "likelihood_off"
    assert "refuted" not in scene.actor.ended[0].evidence, "one engine alone refutes nothing"

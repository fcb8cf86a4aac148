"""When an engine is asked what, and what follows from its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hosts.bounded import Stuck, bounded
from hosts.facts import HostFacts
from orchestrator.canary import asking, judging, weights
from orchestrator.canary.asking import FAILED, Asker, NoTime, NotOffered, failed
from orchestrator.canary.judging import Answer, Observation, Outcome
from orchestrator.canary.passages import LENGTHS, LONG, TEXTS, long_size
from orchestrator.canary.records import Records, Result
from orchestrator.canary.reference import Reference, implausible
from orchestrator.clock import Clock
from orchestrator.decision import Decision
from orchestrator.engine import Engine
from orchestrator.engine_client import EngineClient, EngineUnreachable
from orchestrator.errors import EngineFailed
from orchestrator.events import Journal
from orchestrator.measured import Ran, Refuted
from orchestrator.measuring import ran as headings
from orchestrator.plan import Plan
from orchestrator.runtimes import adapter
from orchestrator.timing import Timing

NAMES = tuple(str(n) for n in range(len(TEXTS)))
FAILURES = 2
"""Engines of one combination that fail one after the other: then it is refuted. One alone may be a bit that fell."""
READ_LIMIT = 10.0
"""Seconds for the samples of the weights' files."""


@dataclass(frozen=True, slots=True)
class Looked:
    """One look: what was asked, for whom, and the verdict."""

    verdict: Decision[Outcome]
    whole: bool
    made: bool
    """The reference was made by this look."""


class Canary:
    """The canaries of one host."""

    def __init__(
        self,
        records: Records,
        *,
        facts: Callable[[], HostFacts],
        journal: Journal,
        clock: Clock,
        timing: Timing,
        learned: Callable[[], Awaitable[None]],
    ) -> None:
        """`learned` is called when there is something new that plans are to know."""
        self._records = records
        self._facts = facts
        self._journal = journal
        self._clock = clock
        self._timing = timing
        self._learned = learned

    async def before_ready(self, engine: Engine, client: EngineClient) -> None:
        """Ask an engine that is about to serve. What was proven with the same plan, image and driver before is asked
        briefly, all else wholly. Raises `EngineFailed` `canary_failed`."""
        plan = engine.plan
        whole = not await self._records.passed_whole(plan.digest, plan.image, headings.driver(plan, self._facts()))
        await self.check(engine, client, whole=whole)

    async def check(self, engine: Engine, client: EngineClient, *, whole: bool) -> None:
        """One canary, noted and judged. Raises `EngineFailed`: `canary_failed`, or what the engine failed with."""
        started = self._clock.now()
        try:
            looked = await self._look(engine, client, whole=whole)
        except NotOffered as error:
            self._tell(engine, "canary_left_out", f"{engine.name} cannot be asked what its weights say: {error}")
            return
        except EngineFailed as error:
            if error.code != FAILED:
                raise
            await self._failed(engine, error)
            raise
        seconds = round(self._clock.now() - started, 3)
        numbers = {**looked.verdict.evidence, "seconds": seconds, "whole": looked.whole}
        if looked.verdict.action is Outcome.FAILED:
            text = f"{engine.name} is healthy, and {judging.said(looked.verdict)}"
            wrong = failed(looked.verdict.reason, text, **numbers)
            await self._failed(engine, wrong)
            raise wrong
        await self._note(engine, passed=True, whole=looked.whole, reason=looked.verdict.reason)
        what = "makes sense, and is the measure from now on" if looked.made else "is what its weights say"
        self._tell(engine, "canary_passed", f"{engine.name}: what it says {what}", **numbers)

    # looking

    async def _look(self, engine: Engine, client: EngineClient, *, whole: bool) -> Looked:
        plan = engine.plan
        scoring = adapter(plan.runtime).scoring
        which = await self._weights(plan)
        asker = Asker(
            client,
            scoring,
            plan.model,
            now=self._clock.now,
            end=self._clock.now() + self._timing.canary,
            call=self._timing.proof_call,
        )
        reference = await self._records.reference(which, NAMES)
        made = reference is None
        if reference is None:
            reference = await self._made(asker, engine)
            await self._records.keep(which, plan.model, reference, self._clock.wall())
        scored = None if made else await asker.scored(reference.passages["0"])
        answers = {name: await asker.answer(reference.passages[name]) for name in NAMES}
        seen, whole_now = Observation(scored, answers), whole or made
        if whole_now:
            pair = await self._together(asker, reference, plan)
            long = None
            try:
                long, reference = await self._long(asker, reference, plan, which)
                whole_now = not asker.late
            except NoTime:
                whole_now = False
            seen = Observation(scored, answers, long, pair)
        exact = plan.deterministic and reference.made.get("image") == plan.image
        return Looked(judging.judge(reference, seen, exact=exact), whole_now, made)

    async def _weights(self, plan: Plan) -> str:
        try:
            found = await asyncio.to_thread(
                bounded, f"weights of {plan.model}", READ_LIMIT, lambda: weights.digest(plan)
            )
        except Stuck as error:
            raise NotOffered(f"its weights cannot be read to tell which they are: {error}") from error
        if found is None:
            raise NotOffered("its weights cannot be read to tell which they are")
        return found

    async def _made(self, asker: Asker, engine: Engine) -> Reference:
        """What these weights say, by an engine that was asked for one token at a time and so drafted nothing."""
        passages = await asking.three(asker, LENGTHS)
        why = implausible(tuple(passages.values()))
        if why is not None:
            raise failed("implausible", f"{engine.name} is healthy, and talks nonsense: {why}", said=why)
        plan = engine.plan
        made = {
            "plan": plan.digest,
            "image": plan.image,
            "runtime": plan.runtime,
            "method": plan.method.value,
            "day": self._clock.today().isoformat(),
        }
        return Reference(passages, made)

    async def _together(self, asker: Asker, reference: Reference, plan: Plan) -> dict[str, Answer] | None:
        names = judging.pair_of(reference)
        if plan.parallel < 2 or names is None or asker.late:
            return None
        one, other = names
        first, second = await asker.together(reference.passages[one], reference.passages[other])
        return {one: first, other: second}

    async def _long(
        self, asker: Asker, reference: Reference, plan: Plan, which: str
    ) -> tuple[tuple[str, Answer] | None, Reference]:
        """The answer to the long prompt; its passage is added to the reference where it is new. Raises
        `NoTime`, also where an engine that answered the short ones reads so slowly that this does not come in time."""
        size = long_size(adapter(plan.runtime).scoring.chunks(plan.argv), plan.context)
        if size is None:
            return None, reference
        if asker.late:
            raise NoTime
        name = f"{LONG}-{size}"
        try:
            if name not in reference.passages:
                reference = reference.with_passage(name, await asker.long_passage(size))
                await self._records.keep(which, plan.model, reference, self._clock.wall())
            return (name, await asker.answer(reference.passages[name], fresh=True)), reference
        except EngineUnreachable as error:
            if error.busy:
                raise NoTime from error
            raise

    # what follows

    async def _failed(self, engine: Engine, error: EngineFailed) -> None:
        """Note it; when the same combination failed before, with another engine, it is refuted."""
        reason = str(error.evidence.get("reason"))
        await self._note(engine, passed=False, whole=False, reason=reason)
        ran, driver = self._combination(engine.plan)
        engines = await self._records.failing(ran, driver, engine.plan.image)
        error.evidence = {**error.evidence, "failed_in_a_row": len(engines), "failed_in_a_row_limit": FAILURES}
        if len(engines) < FAILURES:
            return
        day = self._clock.today().isoformat()
        source = f"canaries of this host, {day}: {len(engines)} engines in a row"
        await self._records.refute(ran, driver, Refuted(error.detail, source, day), self._clock.wall())
        await self._learned()
        error.evidence = {**error.evidence, "refuted": True}
        self._tell(
            engine,
            "combination_refuted",
            f"{_called(ran)} answers wrongly here: it is planned no more",
            reason=reason,
            engines=list(engines),
            driver=driver,
            image=engine.plan.image,
        )

    async def _note(self, engine: Engine, *, passed: bool, whole: bool, reason: str) -> None:
        ran, driver = self._combination(engine.plan)
        plan, day = engine.plan, self._clock.today().isoformat()
        await self._records.note(
            Result(ran, driver, plan.image, plan.digest, engine.id, passed, whole, reason, self._clock.wall(), day)
        )

    def _combination(self, plan: Plan) -> tuple[Ran, str | None]:
        facts = self._facts()
        return headings.of(plan, facts), headings.driver(plan, facts)

    def _tell(self, engine: Engine, code: str, text: str, **evidence: object) -> None:
        self._journal.emit(
            "canary",
            code,
            text,
            deployment=engine.deployment,
            evidence={"generation": engine.generation, "plan": engine.plan.digest, **evidence},
        )


def _called(ran: Ran) -> str:
    """A combination in words."""
    drafted = "without drafting" if ran.drafter is None and ran.method == "none" else f"with {ran.method}"
    by = "" if ran.drafter is None else f" by {ran.drafter}"
    version = "" if ran.version is None else f" {ran.version}"
    return f"{ran.runtime}{version} on {ran.arch} {drafted}{by} for {ran.model} {ran.variant}"

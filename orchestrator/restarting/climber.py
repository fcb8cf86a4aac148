"""Carrying the restart rule out for one deployment: failures in, pauses, rungs and parking out.

Changed by its deployment's actor alone. The rule is `rule`, the rung `choice`; what is remembered goes to the `ledger`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from orchestrator import backoff
from orchestrator.context import Context
from orchestrator.decision import Decision
from orchestrator.deployment import PAUSED, Deployment
from orchestrator.engine import Engine
from orchestrator.errors import EngineFailed, OutriderError
from orchestrator.faults import fault_of, policy_of
from orchestrator.plan import Plan, Planned, Reason, Rung
from orchestrator.restarting import choice, rule
from orchestrator.restarting.ledger import Row
from orchestrator.restarting.rule import Next, Seen
from orchestrator.restarting.standing import GivenUp, Here, Key, Moment, Standing
from orchestrator.telling.amounts import count as counted
from orchestrator.views import LeftRung, RungView, State, Why

DOWN, PARKED = "on_lower_rung", "keeps_failing"
"""Issues: it runs on a lower rung; it does not run at all any more."""
INTERNAL = "internal"


class NoRungLeft(EngineFailed):
    """Everything that could be launched was given up; code and words are those of the last failure."""


class Climber:
    """The ladder of one deployment."""

    def __init__(self, deployment: Deployment, context: Context) -> None:
        self._d = deployment
        self._c = context
        self._standing = context.ledger.of(deployment.name)
        self._rungs: tuple[tuple[choice.Step, str], ...] = ()
        """The ladder as it was planned last: the steps and what they are in words; empty until then."""
        self._chosen: dict[str, Here] = {}
        """Rungs by the digests of their plans, of those that were chosen."""
        self._rows: list[Row] = []
        self._dirty = False
        self._last = Next.RETRY_SAME
        """What was decided about the last failure."""
        self._parked: tuple[OutriderError | None, str] | None = None
        """What is parked and not told yet: the error, and the rung."""
        self._waits_for_person: str | None = None
        """Automation is paused, by this author: the failure is not acted on until it is resumed."""
        self._show()

    # what went wrong

    def record(self, error: BaseException, *, ran_for: float, engine: Engine | None) -> Mapping[str, object]:
        """One more failure; sets the deployment's `failures` (and `wanted`, when another rung is to be planned).
        The numbers behind it."""
        d = self._d
        code = error.code if isinstance(error, OutriderError) else INTERNAL
        rung = None if engine is None else self._rung_of(engine.plan)[1]
        retryable = error.retryable if isinstance(error, OutriderError) else True
        if engine is None or not policy_of(code).blames:
            d.failures = backoff.failed(
                d.failures,
                now=self._c.clock.now(),
                ran_for=ran_for,
                retryable=retryable,
                timing=self._c.timing,
                spread=self._spread(),
            )
            action = Next.RETRY_SAME if retryable else Next.PARK
            if isinstance(error, NoRungLeft):
                self._parked = error, self._standing.left[-1].text
            numbers: dict[str, object] = {"failures": d.failures.count, "parked": d.failures.parked}
            if d.failures.delay is not None:
                numbers["again_in_s"] = round(d.failures.delay, 3)
        else:
            action, numbers = self._blame(error, code, ran_for, engine)
        if engine is not None and rung is not None:
            self._row(engine, rung, ran_for=ran_for, action=action, error=(code, str(error)))
        self._last = action
        return {**numbers, "fault": fault_of(code).value, "action": action.value}

    def tell(self) -> None:
        """What follows from the failure that was recorded, once the failure itself was told."""
        if self._parked is not None:
            error, rung = self._parked
            self._parked = None
            self._park(error, rung)
        self._hands_off(self._last)
        self._show()

    def _blame(self, error: BaseException, code: str, ran_for: float, engine: Engine) -> tuple[Next, dict[str, object]]:
        d = self._d
        key, text = self._rung_of(engine.plan)
        known = error if isinstance(error, OutriderError) else None
        seen = Seen(
            key,
            text,
            code,
            ran_for,
            retryable=known is None or known.retryable,
            served=ran_for > 0,
            detail=str(error) if known is None else known.detail,
            hint=None if known is None else known.hint,
        )
        decision, self._standing = rule.after(
            self._standing, seen, timing=self._c.timing, spread=self._spread(), now=self._now()
        )
        self._dirty = True
        action = decision.action
        if action is Next.NEXT_RUNG and self._rungs and self._below() is None:
            action = Next.PARK
        d.failures = self._pause(decision, action)
        if action is Next.NEXT_RUNG:
            d.wanted = None
        numbers = {
            "failures": decision.evidence["failures"],
            "failures_limit": decision.evidence["limit"],
            "rung": text,
            "again_in_s": None if d.failures.delay is None else round(d.failures.delay, 3),
            "parked": action is Next.PARK,
            "why": decision.reason,
        }
        if action is Next.PARK:
            self._parked = known, text
        return action, numbers

    def _pause(self, decision: Decision[Next], action: Next) -> backoff.Failures:
        count = int(str(decision.evidence["in_a_row"]))
        if action is Next.PARK:
            return backoff.Failures(count, parked=True)
        pause = float(str(decision.evidence["seconds"]))
        return backoff.Failures(count, self._c.clock.now() + pause, delay=pause)

    def _park(self, error: OutriderError | None, rung: str) -> None:
        d = self._d
        why = "" if error is None else f": {error.detail}"
        self._c.issues.open(
            PARKED,
            d.name,
            f"{d.name} is not started again{why}",
            hint=f"nothing simpler is left to try on this host; mend it, then `outrider start {d.name}`",
            evidence={"code": INTERNAL if error is None else error.code, "rung": rung},
            deployment=d.name,
        )

    def _hands_off(self, action: Next) -> None:
        """Paused, nothing is started again; what would have been done is said."""
        d = self._d
        author = self._c.automation.paused(d.name)
        if author is None or action is Next.PARK or d.serving_engine is not None:
            return
        self._waits_for_person = author
        would = "started again" if action is Next.RETRY_SAME else "started on the next rung"
        self._emit(
            f"would_{action.value}",
            f"{d.name} would be {would}; automation is paused by {author}",
            {"by": author, "pause_s": d.failures.delay},
        )
        d.failures = backoff.Failures(d.failures.count, parked=True)

    def begin(self) -> None:
        """A daemon begins, and knows what is there: what is paused and is not there is not started by itself."""
        d = self._d
        author = self._c.automation.paused(d.name)
        if author is None or not d.should_run or d.live():
            return
        self._waits_for_person = author
        hint = f"`outrider resume {d.name}` lets it start, `outrider start {d.name}` starts it"
        d.reason = Why(PAUSED, f"{d.name} is not started: automation is paused by {author}", hint)
        d.failures = backoff.Failures(parked=True)
        self._emit("would_start", f"{d.name} would be started; automation is paused by {author}", {"by": author})

    @property
    def waits_for_person(self) -> bool:
        """Whether it failed while automation is paused: nothing starts it again before that is over."""
        return self._waits_for_person is not None

    # the rung

    def choose(self, found: Planned) -> Planned:
        """The planner's answer with the plan of the rung to use. Raises `EngineFailed` when none is left."""
        if found.plan is None:
            return found
        rungs = found.ladder or (Rung("plan", "the plan as it is", found.plan),)
        ladder = choice.steps(rungs)
        self._rungs = tuple(zip(ladder, (rung.text for rung in rungs), strict=True))
        position = choice.choose(ladder, self._standing)
        if position == 0:
            return found
        if position is None:
            raise self._exhausted()
        rung = rungs[position]
        last = self._standing.left[-1]
        text = f"{rung.text}: {last.failures} x {last.code} with {last.text}"
        plan = replace(rung.plan, reasons=(*rung.plan.reasons, Reason("lower_rung", text, "this host's crash ledger")))
        return replace(found, plan=plan)

    def planned(self, plan: Plan) -> None:
        """This is what will be launched: remember which rung it is, and say so when it is a lower one."""
        position = self._below() if self._rungs else 0
        if not position:
            return
        step, text = self._rungs[position]
        if step.key.combination != Key.of(plan).combination:
            return  # the governor's plan: the rung's without its speculation
        here = Here(plan.digest, step.key, text, self._c.clock.wall())
        before = self._standing.here
        self._chosen[plan.digest] = here
        if before is not None and before.key == here.key:
            here = replace(here, since=before.since)
        else:
            last = self._standing.left[-1]
            self._emit(
                "climbed_down",
                f"{self._d.name} goes on with {text}, after {last.failures} x {last.code} with {last.text}",
                {"from": last.text, "to": text, "change": step.key.change, "code": last.code, "plan": plan.digest},
            )
            reason = self._d.reason
            if reason is not None and reason.code == last.code and _still_helps(last, here) is None:
                self._d.reason = replace(reason, hint=None)
        self._standing = replace(self._standing, here=here)
        self._dirty = True
        self._show()

    def _below(self, standing: Standing | None = None) -> int | None:
        return choice.choose(tuple(step for step, _ in self._rungs), standing or self._standing)

    def failures_left(self) -> int | None:
        """How many more failures park it; None while there is a rung below, or nothing is known of any failure."""
        stood, engine = self._standing, self._d.serving_engine
        if not self._rungs or not (stood.failures or stood.given_up):
            return None
        key = stood.here.key if stood.here is not None and stood.left else self._rungs[0][0].key
        served = 0.0 if engine is None or engine.ready_at is None else self._c.clock.now() - engine.ready_at
        if served >= self._c.timing.backoff_reset:
            stood = rule.forgiven(stood, key)
        mine = [f.code for f in stood.failures if f.key == key]
        code = mine[-1] if mine else stood.given_up[-1].code if stood.given_up else None
        if code is None:
            return None
        gone = GivenUp(key, "", code, len(mine), self._now())
        if self._below(replace(stood, given_up=(*(g for g in stood.given_up if g.key != key), gone))) is not None:
            return None
        return rule.spare(stood, key, code, self._c.timing)

    def _exhausted(self) -> NoRungLeft:
        last = self._standing.left[-1]
        return NoRungLeft(
            last.code,
            last.detail or f"it failed {counted(last.failures, 'time')} ({last.code}), and nothing simpler is left",
            retryable=False,
            hint=last.hint or f"mend it, then `outrider start {self._d.name}`",
            evidence={"given_up": [g.text for g in self._standing.left]},
        )

    def _rung_of(self, plan: Plan) -> tuple[Key, str]:
        here = self._chosen.get(plan.digest)
        kept = self._standing.here
        if here is None and kept is not None and kept.digest == plan.digest:
            here = kept
        if here is not None:
            return here.key, here.text
        key = Key.of(plan)
        said = next((text for step, text in self._rungs if step.key == key), None)
        return key, said or f"{plan.runtime} with {plan.method}"

    # up again

    def up(self, reason: str, by: str, *, on_trial: bool = False) -> bool:
        """From the top again; False when it is there. A person's word is for good, a day's is a trial."""
        stood = self._standing
        if stood == Standing():
            return False
        self._standing = rule.gone_up(stood, on_trial=on_trial)
        self._dirty = True
        if stood.left:
            self._emit(
                "climbed_up",
                f"{self._d.name} is planned from the top again ({reason})",
                {"by": by, "given_up": [g.text for g in stood.left], "on_trial": on_trial},
            )
        if not on_trial:
            self._standing = Standing()
            self._chosen.clear()
        self._show()
        return bool(stood.left)

    def look(self) -> bool:
        """Now and then: whether it is to be planned anew, for a day has passed or somebody resumed automation."""
        d = self._d
        paused = self._c.automation.paused(d.name)
        if self._waits_for_person is not None and paused is None:
            self._waits_for_person = None
            d.failures = backoff.Failures()
            d.reason = None if d.reason is not None and d.reason.code == PAUSED else d.reason
        if not self._standing.given_up:
            return False
        self._show()
        if paused is not None or not rule.may_go_up(self._standing, self._now(), self._c.timing):
            return False
        d.failures = backoff.Failures() if d.serving_engine is None else d.failures
        return self.up("a_day_passed", "outrider", on_trial=True)

    def ready(self, engine: Engine) -> None:
        """It serves: nothing is parked any more."""
        self._waits_for_person = None
        kept = self._standing.here
        if kept is not None and kept.digest != engine.plan.digest and engine.plan.digest not in self._chosen:
            self._standing, self._dirty = replace(self._standing, here=None), True
        self._c.issues.close(PARKED, self._d.name, f"{self._d.name} serves", deployment=self._d.name)
        self._show()

    def forget(self) -> None:
        """Nothing is desired of it any more: issues go, what was learned stays."""
        self._waits_for_person = None
        for code in (DOWN, PARKED):
            self._c.issues.close(code, self._d.name, f"{self._d.name} is stopped", deployment=self._d.name)

    # telling, keeping

    def _show(self) -> None:
        """The rung in the deployment's view, and the issue that it stands on a lower one."""
        d, stood, now = self._d, self._standing, self._now()
        here, left = stood.here, stood.left
        if not left or here is None:
            d.rung = None
            self._c.issues.close(DOWN, d.name, f"{d.name} is planned from the top again", deployment=d.name)
            return
        last = left[-1]
        d.rung = RungView(
            change=here.key.change,
            text=here.text,
            method=here.key.method,
            since=here.since,
            left=tuple(LeftRung(g.text, g.code, g.failures, g.at.wall) for g in left),
            up_in_s=round(max(0.0, self._c.timing.rung_up - min(now.since(g.at) for g in left)), 1),
        )
        if d.failures.parked:
            self._c.issues.close(DOWN, d.name, deployment=d.name)  # it does not run at all
        elif self._runs(here.key) and all(g.key != here.key for g in left):
            self._c.issues.open(
                DOWN,
                d.name,
                f"{d.name} runs with {here.text}, for {last.text} failed {counted(last.failures, 'time')}"
                f" ({last.code})",
                hint=_still_helps(last, here) or f"`outrider apply {d.name}` tries the best plan again",
                evidence={"code": last.code, "failures": last.failures, "rung": here.text},
                deployment=d.name,
            )

    def _runs(self, key: Key) -> bool:
        """Whether an engine of this rung serves, or may."""
        return any(e.state is State.READY and self._rung_of(e.plan)[0] == key for e in self._d.engines)

    def _row(self, engine: Engine, rung: str, *, ran_for: float, action: Next, error: tuple[str, str]) -> None:
        code, text = error
        self._rows.append(
            Row(
                deployment=self._d.name,
                at=self._c.clock.wall(),
                boot=self._c.ledger.boot,
                generation=engine.generation,
                plan=engine.plan.digest,
                rung=rung,
                code=code,
                fault=fault_of(code).value,
                ran_for=round(ran_for, 3),
                action=action.value,
                text=text[:500],
            )
        )
        self._dirty = True

    async def save(self) -> None:
        """Write what changed into the ledger. Raises `DatabaseFailed`; what was not written stays for the next time,
        and so does what changes meanwhile."""
        if not self._dirty:
            return
        self._dirty = False
        try:
            await self._c.ledger.keep(self._d.name, self._standing, self._rows, self._c.clock.wall())
        except BaseException:
            self._dirty = True
            raise

    def _emit(self, code: str, text: str, evidence: Mapping[str, object]) -> None:
        self._c.journal.emit("ladder", code, text, deployment=self._d.name, evidence=evidence)

    def _now(self) -> Moment:
        return Moment(self._c.ledger.boot, self._c.clock.now(), self._c.clock.wall())

    @staticmethod
    def _spread() -> float:
        return random.uniform(-1, 1)  # noqa: S311 - jitter, not a secret


def _still_helps(last: GivenUp, here: Here) -> str | None:
    """What a person could do about the rung that was left last; None where the one below has given that up already:
    an engine that drafts no longer, or otherwise, needs no fewer slots for the drafter's sake."""
    return last.hint if (last.key.method, last.key.drafter) == (here.key.method, here.key.drafter) else None

"""Carrying a takeover out: one act after the other, as `course` says, and back when one fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from orchestrator.decision import Decision
from orchestrator.errors import OutriderError
from orchestrator.stopping.barrier import RISE, STABLE
from orchestrator.takeover import course
from orchestrator.takeover.course import Act, Ours, Seen
from orchestrator.takeover.units import SystemctlFailed, Unit

POLL = 0.2
SETTLE = 20.0
"""Seconds that the memory of what was stopped may take to come back."""
INTERRUPTED = "interrupted"
CAME_BACK = "unit_came_back"


class Manager(Protocol):
    """Of systemd (`units.Systemctl`)."""

    def runs(self, name: str) -> bool: ...
    def stop(self, name: str) -> None: ...
    def start(self, name: str) -> None: ...
    def disable(self, name: str) -> None: ...


class Deployment(Protocol):
    """Our deployment, by way of the daemon. Each may raise an `OutriderError`."""

    def free(self) -> tuple[int, Mapping[str, int]]:
        """The number of the newest reading of the host, and the bytes that are free on each of its GPUs."""

    def start(self) -> None: ...
    def state(self) -> tuple[Ours, str | None]:
        """How far it is, and what is to be said of it."""

    def stop(self, why: str) -> None:
        """Have it stopped, and wait until nothing of it runs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. `unit_back`: the unit runs again; None where it need not. `disabled`: the unit no longer comes up
    with the machine; None where it was not to be. `ours_left`: ours may run beside the unit, for nobody who could
    stop it answered. `said` is what went wrong, if anything did."""

    done: bool
    reason: str
    said: str | None
    unit_back: bool | None = None
    disabled: bool | None = None
    ours_left: bool = False


class Takeover:
    """One takeover."""

    def __init__(
        self,
        unit: Unit,
        manager: Manager,
        ours: Deployment,
        *,
        bound: float,
        disable: bool,
        now: Callable[[], float],
        pause: Callable[[float], None],
        tell: Callable[[Decision[Act], str | None], None],
    ) -> None:
        """`bound`: seconds that ours may take to be ready. `tell` hears each act before it is done."""
        self._unit, self._manager, self._ours = unit, manager, ours
        self._bound, self._disable = bound, disable and unit.enabled
        self._now, self._pause, self._tell = now, pause, tell
        self._state, self._since = Ours.UNASKED, now()
        self._active = unit.active
        self._settled = not unit.active
        self._trouble: str | None = None
        self._said: str | None = None
        self._back: bool | None = None
        self._disabled: bool | None = None
        self._left = False

    def carry_out(self) -> Outcome:
        """To the end, one way or the other. An interruption (Ctrl-C) leads back to the unit too."""
        act: Act | None = None
        while True:
            try:
                act = None
                decision = course.decide(self._seen())
                act = decision.action
                if act is Act.DONE:
                    return Outcome(True, decision.reason, self._said, disabled=self._disabled)
                if act is Act.FAILED:
                    return Outcome(False, decision.reason, self._said, self._back, ours_left=self._left)
                if act not in (Act.WAIT, Act.SETTLE):
                    with suppress(OSError):  # a terminal that is gone hears nothing; the unit comes back all the same
                        self._tell(decision, self._said)
                self._act(decision)
            except KeyboardInterrupt:
                self._interrupted(act)
            except OutriderError as error:
                self._failed(act, error.detail)
            except Exception as error:  # any: the unit is stopped, and must come back all the same
                if act is None:
                    raise
                self._failed(act, f"{type(error).__name__}: {error}")

    def _seen(self) -> Seen:
        waited = self._now() - self._since if self._state is not Ours.UNASKED else 0.0
        was, enabled = self._unit.active, self._disable
        return Seen(self._active, was, enabled, self._state, waited, self._bound, self._settled, self._trouble)

    def _act(self, decision: Decision[Act]) -> None:
        match decision.action:
            case Act.STOP_UNIT:
                self._active = False  # whatever comes of it: it is started again on the way back
                self._manager.stop(self._unit.name)
                if self._manager.runs(self._unit.name):
                    raise SystemctlFailed(f"{self._unit.name} was stopped, and runs again: something starts it")
            case Act.SETTLE:
                self._settled = True  # tried once: less memory is no reason to give up
                self._settle()
            case Act.START_OURS:
                self._state, self._since = Ours.COMING, self._now()
                self._ours.start()
            case Act.WAIT:
                self._look()
            case Act.DISABLE_UNIT:
                self._disable, self._disabled = False, False
                self._manager.disable(self._unit.name)
                self._disabled = True
            case Act.STOP_OURS:
                self._state = Ours.STOPPED  # tried once: the unit must come back all the same
                self._trouble = self._trouble or decision.reason
                self._left = True
                self._ours.stop(decision.reason)
                self._left = False
            case Act.START_UNIT:
                self._active, self._back = True, False
                self._start_unit()
            case Act.DONE | Act.FAILED:
                raise RuntimeError(f"{decision.action} is nothing to do")

    def _look(self) -> None:
        try:
            state, self._said = self._ours.state()
        except Exception:
            self._pause(POLL)  # here, where an interruption is heard
            raise
        if state is Ours.COMING:
            self._pause(POLL)
        elif self._runs():
            self._active, self._back, self._trouble = True, True, CAME_BACK
            self._said = f"{self._unit.name} runs again: something starts it"
        self._state = state

    def _runs(self) -> bool:
        """Whether the unit is seen to run; of a systemd that does not answer nothing is known."""
        try:
            return self._manager.runs(self._unit.name)
        except OutriderError:
            return False

    def _settle(self) -> None:
        """Return when no GPU's free memory rises any more. One look is one reading of the host."""
        end, looks, last = self._now() + SETTLE, list[Mapping[str, int]](), -1
        while self._now() < end:
            number, free = self._ours.free()
            if not free:
                return
            if number != last:
                looks, last = [*looks[-STABLE:], free], number
            first = looks[-STABLE] if len(looks) > STABLE else None  # the newest of before the stop does not count
            if first is not None and all(free[gpu] - first.get(gpu, 0) < RISE for gpu in free):
                return
            self._pause(POLL)

    def _start_unit(self) -> None:
        """And what was stopped with it. That it comes up counts, not how long that takes."""
        try:
            self._manager.start(self._unit.name)
            for name in self._unit.needing:
                self._manager.start(name)
        finally:
            self._back = self._runs()

    def _interrupted(self, act: Act | None) -> None:
        self._said = self._said or "it was interrupted"
        if self._disabled is None and act not in (Act.DONE, Act.FAILED):  # else it is done already
            self._trouble = self._trouble or INTERRUPTED

    def _failed(self, act: Act | None, said: str) -> None:
        """An act failed. What comes after readiness, and what is done on the way back, does not turn it round."""
        if act is Act.SETTLE:
            return
        self._said = said if self._said is None or act in (Act.START_UNIT, Act.STOP_UNIT) else self._said
        if act in (Act.STOP_UNIT, Act.START_OURS, Act.STOP_OURS, Act.START_UNIT):
            self._trouble = self._trouble or f"{act.value}_failed"

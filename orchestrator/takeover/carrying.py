"""Carrying a takeover out: one act after the other, as `course` says, and back when one fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from orchestrator.decision import Decision
from orchestrator.errors import OutriderError
from orchestrator.takeover import course
from orchestrator.takeover.course import Act, Ours, Seen
from orchestrator.takeover.units import Unit

POLL = 0.2
INTERRUPTED = "interrupted"


class Manager(Protocol):
    """Of systemd (`units.Systemctl`)."""

    def unit(self, name: str) -> Unit: ...
    def stop(self, name: str) -> None: ...
    def start(self, name: str) -> None: ...
    def disable(self, name: str) -> None: ...


class Deployment(Protocol):
    """Our deployment, by way of the daemon. Each may raise an `OutriderError`."""

    def start(self) -> None: ...
    def state(self) -> tuple[Ours, str | None]:
        """How far it is, and what is to be said of it."""

    def stop(self) -> None:
        """Have it stopped, and wait until nothing of it runs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. `unit_back`: the unit runs again; None where it need not."""

    done: bool
    reason: str
    said: str | None
    unit_back: bool | None = None


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
        self._trouble: str | None = None
        self._said: str | None = None
        self._back: bool | None = None

    def carry_out(self) -> Outcome:
        """To the end, one way or the other. An interruption (Ctrl-C) leads back to the unit too."""
        while True:
            decision = course.decide(self._seen())
            if decision.action is Act.DONE:
                return Outcome(True, decision.reason, self._said)
            if decision.action is Act.FAILED:
                return Outcome(False, decision.reason, self._said, self._back)
            if decision.action is not Act.WAIT:
                self._tell(decision, self._said)
            try:
                self._act(decision)
            except KeyboardInterrupt:
                self._trouble = self._trouble or INTERRUPTED
                self._said = self._said or "it was interrupted"
            except OutriderError as error:
                self._failed(decision.action, error)

    def _seen(self) -> Seen:
        waited = self._now() - self._since if self._state is not Ours.UNASKED else 0.0
        was, enabled = self._unit.active, self._disable
        return Seen(self._active, was, enabled, self._state, waited, self._bound, self._trouble)

    def _act(self, decision: Decision[Act]) -> None:
        match decision.action:
            case Act.STOP_UNIT:
                self._active = False  # whatever comes of it: it is started again on the way back
                self._manager.stop(self._unit.name)
            case Act.START_OURS:
                self._state, self._since = Ours.COMING, self._now()
                self._ours.start()
            case Act.WAIT:
                state, said = self._ours.state()
                self._state, self._said = state, said
                if state is Ours.COMING:
                    self._pause(POLL)
            case Act.DISABLE_UNIT:
                self._disable = False
                self._manager.disable(self._unit.name)
            case Act.STOP_OURS:
                self._state = Ours.STOPPED  # tried once: the unit must come back all the same
                self._trouble = self._trouble or decision.reason
                self._ours.stop()
            case Act.START_UNIT:
                self._active, self._back = True, False
                self._manager.start(self._unit.name)
                self._back = self._manager.unit(self._unit.name).active
            case Act.DONE | Act.FAILED:
                raise RuntimeError(f"{decision.action} is nothing to do")

    def _failed(self, act: Act, error: OutriderError) -> None:
        """An act failed. What comes after readiness, and what is done on the way back, does not turn it round."""
        self._said = error.detail if self._said is None or act in (Act.START_UNIT, Act.STOP_UNIT) else self._said
        if act not in (Act.DISABLE_UNIT, Act.WAIT):
            self._trouble = self._trouble or f"{act.value}_failed"

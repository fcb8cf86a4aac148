"""A takeover that is cut off, at moments that no terminal hits by chance: the unit comes back."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from orchestrator.errors import OutriderError
from orchestrator.takeover.carrying import Outcome, Takeover
from orchestrator.takeover.course import Ours
from orchestrator.takeover.units import Unit

UNIT = Unit("vllm.service", active=True, enabled=True, generated=False, source=None, memory=None)


class Manager:
    """systemd, with one unit."""

    def __init__(self) -> None:
        self.active = True

    def runs(self, name: str) -> bool:
        return self.active

    def stop(self, name: str) -> None:
        self.active = False

    def start(self, name: str) -> None:
        self.active = True

    def disable(self, name: str) -> None: ...


class Daemon:
    """What a test says that it answers."""

    def __init__(self, start: BaseException | None = None, state: BaseException | None = None) -> None:
        self._start, self._state = start, state
        self.stopped = False

    def free(self) -> tuple[int, Mapping[str, int]]:
        return 1, {}

    def start(self) -> None:
        if self._start is not None:
            raise self._start

    def state(self) -> tuple[Ours, str | None]:
        if self._state is not None:
            raise self._state
        return Ours.COMING, None

    def stop(self, why: str) -> None:
        self.stopped = True


def carried_out(manager: Manager, daemon: Daemon, *, interrupted: bool = False) -> Outcome:
    seconds = iter(range(10_000))

    def pause(_: float) -> None:
        if interrupted:
            raise KeyboardInterrupt

    return Takeover(
        UNIT,
        manager,
        daemon,
        bound=100.0,
        disable=True,
        now=lambda: float(next(seconds)),
        pause=pause,
        tell=lambda *_: None,
    ).carry_out()


@pytest.mark.parametrize("state", [None, OutriderError("the daemon does not answer")], ids=["coming", "silent"])
def test_an_interruption_between_two_looks_leads_back(state: OutriderError | None) -> None:
    """Who sees a daemon that does not answer presses Ctrl-C, and it waits between two looks nearly all the time."""
    manager, daemon = Manager(), Daemon(state=state)
    outcome = carried_out(manager, daemon, interrupted=True)
    assert (outcome.done, outcome.reason, outcome.unit_back) == (False, "interrupted", True)
    assert (manager.active, daemon.stopped) == (True, True)


def test_a_defect_leads_back_too() -> None:
    manager, daemon = Manager(), Daemon(start=ValueError("a defect"))
    outcome = carried_out(manager, daemon)
    assert (outcome.done, outcome.reason, outcome.unit_back) == (False, "start_ours_failed", True)
    assert outcome.said == "ValueError: a defect"
    assert (manager.active, daemon.stopped) == (True, True)

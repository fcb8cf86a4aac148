"""Loops that go on: named, watched, and started again when a round fails."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

import structlog

from orchestrator.clock import Clock
from orchestrator.errors import OutriderError

log = structlog.get_logger("loops")


class Loops:
    """The daemon's periodic work. Each loop's last round is known (`ages`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._rounds: dict[str, float] = {}
        self._periods: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._first: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._pulses: dict[str, Callable[[], None]] = {}
        self.took: dict[str, float] = {}
        """Seconds that each loop's last round took."""

    def every(self, name: str, period: float, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` now and then again `period` seconds after each end. A round that fails is logged."""
        self._rounds[name] = self._seen[name] = self._clock.now()
        self._periods[name] = period
        self._tasks[name] = asyncio.create_task(self._periodic(name, period, work), name=f"loop-{name}")

    def forever(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work`, which does not end by itself; when it fails, again after a second."""
        self.every(name, 1.0, work)
        del self._periods[name]  # its round does not end, so its age says nothing

    def beat(self, name: str) -> None:
        """The loop's round is getting on: what it waited for came, or its deadline did."""
        self._seen[name] = self._clock.now()
        if name in self._pulses:
            self._pulses[name]()

    def pulse(self, name: str, pulse: Callable[[], object], allowance: float) -> None:
        """Have `pulse` called at each beat and each end of a round of this loop, unless another loop has
        shown no life for longer than its period and `allowance` seconds."""

        def unless_stuck() -> None:
            if stuck := self.stuck(allowance):
                log.error("loops_stuck", loops=stuck, after_s=allowance)
            else:
                pulse()

        self._pulses[name] = unless_stuck

    def stuck(self, allowance: float) -> list[str]:
        """The periodic loops that have shown no life for longer than their period and `allowance` seconds."""
        now = self._clock.now()
        return [n for n, period in self._periods.items() if now - self._seen[n] > period + allowance]

    def refresh(self) -> None:
        """Nobody had a chance to show life, for the daemon did not run: each loop's time begins anew."""
        now = self._clock.now()
        self._seen = dict.fromkeys(self._seen, now)

    async def first_round(self, name: str) -> None:
        """Wait until this loop went round once, whatever came of it."""
        await self._first[name].wait()

    async def _periodic(self, name: str, period: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            begun = self._clock.now()
            try:
                await work()
            except OutriderError as error:
                log.warning("round_failed", loop=name, code=error.code, error=error.detail)
            except Exception:  # a loop's bug must not stop the loop; it is logged whole each time
                log.exception("round_crashed", loop=name)
            self._rounds[name] = self._clock.now()
            self.took[name] = self._rounds[name] - begun
            self._first[name].set()
            self.beat(name)
            await asyncio.sleep(period)

    def ages(self) -> dict[str, float]:
        """Seconds since each loop last went round."""
        now = self._clock.now()
        return {name: round(now - at, 3) for name, at in self._rounds.items()}

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        self._tasks.clear()

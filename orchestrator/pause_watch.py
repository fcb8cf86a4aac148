"""Noticing that the daemon did not run for a while, and having those who watch by the clock begin anew."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.clock import Clock, since_boot
from orchestrator.events import Journal
from orchestrator.pauses import Instant, Pause, judge
from orchestrator.timing import Timing

_TEXTS = {
    Pause.STOPPED: "the daemon did not run for {:.1f} s; what it watches is watched anew from now on",
    Pause.SLEPT: "the host slept for {:.1f} s; what is watched is watched anew from now on",
    Pause.CLOCK_SET: "the host's clock was set by {:+.1f} s; nothing that runs depends on it, chores may shift",
}


class PauseWatch:
    """The pauses of one daemon. `look` is its loop; anybody may ask `awake_since` at any time."""

    def __init__(
        self, journal: Journal, clock: Clock, timing: Timing, *, boot: Callable[[], float] = since_boot
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._usual = timing.pause_look
        self._limit = timing.pause
        self._boot = boot
        self._last = self._instant()
        self._since = self._last.monotonic
        self.listeners: list[Callable[[], object]] = []
        """Called once after each pause. They do not block and do not raise."""

    def awake_since(self) -> float:
        """Monotonic seconds since which the daemon has been looking without a pause.

        Who asks right after a pause, before anybody else noticed it, hears of it all the same: nothing that was last
        seen before this moment has been silent for as long as the clock says.
        """
        self._check()
        return self._since

    async def look(self) -> None:
        """One round."""
        self._check()

    def _check(self) -> None:
        now = self._instant()
        found = judge(self._last, now, usual=self._usual, limit=self._limit)
        self._last = now
        if found.action is Pause.NONE:
            return
        seconds = float(str(found.evidence["seconds"]))
        self._journal.emit("daemon", found.reason, _TEXTS[found.action].format(seconds), evidence=dict(found.evidence))
        if found.action is not Pause.CLOCK_SET:
            self._since = now.monotonic
            for listener in self.listeners:
                listener()

    def _instant(self) -> Instant:
        return Instant(self._clock.now(), self._boot(), self._clock.wall())

"""What probes found, by container: the one place where looking and judging meet. No clock of its own.

A probe that errs (this daemon has no file descriptors left) says nothing of the engine: that is no failure.
What was found of one container never counts for the next, and after `reset` nothing counts that was found before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Probe(StrEnum):
    """What an engine is asked."""

    PROGRESS = "progress"
    """Its own word of its work: slots or counters."""
    CANARY = "canary"
    """One token of ours."""
    RATES = "rates"
    """How fast it reads prompts, by its own counters. No verdict rests on whether it answers."""


class Outcome(StrEnum):
    """What came of asking."""

    OK = "ok"
    FAILED = "failed"
    """It answered with an error."""
    REFUSED = "refused"
    """Nobody listens: the kernel says so at once."""
    SILENT = "silent"
    """No answer in time."""
    UNKNOWN = "unknown"
    """It could not be asked, for a reason that is not the engine's."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of one probe. `at` is monotonic seconds. One that is `UNKNOWN` has a status where the engine itself said
    that it had too much to do."""

    outcome: Outcome
    at: float
    text: str = ""
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """All that is known of one probe of one container. Monotonic seconds; None: never.

    `run` is how many results in a row had the outcome of the last one, the first of them at `run_since`.
    `asked_at` is when the probe that is out now was sent; `first_asked` when the first one was that has had no
    good answer since. `turned_away` is how many in a row were turned away for want of room, the first at `away_since`.
    """

    since: float
    last: Result | None = None
    last_ok: float | None = None
    run: int = 0
    run_since: float | None = None
    asked_at: float | None = None
    first_asked: float | None = None
    turned_away: int = 0
    away_since: float | None = None

    @property
    def outcome(self) -> Outcome | None:
        return None if self.last is None else self.last.outcome


class Results:
    """The cache."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, Probe], Record] = {}

    def get(self, container: str, probe: Probe) -> Record | None:
        """What is known; None before it was first asked."""
        return self._records.get((container, probe))

    def asked(self, container: str, probe: Probe, at: float) -> None:
        """A probe was sent."""
        was = self._records.get((container, probe)) or Record(at)
        first = at if was.first_asked is None else was.first_asked
        self._records[container, probe] = replace(was, asked_at=at, first_asked=first)

    def found(self, container: str, probe: Probe, result: Result) -> None:
        """A probe came to an end. One that could not be made leaves what is known as it is."""
        was = self._records.get((container, probe)) or Record(result.at)
        if result.outcome is Outcome.UNKNOWN:
            first = was.first_asked if was.last is not None and was.last.outcome is not Outcome.OK else None
            away = was.turned_away + (result.status is not None)
            since = result.at if away and was.away_since is None else was.away_since
            self._records[container, probe] = replace(
                was, asked_at=None, first_asked=first, turned_away=away, away_since=since
            )
            return
        good = result.outcome is Outcome.OK
        same = was.last is not None and was.last.outcome is result.outcome
        self._records[container, probe] = Record(
            since=was.since,
            last=result,
            last_ok=result.at if good else was.last_ok,
            run=was.run + 1 if same else 1,
            run_since=was.run_since if same else result.at,
            asked_at=None,
            first_asked=None if good else was.first_asked,
        )

    def forget(self, container: str) -> None:
        """The container is gone."""
        for key in [key for key in self._records if key[0] == container]:
            del self._records[key]

    def drop(self, container: str, probe: Probe) -> None:
        """Begin anew with one probe of a container."""
        self._records.pop((container, probe), None)

    def reset(self) -> None:
        """Nobody was watching for a while: what was found before that says nothing of now."""
        self._records.clear()

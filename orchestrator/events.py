"""The journal: every decision and every change that a person may ask about, in order.

The newest entries are in memory for followers; all are written to the database by one
writer task, in batches, so that nobody waits for the disk. A disk that is full costs
entries on disk, never the daemon.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence

import structlog

from orchestrator.clock import Clock
from orchestrator.errors import DatabaseFailed
from orchestrator.store import Store
from orchestrator.views import Event

KEPT = 2000
log = structlog.get_logger("journal")


class Journal:
    """Appends, and lets any number of followers read on at their own pace."""

    def __init__(self, store: Store, clock: Clock, *, host: str, boot_id: str, last: int) -> None:
        self._store = store
        self._clock = clock
        self._host = host
        self._boot_id = boot_id
        self._sequence = last
        self._recent: deque[Event] = deque(maxlen=KEPT)
        self._moments: deque[float] = deque(maxlen=KEPT)
        """When each of the recent ones was written (monotonic): a clock that is set changes no story."""
        self._unwritten: deque[Event] = deque(maxlen=KEPT)
        self._news = asyncio.Event()
        self._to_write = asyncio.Event()
        self.unwritten = 0
        """Entries that could not be written yet: they are kept, so many as there is room for, and tried again."""
        self.counts: dict[tuple[str, str], int] = {}
        """How many entries of each (kind, code) there were since the start."""

    @property
    def sequence(self) -> int:
        """The last entry's number."""
        return self._sequence

    def emit(
        self,
        kind: str,
        code: str,
        text: str,
        *,
        deployment: str | None = None,
        evidence: Mapping[str, object] | None = None,
    ) -> Event:
        """Append one entry.

        `kind` groups (lifecycle, governor, config, ...), `code` is stable, `text` is for people.
        """
        self._sequence += 1
        event = Event(
            self._sequence,
            self._clock.wall(),
            self._host,
            self._boot_id,
            kind,
            code,
            text,
            deployment,
            dict(evidence or {}),
        )
        self._recent.append(event)
        self._moments.append(self._clock.now())
        self._unwritten.append(event)
        self.counts[kind, code] = self.counts.get((kind, code), 0) + 1
        self._to_write.set()
        news, self._news = self._news, asyncio.Event()
        news.set()
        log.info(code, kind=kind, text=text, deployment=deployment, **{f"ev_{k}": v for k, v in event.evidence.items()})
        return event

    async def follow(
        self, *, since: int = 0, follow: bool = False, deployment: str | None = None
    ) -> AsyncIterator[Event]:
        """Entries after `since`, oldest first; with `follow`, then new ones for ever.

        A follower that falls behind by more than is kept in memory misses entries; the
        numbers show the gap.
        """
        last = since
        oldest = self._recent[0].sequence if self._recent else self._sequence + 1
        if since + 1 < oldest:
            for event in await self._store.journal(since):
                if event.sequence < oldest:
                    last = event.sequence
                    if deployment in (None, event.deployment):
                        yield event
        while True:
            news = self._news
            for event in [e for e in self._recent if e.sequence > last]:
                last = event.sequence
                if deployment in (None, event.deployment):
                    yield event
            if not follow:
                return
            await news.wait()

    async def recall(self, deployment: str, limit: int) -> Sequence[tuple[Event, float]]:
        """The newest `limit` entries about a deployment or about no one in particular, oldest first, each with how
        many seconds ago it was: by the wall clock where a former daemon wrote it, and never less than this daemon's
        own entries, whatever was done to that clock. Without the database (it may be what is broken) only what is in
        memory."""
        recent = list(zip(self._recent, self._moments, strict=True))
        oldest = recent[0][0].sequence if recent else self._sequence + 1
        try:
            stored = [e for e in await self._store.journal_about(deployment, limit) if e.sequence < oldest]
        except DatabaseFailed as error:
            log.warning("journal_not_read", error=str(error))
            stored = []
        wall, now = self._clock.wall(), self._clock.now()
        least = now - recent[0][1] if recent else 0.0
        found = [(event, max(least, wall - event.at)) for event in stored]
        found += [(event, now - moment) for event, moment in recent if event.deployment in (None, deployment)]
        return found[-limit:]

    async def write_forever(self) -> None:
        """The writer's loop."""
        while True:
            await self._to_write.wait()
            self._to_write.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write what is not yet in the database."""
        batch = list(self._unwritten)
        self._unwritten.clear()
        if not batch:
            return
        try:
            await self._store.append(batch)
        except DatabaseFailed as error:
            self._unwritten = deque([*batch, *self._unwritten][-KEPT:], maxlen=KEPT)
            self.unwritten = len(self._unwritten)
            log.warning("journal_not_written", entries=len(batch), error=str(error))
        else:
            self.unwritten = 0

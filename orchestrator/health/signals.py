"""Signs that an engine stalls: five witnesses, each of whom may be wrong. Pure.

    witness    sign          what it means
    gateway    delivery      requests are in flight, and no client was given anything
    engine     silent        its own slots or counters do not answer
    engine     frozen        they answer, and show the same although there is work
    canary     canary        one token of ours does not come
    kernel     stopped       its processes are stopped, or do not use the CPU although there is work

A sign counts from when it began, but never from before the last sure sign of life: data that a client was given, or a
canary that came back. Counters that move are no such sign (a loop that delivers nothing moves them, mlx-lm #1493),
and counters that do not move are none of the contrary while a prompt is read (llama.cpp adds them up at the end).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.health.patience import Ahead
from orchestrator.telling.amounts import count


class Witness(StrEnum):
    """Who says so. Two signs of one witness are one."""

    GATEWAY = "gateway"
    ENGINE = "engine"
    CANARY = "canary"
    KERNEL = "kernel"


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the gateway sees of an engine. Counts are of requests whose client takes what comes; `since` is how long
    ago (monotonic time of it) the oldest of them was sent, `data_at` when data last came from the engine for anybody.

    `flowing` have been given something; `awaiting` are streams without a first byte, `answers` come in one piece.
    `paused` are not counted: their client reads more slowly than the engine writes.
    """

    in_flight: int
    flowing: int = 0
    awaiting: int = 0
    answers: int = 0
    paused: int = 0
    since: float | None = None
    data_at: float | None = None
    ahead: Ahead = field(default_factory=Ahead)

    @property
    def counted(self) -> int:
        return self.flowing + self.awaiting + self.answers


@dataclass(frozen=True, slots=True)
class Asked:
    """A probe, as far as a stall matters: since when nothing good has come of it (None: the last one was good, or it
    was never asked), when a good answer last came, how many in a row were refused, since when, how many came back as
    errors, and how many were turned away for want of room, since when."""

    pending: float | None = None
    ok_at: float | None = None
    refused: int = 0
    refused_since: float | None = None
    failed: int = 0
    turned_away: int = 0
    away_since: float | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """Since when its processes have been stopped, or have used hardly any CPU; None: they are not, or nobody knows."""

    stopped_since: float | None = None
    idle_since: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything that is known of one engine at `now` (all times monotonic seconds).

    `since` is when watching began, or began anew: nothing counts from before. `moved_at` is when its own word of its
    work last changed, None where it says nothing.
    `free` is whether a request would be begun at once, by its own word (None: it says nothing of that).
    `limit` is T_stall, `answer_limit` the same for answers in one piece, `patience` how long a canary may be out.
    """

    now: float
    since: float
    limit: float
    answer_limit: float
    patience: float
    parallel: int = 1
    delivery: Delivery | None = None
    progress: Asked = field(default_factory=Asked)
    moved_at: float | None = None
    canary: Asked = field(default_factory=Asked)
    kernel: Kernel = field(default_factory=Kernel)
    free: bool | None = None

    @property
    def unused(self) -> bool:
        """Whether it is known to have room: by its own word, or because nobody wants anything of it."""
        if self.free is not None:
            return self.free
        return self.delivery is not None and self.delivery.in_flight == 0

    @property
    def life(self) -> float:
        """The last sure sign of life."""
        data = None if self.delivery is None else self.delivery.data_at
        return max(t for t in (self.since, data, self.canary.ok_at) if t is not None)

    @property
    def held_back(self) -> bool:
        """Whether clients that do not read may have every slot: an engine that waits for them with its next token
        shows no progress, gives others nothing, uses no CPU and answers no canary. The gateway ends who takes nothing
        (`unread_s`)."""
        return self.delivery is not None and self.delivery.paused >= self.parallel

    @property
    def work_since(self) -> float | None:
        """Since when it has had work; None while it has none that is known of."""
        began = []
        if self.delivery is not None and self.delivery.counted and self.delivery.since is not None:
            began.append(self.delivery.since)
        if self.canary.pending is not None:
            began.append(self.canary.pending)
        return min(began) if began else None


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign: what is seen, by whom, for how long (seconds) against which limit."""

    code: str
    witness: Witness
    text: str
    seconds: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether it has gone on for as long as its limit."""
        return self.seconds >= self.limit

    def evidence(self) -> Mapping[str, object]:
        return {
            "sign": self.code,
            "witness": self.witness.value,
            "seconds": round(self.seconds, 2),
            "limit_s": round(self.limit, 2),
        }


OF_SLOTS = frozenset({"delivery", "frozen", "canary", "idle"})
"""Signs that an engine shows as well when its clients hold it back."""


def signs(seen: Seen) -> tuple[Sign, ...]:
    """All signs that there are, those that do not hold yet among them."""
    found = (_delivery(seen), _engine(seen), _canary(seen), _kernel(seen))
    return tuple(sign for sign in found if sign is not None and not (seen.held_back and sign.code in OF_SLOTS))


def _delivery(seen: Seen) -> Sign | None:
    """Requests wait, and nothing comes. An answer in one piece shows nothing to clients before its end, and a stream
    that has no slot yet waits for those that have; but an engine that counts its tokens as it makes them shows that
    it makes none."""
    d = seen.delivery
    if d is None or not d.counted or d.since is None:
        return None
    queued = d.counted > seen.parallel
    whole = not d.flowing and bool(d.answers) and (not d.awaiting or queued)
    # it moved with this work, so that its word is of it and not only of what has ended
    stands = seen.moved_at is not None and d.since < seen.moved_at <= seen.now - seen.limit
    limit = seen.answer_limit if whole and not stands else seen.limit
    seconds = seen.now - max(seen.life, d.since)
    text = f"{count(d.counted, 'request is', 'requests are')} in flight, and nothing came for any"
    return Sign("delivery", Witness.GATEWAY, text, seconds, limit)


def _engine(seen: Seen) -> Sign | None:
    """It does not answer, or says with work in hand what it said before."""
    p = seen.progress
    if p.pending is not None:
        began = max(seen.life, seen.since if p.ok_at is None else p.ok_at)
        return Sign("silent", Witness.ENGINE, "its own word of its work does not come", seen.now - began, seen.limit)
    work = seen.work_since
    if seen.moved_at is None or work is None or p.ok_at is None:
        return None
    began = max(seen.life, seen.moved_at, work)
    text = "it answers, and shows no progress with what it works on"
    return Sign("frozen", Witness.ENGINE, text, seen.now - began, seen.limit)


def _canary(seen: Seen) -> Sign | None:
    """One token of ours does not come. It has to be out for as long as a canary may take, and nothing else may have
    come for as long as an engine may be silent."""
    c = seen.canary
    if c.pending is None or seen.now - c.pending < seen.patience:
        return None
    text = "one token of our own was asked for and does not come"
    if c.failed:
        text = f"one token of our own was asked for {count(c.failed, 'time')}, and came to nothing"
    return Sign("canary", Witness.CANARY, text, seen.now - seen.life, seen.limit)


def _kernel(seen: Seen) -> Sign | None:
    k = seen.kernel
    if k.stopped_since is not None:
        seconds = seen.now - max(seen.life, k.stopped_since)
        return Sign("stopped", Witness.KERNEL, "its processes are stopped", seconds, seen.limit)
    work = seen.work_since
    if k.idle_since is None or work is None:
        return None
    seconds = seen.now - max(seen.life, k.idle_since, work)
    return Sign("idle", Witness.KERNEL, "its processes have work and use no CPU", seconds, seen.limit)

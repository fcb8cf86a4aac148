"""What an engine is seen to do besides serving, which buys it time. Pure.

Silence is no stall while code is compiled for work of a new kind, or while weights are read again from a slow disk.
CPU alone is no excuse: a loop that spins, and a thread that waits for a GPU that hangs, take a whole core as well. What
a compiler does besides: its processes come and go, its memory moves, it writes into its cache. Measured: `g++ -O3` on
one large file moved 19 MB or more in every two seconds of its forty; LLVM in the process itself, one small kernel after
the other for 45 s, 20 MB or more in any 15 s.

    what it is seen to do                                        called               silent for at most
    nothing, or CPU alone                                        -                    T_stall
    CPU is used, and files are written                           compiling            730 s
    new processes use CPU, and come and go, or memory moves      compiling            730 s
    CPU is used and memory moves, before it gave anybody
      anything                                                   first_use            315 s
    it reads from a disk                                         reading_from_disk    5 T_stall

An excuse lasts `LASTS` x T_stall after it was last seen. So a loop that begins when a request comes is found in T_stall
and two periods, whether or not it served anybody before; one whose memory grows for ever, after the time above. Lines
of the log are no excuse: vLLM logs its rates every ten seconds, and that it waits, whatever hangs.
"""

from __future__ import annotations

from dataclasses import dataclass

from hosts.work import Work
from orchestrator.health.live import NOTHING, Doing

FIRST_USE = 315.0
"""Seconds: three times the 105 s that compiling at first use was seen to take with SGLang on ROCm."""
COMPILERS = 730.0
"""Seconds for a compiler that can be seen: twice the longest that one module was seen to take when its cache was empty
(363 s, AITER on MI355X, sglang #34586; 225 s for another, aiter #4055)."""
MOVES = 4 << 20
"""Bytes of memory, more or less than `WINDOW` ago, that are a compiler's and not those of a server that answers us."""
WRITES = 4096
"""Bytes in that time. An engine that serves writes to nothing but sockets and the pipe of its log."""
DISK = 5.0
"""Of T_stall: how long an engine may do nothing but read."""
READS = 1 << 20
"""Bytes in one look that count as reading."""
BUSY = 0.1
"""Share of one core above which its processes do something: a compiler takes a whole one, or what a busy machine
leaves it. Below `IDLE` they do nothing, for an HTTP server that waits wakes up now and then. What lies between says
nothing: an engine that is starved of CPU is neither."""
IDLE = 0.02
WINDOW = 0.25
"""Of T_stall: over so long the CPU is looked at, for a busy machine takes it away for a look or two."""
LASTS = 0.5
"""Of T_stall: so long counts what it was seen to do."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The container's processes at one look. `at` is monotonic seconds."""

    at: float
    work: Work


def used(before: Looked, now: Looked) -> float | None:
    """The share of one core that they used between two looks; None when that cannot be said."""
    passed = now.at - before.at
    return None if passed <= 0 else max(0.0, now.work.cpu_s - before.work.cpu_s) / passed


def busy(before: Looked, now: Looked) -> bool:
    """Whether they did something between two looks."""
    share = used(before, now)
    return share is None or share > BUSY


def idle(before: Looked, now: Looked) -> bool:
    """Whether they did nothing between two looks."""
    share = used(before, now)
    return share is not None and share < IDLE


def _started(before: Looked, now: Looked, born: frozenset[int]) -> tuple[bool, bool]:
    """Whether processes that it did not have when it became ready use CPU, and whether some of them are new since."""
    later = {pid for pid, _ in now.work.processes} - born
    cpu, was = now.work.cpu_of, before.work.cpu_of
    took = sum(max(0.0, cpu.get(pid, 0.0) - was.get(pid, 0.0)) for pid in later)
    fresh = bool(now.work.processes - before.work.processes)
    return took > BUSY * (now.at - before.at), fresh


def _more(was: int | None, now: int | None) -> int:
    return 0 if was is None or now is None else now - was


def doing(before: Looked, now: Looked, *, limit: float, scale: float, served: bool, born: frozenset[int]) -> Doing:
    """Why it may be silent. `born` are the processes that it had when it became ready, `served` whether it has given
    any client anything since. `limit` is T_stall."""
    soon = now.at + LASTS * limit
    works, fresh = _started(before, now, born)
    moves = abs(now.work.resident - before.work.resident) >= MOVES
    writes = _more(before.work.written_bytes, now.work.written_bytes) >= WRITES
    if (works and (fresh or moves)) or (writes and busy(before, now)):
        return Doing(soon, "compiling", COMPILERS * scale)
    if not served and moves and busy(before, now):
        return Doing(soon, "first_use", FIRST_USE * scale)
    if _more(before.work.read_bytes, now.work.read_bytes) >= READS:
        return Doing(soon, "reading_from_disk", DISK * limit)
    return NOTHING

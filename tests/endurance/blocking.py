"""What a daemon's event loop may do by itself, and what it must leave to threads: the judgement on recorded calls."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from tests.endurance.watched import Blocked

WAITS = ("time.sleep", "socket.", "ssl.", "sqlite3.", "threading.Lock", "os.sendfile")
"""Calls that wait for somebody: never on the loop, however short they were this time."""
WRITES = (
    *("io.BufferedWriter", "io.BufferedRandom.write", "io.TextIOWrapper.write", "os.write", "os.mkdir", "os.rename"),
    *("os.replace", "os.remove", "os.unlink", "os.rmdir", "os.link", "os.symlink"),
)
"""Calls that a full or hanging disk can hold up."""
ONCE = frozenset({"api/daemon.py:__enter__", "api/daemon.py:__exit__"})
"""Writes of a few bytes that a daemon's life begins and ends with: its pid, for people."""
READ_LIMIT = 0.002
"""Seconds that a look at a file (procfs, a stat, a file of the package) may take at the median of its place."""


def faults(calls: Sequence[Blocked]) -> list[str]:
    """What is not allowed among these, each place once, with how often and how long."""
    places: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in calls:
        places[one.call, one.where].append(one.seconds)
    found = []
    for (call, where), seconds in sorted(places.items()):
        if call.startswith(WAITS):
            kind = "waits"
        elif call.startswith(WRITES) and where not in ONCE:
            kind = "writes"
        elif statistics.median(seconds) > READ_LIMIT:
            kind = "reads for long"
        else:
            continue
        found.append(f"{where} {kind}: {call}, {len(seconds)} times, {max(seconds) * 1000:.1f} ms at most")
    return found


def looks(calls: Sequence[Blocked]) -> dict[str, str]:
    """The places that look at files, and how often and how long, for people."""
    places: dict[str, list[float]] = defaultdict(list)
    for one in calls:
        places[f"{one.where} {one.call}"].append(one.seconds)
    order = sorted(places.items(), key=lambda x: -len(x[1]))
    return {k: f"{len(v)} times, {statistics.median(v) * 1000:.2f} ms, {max(v) * 1000:.1f} at most" for k, v in order}

"""What an Outrider holds at one moment, counted from outside: for telling what a long run leaves behind.

Nothing here asks the daemon but for the number of its tasks; the rest is what Podman, procfs, the database and the
folders show.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from containers import orphans, proc
from tests.endurance.watched import VARIABLE
from tests.stack.stack import Stack
from tests.waiting import until_sync

HISTORY = frozenset({"journal", "starts", "decodings", "firsts", "crashes", "canaries", "sqlite_sequence"})
"""Tables that are meant to grow, up to a number of rows that the daemon's compaction keeps."""
_NEVER = threading.Event()
NUMBERS = Path(__file__).parents[2] / ".cache" / "endurance"


@dataclass(frozen=True)
class Census:
    """Counts; `rows` are those of the daemon's databases without `HISTORY`, bytes are resident memory."""

    containers: int
    processes: int
    """The daemon's and the gateway's children, and conmons and workloads of this Outrider's containers."""
    files: int
    """Engines' socket folders and keys, and loading marks."""
    daemon_fds: int
    daemon_threads: int
    daemon_tasks: int
    daemon_rss: int
    gateway_fds: int
    gateway_threads: int
    gateway_rss: int
    rows: int
    history: int
    tables: Mapping[str, int]
    """Rows of each table."""
    task_names: Sequence[str]
    """What each task of the daemon is, where the daemon tells (`watched.py`)."""

    @classmethod
    def of(cls, stack: Stack) -> Census:
        assert stack.daemon is not None
        assert stack.gateway is not None
        daemon, gateway = stack.daemon.pid, stack.gateway.pid
        rows = _rows([stack.paths.database, stack.paths.measurements])
        supervised = orphans.find(prefix=f"outrider-{stack.paths.owner[:8]}-")
        return cls(
            containers=len(stack.containers()),
            processes=len(_children({daemon, gateway})) + sum(1 + (o.workload is not None) for o in supervised),
            files=len(_listed(stack.paths.engines)) + len(_listed(stack.paths.loading)),
            daemon_fds=len(_listed(Path(f"/proc/{daemon}/fd"))),
            daemon_threads=len(_listed(Path(f"/proc/{daemon}/task"))),
            daemon_tasks=tasks(stack),
            daemon_rss=rss(daemon),
            gateway_fds=len(_listed(Path(f"/proc/{gateway}/fd"))),
            gateway_threads=len(_listed(Path(f"/proc/{gateway}/task"))),
            gateway_rss=rss(gateway),
            rows=sum(n for table, n in rows.items() if table not in HISTORY),
            history=sum(n for table, n in rows.items() if table in HISTORY),
            tables=rows,
            task_names=task_names(stack),
        )

    def beyond(self, before: Census, room: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """What is more than before and than there is `room` for: name to (before, now)."""
        then, now = asdict(before), asdict(self)
        counts = [name for name, count in now.items() if isinstance(count, int)]
        return {name: (then[name], now[name]) for name in counts if now[name] > then[name] + room.get(name, 0)}

    def unlike(self, before: Census) -> str:
        """Which tables and which tasks there are more or fewer of than before, for people."""
        tables = {k: (before.tables.get(k, 0), n) for k, n in self.tables.items() if n != before.tables.get(k, 0)}
        now, then = Counter(self.task_names), Counter(before.task_names)
        said = [f"  {table:24} {a} -> {b}" for table, (a, b) in sorted(tables.items())]
        said += [f"  more: {name} x{n}" for name, n in sorted((now - then).items())]
        return "\n".join(said + [f"  less: {name} x{n}" for name, n in sorted((then - now).items())])


def tasks(stack: Stack) -> int:
    """The asyncio tasks of the daemon, as its metrics say."""
    with stack.api() as api:
        found = re.search(r"^outrider_tasks (\S+)$", api.get("/metrics").text, re.MULTILINE)
    assert found is not None, "the daemon says how many tasks it has"
    return int(float(found[1]))


def task_names(stack: Stack) -> list[str]:
    """What each task of the daemon is, without numbers; nothing where the daemon is not `watched.py`."""
    record = stack.environ.get(VARIABLE)
    if record is None or stack.daemon is None:
        return []
    file = Path(record).with_suffix(".tasks")
    file.unlink(missing_ok=True)
    stack.daemon.send_signal(signal.SIGUSR2)
    until_sync(file.exists, limit=20)
    return [re.sub(r"\d+", "N", line) for line in file.read_text().splitlines()]


def told(name: str, before: Census, after: Census, **more: object) -> str:
    """Both side by side, for people; also written to `NUMBERS` for who wants to quote it."""
    NUMBERS.mkdir(parents=True, exist_ok=True)
    data = {"before": asdict(before), "after": asdict(after), **more}
    (NUMBERS / f"{name}.json").write_text(json.dumps(data, indent=1, default=str) + "\n")
    lines = [f"{name}: " + ", ".join(f"{key} {value}" for key, value in more.items() if not isinstance(value, dict))]
    for key, then in asdict(before).items():
        if isinstance(then, int):
            lines.append(f"  {key:16} {then:>12} -> {asdict(after)[key]:>12}")
    return "\n".join([*lines, after.unlike(before)])


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _children(of: Iterable[int]) -> set[int]:
    """All processes below these."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        found = proc.process(int(folder.name))
        if found is not None and found.alive:
            parents.setdefault(found.parent, []).append(found.pid)
    below, left = set[int](), list(of)
    while left:
        for child in parents.get(left.pop(), ()):
            below.add(child)
            left.append(child)
    return below


def rss(pid: int) -> int:
    """Resident bytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(x.split()[1] for x in status.splitlines() if x.startswith("VmRSS"))) * 1024


def _rows(databases: Iterable[Path]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for file in databases:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30)) as db:
            for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                counted[table] = counted.get(table, 0) + db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
    return counted


def at_rest(stack: Stack, before: Census, room: Mapping[str, int], limit: float = 60.0) -> Census:
    """A census that is not beyond `before`, or the last one within `limit` s: connections close and threads end in
    their time."""
    end = time.monotonic() + limit
    while True:
        now = Census.of(stack)
        if not now.beyond(before, room) or time.monotonic() >= end:
            return now
        _NEVER.wait(0.5)

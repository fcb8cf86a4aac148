"""`make bench`: speed and size against their limits, each the median of five, as a table.

The limits hold on an idle machine, so nothing here runs in `make test`. Exit code 1 when a
median is over its limit.

    python -m tests.bench.run [--only WORDS] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from containers import service
from tests.bench import measures
from tests.bench.measures import Bench

SHORT = "or-b-"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what, its limit in `unit`, and how to measure it once.

    `once` gives a single number that already is a statistic (a p95): it is still taken
    `rounds` times, and the median counts.
    """

    name: str
    unit: str
    limit: float
    measure: Callable[[Bench], float]
    setting: str = "none"
    """What must run for it: `none`, `daemon`, `one` engine, `twenty` engines, `hundred` deployments."""


@dataclass(slots=True)
class Result:
    """What came out. `samples` in the row's unit."""

    row: Row
    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def held(self) -> bool:
        return self.median <= self.row.limit


ROWS = (
    Row("probe", "ms", 300, measures.probe),
    Row("plan, p95, warm", "ms", 50, measures.plan_p95),
    Row("fit, a row (2,000 a second)", "ms", 0.5, measures.fit_row),
    Row("command line: --help", "ms", 500, measures.help_text),
    Row("API ready", "s", 1.5, measures.api_ready, "daemon"),
    Row("daemon resident, one engine", "MiB", 120, measures.resident, "one"),
    Row("daemon CPU, one engine, idle", "% of a core", 1, measures.idle_cpu, "one"),
    Row("command line: ps", "ms", 500, measures.ps, "one"),
    Row("adoption of 20 containers", "s", 2, measures.adoption, "twenty"),
    Row("daemon resident, 100 deployments", "MiB", 200, measures.resident, "hundred"),
    Row("reconcile pass, 100 deployments", "ms", 100, measures.reconcile_pass, "hundred"),
    Row("API p99 at 100 requests/s, 100 deployments", "ms", 20, measures.api_p99, "hundred"),
)
SETTINGS: dict[str, Callable[[Bench], None]] = {
    "none": lambda _bench: None,
    "daemon": measures.with_daemon,
    "one": measures.with_engines(1),
    "twenty": measures.with_engines(20),
    "hundred": measures.with_deployments(100),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say whether all limits held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORDS", help="rows whose name has these words")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples there")
    options = parser.parse_args(arguments)
    rows = [row for row in ROWS if options.only in row.name]
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"the load is {load:.1f}: the limits hold on an idle machine", file=sys.stderr)
    results = []
    for name, prepare in SETTINGS.items():
        chosen = [row for row in rows if row.setting == name]
        if not chosen:
            continue
        with bench(needs_podman=name != "none") as ready:
            prepare(ready)
            for row in chosen:
                result = Result(row)
                result.samples += [row.measure(ready) for _ in range(options.rounds)]
                results.append(result)
                print(f"{row.name}: {result.median:.2f} {row.unit}", file=sys.stderr, flush=True)
    print_table(results)
    if options.json is not None:
        options.json.write_text(json.dumps({r.row.name: r.samples for r in results}, indent=2) + "\n")
    return 0 if all(r.held for r in results) else 1


@contextmanager
def bench(*, needs_podman: bool) -> Iterator[Bench]:
    """A Podman service and a stack of their own, ended and removed afterwards."""
    with ExitStack() as held:
        folder = Path(tempfile.mkdtemp(prefix=SHORT))
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        if not needs_podman:
            yield Bench(None, folder)
            return
        found = asyncio.run(service.ensure(folder, socket=None, limit=30.0))
        held.callback(lambda: asyncio.run(found.stop()))
        made = Bench(found.socket, folder)
        held.callback(made.close)
        yield made


def print_table(results: Sequence[Result]) -> None:
    """The table, with the spread: a median alone hides a machine that was not idle."""
    width = max((len(r.row.name) for r in results), default=4)
    print(f"{'what':<{width}}  {'median':>9}  {'limit':>7}  {'least':>9}  {'most':>9}  unit")
    for r in results:
        verdict = "" if r.held else "  OVER"
        low, high = min(r.samples), max(r.samples)
        print(
            f"{r.row.name:<{width}}  {r.median:>9.2f}  {r.row.limit:>7g}  {low:>9.2f}  {high:>9.2f}  "
            f"{r.row.unit}{verdict}"
        )


if __name__ == "__main__":
    sys.exit(main())

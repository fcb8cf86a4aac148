"""How each row of `make bench` is measured, and what has to run for it."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from containers.embedded import image
from containers.podman import Podman
from hosts.probe import probe as look
from orchestrator import catalogue, fit, planner, profiles
from tests.models import generate
from tests.stack.stack import Stack
from tests.waiting import until_sync

MIB = 2**20
PLANS = 200
FIT_TURNS = 10
CPU_WINDOW = 10.0
"""Seconds over which the idle daemon's CPU time is taken."""
RATE, SECONDS = 100, 5
CACHE = Path(__file__).parents[2] / ".cache" / "tests"


@dataclass(slots=True)
class Bench:
    """What a measure may use. `socket` is Podman's; `stack` is set by what prepares it."""

    socket: str | None
    folder: Path
    stack: Stack | None = None

    @property
    def running(self) -> Stack:
        assert self.stack is not None, "nothing was started for this row"
        return self.stack

    def make_stack(self) -> Stack:
        assert self.socket is not None
        # The full time scale: an idle daemon's CPU time depends on how often its loops go round.
        self.stack = Stack(self.socket, scale=1.0, gateway=False)
        return self.stack

    def close(self) -> None:
        if self.stack is not None:
            self.stack.close()


# what runs


def with_daemon(bench: Bench) -> None:
    """A daemon with nothing to do."""
    bench.make_stack().start_daemon()


def with_engines(count: int) -> Callable[[Bench], None]:
    """A daemon and so many engines with tiny models."""

    def prepare(bench: Bench) -> None:
        stack = bench.make_stack()
        _embedded_image(bench)
        names = _define(bench, stack, count)
        stack.start_daemon()
        stack.start(*names)

    return prepare


def with_deployments(count: int) -> Callable[[Bench], None]:
    """A daemon with so many deployments, one of which runs."""

    def prepare(bench: Bench) -> None:
        stack = bench.make_stack()
        _embedded_image(bench)
        names = _define(bench, stack, count)
        stack.start_daemon()
        for name in names[1:]:
            stack.want(name, "stopped").raise_for_status()
        stack.start(names[0])

    return prepare


def _define(bench: Bench, stack: Stack, count: int) -> list[str]:
    generate.generate(bench.folder, {generate.TARGET: generate.MODELS[generate.TARGET]})
    names = [f"m{number:03}" for number in range(count)]
    for name in names:
        stack.define(name, bench.folder / generate.TARGET, method="none", context=256)
    return names


def _embedded_image(bench: Bench) -> None:
    async def ensure() -> None:
        assert bench.socket is not None
        podman = Podman(bench.socket)
        try:
            CACHE.mkdir(parents=True, exist_ok=True)
            await image.ensure_image(podman, CACHE)
        finally:
            await podman.close()

    asyncio.run(ensure())


# what is measured


def probe(_bench: Bench) -> float:
    """Milliseconds for one look at this machine."""
    begun = time.perf_counter()
    look()
    return (time.perf_counter() - begun) * 1000


def plan_p95(_bench: Bench) -> float:
    """Milliseconds: the 95th percentile of plans for the largest shipped model on a shipped host."""
    shipped, facts = catalogue.shipped(), profiles.load("dankserver")
    entry = max(shipped.models, key=lambda m: len(m.variants) * (1 + len(m.drafters)))
    planner.plan(entry, facts, shipped, {})
    took = []
    for _ in range(PLANS):
        begun = time.perf_counter()
        planner.plan(entry, facts, shipped, {})
        took.append((time.perf_counter() - begun) * 1000)
    return statistics.quantiles(took, n=20)[-1]


def fit_row(_bench: Bench) -> float:
    """Milliseconds a row of `outrider fit`, over the public logs again and again under names that were never seen."""
    rows = [json.loads(line) for line in (Path(__file__).parents[1] / "fit" / "truth.jsonl").read_text().splitlines()]
    for row in rows:
        fit.fit(fit.read(row))
    begun = time.perf_counter()
    for turn in range(FIT_TURNS):
        for row in rows:
            json.dumps(fit.fit(fit.read({**row, "model": f"{row['model']} run {turn}"})).to_dict())
    return (time.perf_counter() - begun) * 1000 / (FIT_TURNS * len(rows))


def help_text(_bench: Bench) -> float:
    """Milliseconds for `outrider --help`."""
    return _command("--help")


def ps(bench: Bench) -> float:
    """Milliseconds for `outrider ps`."""
    return _command("ps", "--state-dir", str(bench.running.folder))


def _command(*words: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-m", "api.cli", *words], check=True, capture_output=True, timeout=30)
    return (time.perf_counter() - begun) * 1000


def api_ready(bench: Bench) -> float:
    """Seconds from starting the daemon's process to its first answer."""
    stack = bench.running
    stack.kill_daemon()
    begun = time.perf_counter()
    stack.start_daemon()
    return time.perf_counter() - begun


def adoption(bench: Bench) -> float:
    """Seconds from starting a daemon's process to all engines being ready in its eyes, those of the one before."""
    stack = bench.running
    before = set(stack.containers())
    stack.kill_daemon()
    begun = time.perf_counter()
    stack.start_daemon()

    def adopted() -> bool:
        views = stack.get("/api/v1/deployments")
        return len(views) == len(before) and all(view["state"] == "ready" for view in views)

    until_sync(adopted, 60, "adoption")
    took = time.perf_counter() - begun
    assert set(stack.containers()) == before, "an engine was started anew instead of adopted"
    return took


def resident(bench: Bench) -> float:
    """MiB of the daemon's memory that are in RAM."""
    return _status(bench, "VmRSS") * 1024 / MIB


def _status(bench: Bench, key: str) -> int:
    lines = Path(f"/proc/{_pid(bench)}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def _pid(bench: Bench) -> int:
    daemon = bench.running.daemon
    assert daemon is not None
    return daemon.pid


def idle_cpu(bench: Bench) -> float:
    """Percent of a core that the daemon and its children take while nothing is asked of it."""
    used = _cpu_seconds(_pid(bench))
    begun = time.perf_counter()
    time.sleep(CPU_WINDOW)
    return (_cpu_seconds(_pid(bench)) - used) / (time.perf_counter() - begun) * 100


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own_and_ended_children = sum(int(fields[i]) for i in (11, 12, 13, 14))
    return own_and_ended_children / os.sysconf("SC_CLK_TCK")


def reconcile_pass(bench: Bench) -> float:
    """Milliseconds that the daemon's last comparison of wanted and observed took."""
    with bench.running.api() as api:
        text = api.get("/metrics").text
    lines = (line.split() for line in text.splitlines())
    return next(float(words[1]) for words in lines if words[:1] == ["outrider_reconcile_pass_seconds"]) * 1000


def api_p99(bench: Bench) -> float:
    """Milliseconds: the 99th percentile of answers to an open loop of 100 requests a second."""
    took = asyncio.run(_load(bench.running))
    return statistics.quantiles(took, n=100)[-1]


async def _load(stack: Stack) -> list[float]:
    """Each request starts at its time, whatever became of those before. Every tenth asks for all deployments."""
    took: list[float] = []
    connector = aiohttp.UnixConnector(path=str(stack.paths.control_socket), limit=RATE)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask(number: int, due: float) -> None:
            await asyncio.sleep(due - loop.time())
            name = "" if number % 10 == 0 else f"/m{number % 100:03}"
            async with session.get(f"http://outrider/api/v1/deployments{name}") as answer:
                await answer.read()
                answer.raise_for_status()
            took.append((loop.time() - due) * 1000)

        loop = asyncio.get_running_loop()
        begun = loop.time() + 0.1
        async with asyncio.TaskGroup() as group:
            for number in range(RATE * SECONDS):
                group.create_task(ask(number, begun + number / RATE))
    return took

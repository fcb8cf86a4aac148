"""Routing table, gateway link, jobs, admission, exit watch, ports, locks, keys: each by itself."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from containers.exit_watch import ExitWatch
from containers.ports import PORTS, REST, Ports
from hosts.facts import Accelerator, Cpu, HostFacts, Memory
from orchestrator import engine, locks
from orchestrator.admission import Admission, devices_of
from orchestrator.clock import SystemClock
from orchestrator.errors import Conflict, DoesNotFit, NotFound
from orchestrator.gateway_link import GatewayLink
from orchestrator.jobs import Handle, Jobs
from orchestrator.paths import LONGEST_NAME, LONGEST_SOCKET, Paths, find, prepare
from orchestrator.routing import Route, RouteEngine, RoutingTable
from orchestrator.timing import Timing
from orchestrator.views import JobState, State
from tests.daemon.world import a_plan
from tests.waiting import until

# routing

ENGINE = RouteEngine("e", 1, "/s", None, "key", "digest", "none", admit=True)


def route(*engines: RouteEngine, hold: bool = False) -> Route:
    return Route("m", ("alias",), State.READY, hold, None, None, engines)


async def test_tables_are_held_back_until_adoption_is_done() -> None:
    table = RoutingTable(boot_id="b", owner="o", host="h", revision=10)
    tables = table.follow()
    first = asyncio.ensure_future(anext(tables))
    table.publish("m", route(ENGINE))
    await asyncio.sleep(0)
    assert not first.done()
    table.open()
    got: Any = await asyncio.wait_for(first, 5)
    assert (got["revision"], got["boot_id"], got["models"][0]["engines"][0]["key"]) == (11, "b", "key")


async def test_an_unchanged_route_makes_no_new_table() -> None:
    table = RoutingTable(boot_id="b", owner="o", host="h", revision=10)
    assert table.publish("m", route(ENGINE))
    assert not table.publish("m", route(ENGINE))
    assert not table.publish("other", None)
    assert table.revision == 11
    assert table.publish("m", None)
    assert table.table()["models"] == []


# the gateway's reports

REPORT: dict[str, Any] = {
    "gateway_id": "g1",
    "uptime_s": 1.0,
    "models": {"m": {"arrivals": 5, "completed": 4, "in_flight": 1, "waiting": 2}},
    "engines": {"e": {"in_flight": 1}},
}


def link(tmp_path: Path) -> GatewayLink:
    return GatewayLink(tmp_path / "gateway.sock", SystemClock(), Timing())


def test_counters_are_taken_as_differences(tmp_path: Path) -> None:
    gateway = link(tmp_path)
    assert gateway.heard is None
    gateway.report(REPORT)
    gateway.report({**REPORT, "models": {"m": {"arrivals": 25, "completed": 24}}})
    assert gateway.totals()["m"]["arrivals"] == 25
    assert gateway.rate("m") == 2.5
    assert gateway.heard


def test_a_new_gateway_starts_its_counters_anew(tmp_path: Path) -> None:
    gateway = link(tmp_path)
    gateway.report(REPORT)
    gateway.report({"gateway_id": "g2", "uptime_s": 0.5, "models": {"m": {"arrivals": 3}}})
    assert gateway.totals()["m"]["arrivals"] == 8


def test_what_a_gateway_saw_before_is_no_storm(tmp_path: Path) -> None:
    """A new daemon hears of a gateway that has been up for a day."""
    gateway = link(tmp_path)
    gateway.report({**REPORT, "uptime_s": 90_000, "models": {"m": {"arrivals": 100_000}}})
    assert gateway.rate("m") == 0
    gateway.report({**REPORT, "uptime_s": 90_001, "models": {"m": {"arrivals": 100_020}}})
    assert gateway.rate("m") == 2.0


def test_two_gateways_that_report_in_turn_are_no_storm(tmp_path: Path) -> None:
    gateway = link(tmp_path)
    for _ in range(5):
        gateway.report({**REPORT, "models": {"m": {"arrivals": 10}}})
        gateway.report({**REPORT, "gateway_id": "g2", "models": {"m": {"arrivals": 1}}})
    assert gateway.totals()["m"]["arrivals"] == 11


@pytest.mark.parametrize(
    "garbage",
    [
        {},
        {"models": 3, "engines": []},
        {"gateway_id": "g1", "models": {"m": {"arrivals": "x", "in_flight": None}}},
        {"models": {"m": 7}},
    ],
)
def test_garbage_counts_as_nothing_seen(tmp_path: Path, garbage: dict[str, Any]) -> None:
    gateway = link(tmp_path)
    gateway.report(garbage)
    assert gateway.rate("m") == 0
    assert gateway.in_flight("m") == 0


def test_a_gateway_that_falls_silent_keeps_its_reservations(tmp_path: Path) -> None:
    """A machine that is busy delays its reports; the streams it last told of go on."""

    class Later(SystemClock):
        passed = 0.0

        def now(self) -> float:
            return super().now() + self.passed

    clock = Later()
    gateway = GatewayLink(tmp_path / "gateway.sock", clock, Timing())
    gateway.report(REPORT)
    clock.passed = 3600.0
    assert gateway.heard is False
    assert (gateway.in_flight("m"), gateway.last_in_flight("m")) == (0, 1)
    gateway.report({**REPORT, "models": {}})
    assert gateway.last_in_flight("m") == 1, "a report that does not name it says nothing of it"
    gateway.report({**REPORT, "models": {"m": {"in_flight": 0}}})
    assert gateway.last_in_flight("m") == 0


async def test_without_a_gateway_nobody_routes_and_a_drain_is_done(tmp_path: Path) -> None:
    drained = await link(tmp_path).drain("e", 5.0, 1)
    assert (drained.done, drained.reason) == (True, "no_gateway")


async def test_a_gateway_that_does_not_answer_is_no_drain(tmp_path: Path) -> None:
    server = await asyncio.start_unix_server(lambda r, w: w.close(), tmp_path / "gateway.sock")
    drained = await link(tmp_path).drain("e", 0.1, 1)
    assert not drained.done
    server.close()


# jobs


async def test_a_job_shows_progress_and_its_end() -> None:
    jobs, go = Jobs(SystemClock()), asyncio.Event()

    async def work(handle: Handle) -> str:
        handle.progress("half", 5, 10)
        await go.wait()
        return "all"

    job = jobs.start("copy", "m", work)
    await until(lambda: jobs.get(job.id).done_bytes == 5, 5)
    go.set()
    await until(lambda: jobs.get(job.id).state is JobState.DONE, 5)
    assert jobs.get(job.id).detail == "all"


async def test_a_failing_job_says_why_and_a_cancelled_one_cleans_up() -> None:
    jobs, cleaned = Jobs(SystemClock()), asyncio.Event()

    async def fails(_: Handle) -> str:
        raise NotFound("no such file", hint="look elsewhere")

    async def waits(_: Handle) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()
        return ""

    failing, waiting = jobs.start("a", "m", fails), jobs.start("b", "m", waits)
    await until(lambda: jobs.get(failing.id).state is JobState.FAILED, 5)
    error = jobs.get(failing.id).error
    assert error is not None
    assert (error.code, error.hint) == ("not_found", "look elsewhere")
    assert (await jobs.cancel(waiting.id)).state is JobState.CANCELLED
    assert cleaned.is_set()
    with pytest.raises(NotFound):
        jobs.get("nothing")
    # one that is cancelled before the loop came to it, as a low disk does with what was begun this moment
    assert (await jobs.cancel(jobs.start("b", "m", waits).id)).state is JobState.CANCELLED
    last = jobs.start("b", "m", waits)
    await jobs.close()
    assert jobs.get(last.id).state is JobState.CANCELLED


# memory


HOST_RESERVE = 384 << 20
"""What the planner leaves alone on a small machine."""


def facts(available: int, *accelerators: Accelerator) -> HostFacts:
    return HostFacts("h", None, None, Cpu(None, "x86_64", 2), Memory(available + 1, available), accelerators)


def gpu(pci: str, free: int, *devices: str, unified: bool = False) -> Accelerator:
    return Accelerator("nvidia", "x", "sm_86", pci, None, free, free, unified, devices=devices)


async def test_what_is_promised_is_not_free_for_the_next() -> None:
    admission = Admission(lambda: facts(HOST_RESERVE + 100))
    await admission.reserve("one", a_plan(60))
    assert admission.free(["host"]) == 40
    with pytest.raises(DoesNotFit) as refused:
        await admission.reserve("two", a_plan(41))
    assert refused.value.evidence == {"needed_bytes": 41, "free_bytes": 40, "devices": ["host"]}
    assert refused.value.retryable
    admission.forget("one")
    await admission.reserve("two", a_plan(100))


async def test_a_limit_counts_what_engines_have_taken() -> None:
    admission = Admission(lambda: facts(7 << 30), limit=100)
    await admission.reserve("one", a_plan(60))
    admission.settle("one")
    assert admission.free(["host"]) == 40
    with pytest.raises(DoesNotFit):
        await admission.reserve("two", a_plan(41))
    # a new plan of the same model replaces what runs: its own memory counts as free, another's does not
    assert admission.facts_for("m").memory.available == 100 + HOST_RESERVE
    assert admission.facts_for("other").memory.available == 40 + HOST_RESERVE


async def test_an_adopted_engine_that_still_loads_has_not_taken_its_memory() -> None:
    admission = Admission(lambda: facts(HOST_RESERVE + 100))
    admission.adopt("served", a_plan(60))
    assert admission.free(["host"]) == 100, "it is in the reading"
    admission.adopt("loads", a_plan(60), loading=True)
    assert admission.free(["host"]) == 40
    admission.settle("loads")
    assert admission.free(["host"]) == 100
    admission.adopt("again", a_plan(60), loading=True)
    admission.forget("again")
    assert admission.free(["host"]) == 100


async def test_memory_is_counted_where_the_plan_runs() -> None:
    host = facts(
        HOST_RESERVE + 100, gpu("0000:01:00.0", 500, "nvidia.com/gpu=0"), gpu("0000:02:00.0", 900, "nvidia.com/gpu=1")
    )
    both = a_plan(450, ("nvidia.com/gpu=1", "nvidia.com/gpu=0"))
    assert devices_of(both, host) == ("0000:01:00.0", "0000:02:00.0")
    assert devices_of(a_plan(), host) == ("host",)
    admission = Admission(lambda: host)
    await admission.reserve("big", both)
    assert admission.free(["0000:01:00.0"]) == 50
    assert admission.free(["host"]) == 100
    radeons = facts(
        HOST_RESERVE + 100,
        gpu("0000:03:00.0", 500, "/dev/kfd", "/dev/dri/renderD128"),
        gpu("0000:04:00.0", 500, "/dev/kfd", "/dev/dri/renderD129"),
    )
    one = a_plan(450, ("/dev/kfd", "/dev/dri/renderD129"))
    assert devices_of(one, radeons) == ("0000:04:00.0",), "/dev/kfd is every Radeon's"
    shared = facts(HOST_RESERVE + 100, gpu("0000:c5:00.0", 900, "/dev/kfd", unified=True))
    assert devices_of(a_plan(1, ("/dev/kfd",)), shared) == ("host",)


async def test_a_plan_on_several_devices_claims_each_of_them() -> None:
    first, second = gpu("0000:01:00.0", 500, "nvidia.com/gpu=0"), gpu("0000:02:00.0", 300, "nvidia.com/gpu=1")
    admission = Admission(lambda: facts(HOST_RESERVE + 100, second, first))
    names = ("nvidia.com/gpu=0", "nvidia.com/gpu=1")
    with pytest.raises(DoesNotFit, match="on each") as refused:
        await admission.reserve("big", a_plan(301, names))
    assert refused.value.evidence["devices"] == ["0000:01:00.0", "0000:02:00.0"]
    await admission.reserve("big", a_plan(200, names))
    assert (admission.free(["0000:01:00.0"]), admission.free(["0000:02:00.0"])) == (300, 100)
    assert admission.promised_bytes() == 400
    admission.settle("big")
    free = {a.pci: a.memory_free for a in admission.facts_for("m").accelerators}
    assert free == {"0000:01:00.0": 700, "0000:02:00.0": 500}, "its own memory is free for what replaces it, on each"
    assert {a.memory_free for a in admission.facts_for("other").accelerators} == {500, 300}


# processes, ports, locks, keys


async def test_an_end_is_noticed_at_once_and_told_once() -> None:
    ended: list[int] = []
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        ExitWatch(process.pid, lambda: ended.append(1))
        await asyncio.sleep(0)
        assert ended == []
        process.kill()
        await until(lambda: ended, 5, "the exit was noticed")
    await asyncio.sleep(0)
    assert ended == [1]
    gone = ExitWatch(process.pid, lambda: ended.append(2))
    await until(lambda: ended == [1, 2], 5, "a process that is gone already")
    gone.close()


def test_ports_in_use_are_passed_over_and_used_ones_rest() -> None:
    now = [0.0]
    ports = Ports(lambda: now[0])
    with socket.socket() as busy:
        with suppress(OSError):  # somebody else holds it: all the better
            busy.bind(("127.0.0.1", PORTS.start))
        first = ports.take()
        assert first in PORTS[1:]
    ports.give_back(first)
    assert ports.take() != first
    now[0] = REST + 1
    ports.keep(PORTS.start)
    assert first in {ports.take() for _ in range(8)}


def test_one_daemon_a_state_folder(tmp_path: Path) -> None:
    held = locks.take_state(tmp_path)
    with pytest.raises(Conflict, match=f"held by process {os.getpid()}"):
        locks.take_state(tmp_path)
    held.release()
    locks.take_state(tmp_path).release()


def test_one_daemon_a_gpu(tmp_path: Path) -> None:
    held, refused = locks.take_gpus(["0000:01:00.0", "0000:02:00.0"], tmp_path)
    assert (len(held), refused) == (2, {})
    again, refused = locks.take_gpus(["0000:02:00.0", "0000:03:00.0"], tmp_path)
    assert [lock.path.name for lock in again] == ["outrider-gpu-0000:03:00.0.lock"]
    assert list(refused) == ["0000:02:00.0"]
    for lock in held + again:
        lock.release()


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Paths]:
    made = prepare(find(state_dir=tmp_path / "state"))
    yield made
    shutil.rmtree(made.run_dir)  # may be a short folder beside the state folder


def test_keys_and_folders_have_the_modes_of_the_contract(paths: Paths) -> None:
    name, key = engine.new_id(), engine.new_key()
    folder = engine.make_socket_folder(paths, name)
    engine.write_key(paths, name, key)
    assert stat.S_IMODE(paths.engines.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777
    assert stat.S_IMODE(engine.key_file(paths, name).stat().st_mode) == 0o600
    assert engine.read_key(paths, name) == key
    (folder / "engine.sock").touch()
    engine.remove_files(paths, name)
    assert list(paths.engines.iterdir()) == []
    assert engine.read_key(paths, name) is None
    engine.remove_files(paths, name)


def test_long_state_folders_get_a_short_private_run_folder(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90)
    paths = prepare(find(state_dir=deep))
    assert len(os.fsencode(paths.run_dir)) + 1 + LONGEST_NAME <= LONGEST_SOCKET
    assert (deep / "run").resolve() == paths.run_dir.resolve()
    assert stat.S_IMODE(paths.run_dir.stat().st_mode) & 0o077 == 0 or os.getuid() == 0
    assert prepare(find(state_dir=deep)) == paths
    shutil.rmtree(paths.run_dir)


def test_somebody_elses_short_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    deep = tmp_path / ("d" * 90)
    short = tmp_path / f"outrider-{find(state_dir=deep).owner}"
    short.symlink_to(tmp_path)
    with pytest.raises(Conflict, match="not a private folder"):
        prepare(find(state_dir=deep))

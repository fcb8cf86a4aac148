"""The Podman service killed in the middle of things, and what is left after a sweep: nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from containers import labels, orphans, proc, service, sweep
from containers.errors import ContainerError, NameInUse, PodmanFailed
from containers.podman import Podman
from containers.spec import ContainerSpec
from containers.sweep import Report
from tests.containers.conftest import PREFIX, Specs
from tests.waiting import until

# Seconds from the call to the kill. Where in the call they hit depends on the machine: what a
# call leaves is not asserted, only that nothing of it stays.
DELAYS = [0.003, 0.006, 0.009, 0.013, 0.02, 0.035, 0.06]


class Cut:
    """A service that dies during a call, and comes back."""

    def __init__(self, run_dir: Path, owner: str) -> None:
        self.run_dir = run_dir
        self.owner = owner

    @property
    def prefix(self) -> str:
        return f"{PREFIX}{self.owner[:8]}"

    async def client(self) -> Podman:
        found = await service.own(self.run_dir, limit=20)
        return Podman(found.socket, call_timeout=20)

    async def cut(self, call: Callable[[Podman], Awaitable[object]], delay: float) -> None:
        podman = await self.client()
        await podman.ping()
        pid = service.running(self.run_dir)
        assert pid is not None
        asyncio.get_running_loop().call_later(delay, os.kill, pid, signal.SIGKILL)
        with suppress(ContainerError):
            await call(podman)
        await until(lambda: service.running(self.run_dir) is None, 5)
        await podman.close()

    async def sweep(self) -> Report:
        podman = await self.client()
        try:
            return await sweep.sweep(podman, (labels.OWNER, self.owner), self.prefix, stop_grace=1)
        finally:
            await podman.close()

    async def leftovers(self) -> list[str]:
        """Containers that are neither running nor exited, names in the storage, and conmons of what is gone."""
        podman = await self.client()
        found = list(await podman.ghosts(self.prefix))
        states = await podman.listed(labels.owned_by(self.owner))
        found += [f"{c} {state}" for c, state in states.items() if state not in ("running", "exited")]
        for folder in Path("/proc").glob("[0-9]*"):
            words = proc.arguments(int(folder.name))
            if words and words[0].endswith("conmon") and any(w.startswith(self.prefix) for w in words):
                container = words[words.index("-c") + 1]
                if states.get(container) != "running":
                    found.append(f"conmon of {container}")
        await podman.close()
        return found

    async def nothing_left(self, report: Report) -> None:
        left: list[str] = []

        async def clean() -> bool:
            left[:] = await self.leftovers()
            return not left

        with suppress(AssertionError):
            await until(clean, 3)
        assert left == [], report

    async def clear(self) -> None:
        podman = await self.client()
        for container in await podman.listed(labels.owned_by(self.owner)):
            await podman.remove(container)
        await podman.close()


@pytest.fixture
def cut(private_service: service.Service, podman_owner: str) -> Cut:
    return Cut(private_service.run_dir, podman_owner)


async def test_a_create_that_is_cut_off_leaves_nothing(cut: Cut, specs: Specs) -> None:
    seen: set[str] = set()
    for delay in DELAYS:
        spec = specs("quiet")
        await cut.cut(lambda podman, spec=spec: podman.create(spec), delay)  # type: ignore[misc]
        report = await cut.sweep()
        assert report.clean, report
        seen |= {"ghost"} if report.ghosts else set()
        await cut.nothing_left(report)
        podman = await cut.client()
        await podman.remove(await podman.create(spec))  # the name is free again
        await podman.close()


async def test_a_start_that_is_cut_off_leaves_nothing_or_runs(cut: Cut, specs: Specs) -> None:
    for delay in DELAYS:
        podman = await cut.client()
        container = await podman.create(specs("talk"))
        await podman.close()
        await cut.cut(lambda podman, container=container: podman.start(container), delay)  # type: ignore[misc]
        report = await cut.sweep()
        assert report.clean, report
        await cut.nothing_left(report)
        podman = await cut.client()
        state = await podman.inspect(container)
        assert state is None or (state.state == "running" and state.alive)
        await podman.close()
    await cut.clear()


async def test_a_stop_that_is_cut_off_is_finished(cut: Cut, specs: Specs) -> None:
    for delay in DELAYS[::3]:
        podman = await cut.client()
        container = await podman.create(specs("stubborn"))
        await podman.start(container)
        await podman.close()
        await cut.cut(lambda podman, container=container: podman.stop(container, 1), delay)  # type: ignore[misc]
        report = await cut.sweep()
        assert report.clean, report
        podman = await cut.client()
        state = await podman.inspect(container)
        assert state is not None
        # cut off before Podman had written its intention down, it is as if never asked for
        assert (state.state, state.alive) in [("exited", False), ("running", True)]
        assert (container in report.stopped) == (state.state == "exited")
        await podman.close()
    await cut.clear()


async def test_a_removal_that_is_cut_off_is_finished(cut: Cut, specs: Specs) -> None:
    for delay in DELAYS[:5]:
        podman = await cut.client()
        container = await podman.create(specs("quiet"))
        await podman.start(container)
        await podman.close()
        await cut.cut(lambda podman, container=container: podman.remove(container), delay)  # type: ignore[misc]
        report = await cut.sweep()
        assert report.clean, report
        await cut.nothing_left(report)
    await cut.clear()


async def test_what_is_under_way_is_passed_over(podman: Podman, specs: Specs, podman_owner: str) -> None:
    spec: ContainerSpec = specs("quiet")
    container = await podman.create(spec)
    owner = (labels.OWNER, podman_owner)
    for busy in (spec.name, container):
        report = await sweep.sweep(podman, owner, PREFIX + podman_owner[:8], busy=(busy,))
        assert container not in report.removed
    report = await sweep.sweep(podman, owner, PREFIX + podman_owner[:8])
    assert container in report.removed
    assert await podman.inspect(container) is None


async def test_what_runs_and_what_ended_is_left_alone(podman: Podman, specs: Specs, podman_owner: str) -> None:
    running, ended = [await podman.create(specs(*argv)) for argv in (("quiet",), ("once", "x"))]
    await podman.start(running)
    await podman.start(ended)
    other = await podman.create(specs("quiet", labels=labels.owned_by("somebody else")))

    async def over() -> bool:
        return (await podman.listed(labels.owned_by(podman_owner)))[ended] == "exited"

    await until(over, 10)
    report = await sweep.sweep(podman, (labels.OWNER, podman_owner), PREFIX + podman_owner[:8])
    assert not {running, ended, other} & {*report.removed, *report.stopped}
    for container in (running, ended, other):
        assert await podman.remove(container) is True


async def test_a_start_that_podman_forgot_ends_with_its_container(cut: Cut, specs: Specs) -> None:
    """Kills starts until one leaves the runtime's process waiting and the container as never started."""
    for step in range(60):
        podman = await cut.client()
        container = await podman.create(specs("quiet"))
        await cut.cut(lambda podman, container=container: podman.start(container), 0.01 + 0.002 * (step % 20))  # type: ignore[misc]
        await podman.close()
        podman = await cut.client()
        state = await podman.inspect(container)
        assert state is not None
        found = orphans.find(container=container)
        met = state.state == "created" and any(o.workload for o in found)
        if met:
            with pytest.raises(PodmanFailed):
                await podman.start(container)
        assert await podman.remove(container) is True
        await podman.close()
        if met:
            assert orphans.find(container=container) == ()
            assert proc.process(found[0].workload) is None
            await cut.nothing_left(await cut.sweep())
            return
    pytest.fail("no start was cut off at that point in 60 attempts")


async def test_a_ghost_holds_a_name_until_it_is_swept(cut: Cut, specs: Specs) -> None:
    """Kills creates at finer and finer times until one leaves a ghost, so that the case is really met."""
    for step in range(60):
        spec = specs("quiet")
        await cut.cut(lambda podman, spec=spec: podman.create(spec), 0.004 + 0.0005 * (step % 20))  # type: ignore[misc]
        podman = await cut.client()
        ghosts = await podman.ghosts(cut.prefix)
        if spec.name in ghosts:
            assert await podman.inspect(spec.name) is None
            with pytest.raises(NameInUse):
                await podman.create(spec)
            assert spec.name in (await cut.sweep()).ghosts
            await podman.remove(await podman.create(spec))
            await podman.close()
            return
        await podman.close()
        await cut.sweep()
    pytest.fail("no create left a ghost in 60 attempts")

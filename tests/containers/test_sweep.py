"""The Podman service killed in the middle of things, and what is left after a sweep: nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from containers import labels, orphans, proc, service, sweep, trial
from containers.errors import ContainerError, NameInUse, PodmanFailed
from containers.podman import Podman
from containers.spec import ContainerSpec
from containers.sweep import Report
from tests.containers.conftest import PREFIX, Specs
from tests.waiting import until

# Seconds from the call to the kill. Where in the call they hit depends on the machine: what a
# call leaves is not asserted, only that nothing of it stays.
DELAYS = [0.005, 0.008, 0.013, 0.025, 0.05]


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
    for delay in DELAYS:
        spec = specs("quiet")
        await cut.cut(lambda podman, spec=spec: podman.create(spec), delay)  # type: ignore[misc]
        report = await cut.sweep()
        assert report.clean, dict(report.failed)
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
        assert report.clean, dict(report.failed)
        await cut.nothing_left(report)
        podman = await cut.client()
        state = await podman.inspect(container)
        assert state is None or (state.state == "running" and state.alive)
        await podman.close()
    await cut.clear()


async def test_a_stop_that_is_cut_off_is_finished(cut: Cut, specs: Specs) -> None:
    for delay in (DELAYS[0], DELAYS[3]):
        podman = await cut.client()
        container = await podman.create(specs("stubborn"))
        await podman.start(container)
        await podman.close()
        await cut.cut(lambda podman, container=container: podman.stop(container, 1), delay)  # type: ignore[misc]
        report = await cut.sweep()
        assert report.clean, dict(report.failed)
        podman = await cut.client()
        state = await podman.inspect(container)
        assert state is not None
        # cut off before Podman had written its intention down, it is as if never asked for
        assert (state.state, state.alive) in [("exited", False), ("stopped", False), ("running", True)]
        assert (container in report.stopped) == (not state.alive)
        await podman.close()
    await cut.clear()


async def test_a_removal_that_is_cut_off_is_finished(cut: Cut, specs: Specs) -> None:
    for delay in DELAYS[:4]:
        podman = await cut.client()
        container = await podman.create(specs("quiet"))
        await podman.start(container)
        await podman.close()
        await cut.cut(lambda podman, container=container: podman.remove(container), delay)  # type: ignore[misc]
        report = await cut.sweep()
        assert report.clean, dict(report.failed)
        await cut.nothing_left(report)
    await cut.clear()


async def test_what_is_under_way_is_passed_over(podman: Podman, specs: Specs, podman_owner: str) -> None:
    spec: ContainerSpec = specs("quiet")
    container = await podman.create(spec)
    owner = (labels.OWNER, podman_owner)
    for busy in (spec.name, container):
        report = await sweep.sweep(podman, owner, PREFIX + podman_owner[:8], busy=(busy,), stop_grace=1)
        assert container not in report.removed
    report = await sweep.sweep(podman, owner, PREFIX + podman_owner[:8], stop_grace=1)
    assert container in report.removed
    assert await podman.inspect(container) is None


async def test_what_begins_while_it_goes_round_is_passed_over(
    podman: Podman, specs: Specs, podman_owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep removed an engine between its create and its start."""
    names: list[str] = []
    created: list[str] = []
    list_all = podman.listed

    async def listed(wanted: Mapping[str, str]) -> dict[str, str]:
        if not names:
            spec = specs("quiet")
            names.append(spec.name)
            created.append(await podman.create(spec))
        return await list_all(wanted)

    monkeypatch.setattr(podman, "listed", listed)
    owner = (labels.OWNER, podman_owner)
    report = await sweep.sweep(podman, owner, PREFIX + podman_owner[:8], busy=names, stop_grace=1)
    assert (report.removed, len(created)) == ((), 1)
    await podman.remove(created[0])


async def test_what_runs_and_what_ended_is_left_alone(podman: Podman, specs: Specs, podman_owner: str) -> None:
    running, ended = [await podman.create(specs(*argv)) for argv in (("quiet",), ("once", "x"))]
    await podman.start(running)
    await podman.start(ended)
    other = await podman.create(specs("quiet", labels=labels.owned_by("somebody else")))

    async def over() -> bool:
        return (await podman.listed(labels.owned_by(podman_owner)))[ended] == "exited"

    await until(over, 10)
    report = await sweep.sweep(podman, (labels.OWNER, podman_owner), PREFIX + podman_owner[:8], stop_grace=1)
    assert not {running, ended, other} & {*report.removed, *report.stopped}
    for container in (running, ended, other):
        assert await podman.remove(container) is True


async def test_a_start_that_podman_forgot_ends_with_its_container(cut: Cut, specs: Specs) -> None:
    """The service is killed when conmon is seen: Podman writes the start down only after the runtime's answer."""
    for _ in range(10):
        podman = await cut.client()
        container = await podman.create(specs("quiet"))
        pid = service.running(cut.run_dir)
        assert pid is not None
        start = asyncio.create_task(podman.start(container))

        def begun(container: str = container) -> bool:
            return bool(orphans.find(container=container))

        await until(begun, 10, "a conmon")
        os.kill(pid, signal.SIGKILL)
        with suppress(ContainerError):
            await start
        await podman.close()

        def settled(container: str = container) -> bool:
            found = orphans.find(container=container)
            return not found or found[0].workload is not None

        await until(settled, 10, "a workload, or no conmon")
        found = orphans.find(container=container)
        podman = await cut.client()
        state = await podman.inspect(container)
        assert state is not None
        met = state.state == "created" and bool(found)
        if met:
            with pytest.raises(PodmanFailed):
                await podman.start(container)
        assert await podman.remove(container) is True
        await podman.close()
        if met:
            assert proc.process(found[0].workload) is None
            # conmon follows its workload: nothing_left waits for it
            await cut.nothing_left(await cut.sweep())
            return
    pytest.fail("no start was cut off at that point in 10 attempts")


async def test_a_ghost_holds_a_name_until_it_is_swept(
    podman: Podman, podman_service: service.Service, specs: Specs, podman_owner: str, tmp_path: Path
) -> None:
    """A container in the books of another Podman on the same storage is what a cut-off create leaves in ours."""
    ours = podman_service.run_dir / trial.CONF_FILE
    conf = tmp_path / "other.conf"
    books = f'static_dir = "{tmp_path}/static"\ntmp_dir = "{tmp_path}/tmp"\n'
    conf.write_text((ours.read_text() if ours.exists() else "[engine]\n") + books)
    spec = specs("quiet")
    other = await asyncio.create_subprocess_exec(
        "podman", "create", "--name", spec.name, spec.image, env={**os.environ, "CONTAINERS_CONF": str(conf)}
    )
    async with asyncio.timeout(20):
        assert await other.wait() == 0

    prefix = PREFIX + podman_owner[:8]
    assert spec.name in await podman.ghosts(prefix)
    assert await podman.inspect(spec.name) is None
    assert not await podman.listed(labels.owned_by(podman_owner))
    with pytest.raises(NameInUse):
        await podman.create(spec)
    owner = (labels.OWNER, podman_owner)
    assert (await sweep.sweep(podman, owner, prefix, busy=(spec.name,), stop_grace=1)).ghosts == ()
    assert (await sweep.sweep(podman, owner, prefix, stop_grace=1)).ghosts == (spec.name,)
    assert await podman.ghosts(prefix) == ()
    assert await podman.remove(await podman.create(spec)) is True

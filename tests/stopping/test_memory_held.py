"""A GPU whose driver does not give a dead engine's memory back: the engine counts as not gone, the GPU is left alone,
and both end by themselves.

The driver is played, for one that hangs cannot be had here; the actor, its steps and the barrier are the product's.
`test_memory_held_real` has the same with a real engine and a real NVML binding.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hosts.facts import Accelerator, Cpu, HostFacts, Memory
from hosts.gpu_sample import GpuProcess, GpuSample
from hosts.gpu_users import GpuUser
from hosts.telemetry import Sample
from orchestrator import device_need
from orchestrator.device_gate import DeviceGate
from orchestrator.device_need import Device
from orchestrator.engine import Engine
from orchestrator.host_watch import HostWatch
from orchestrator.planner import places
from orchestrator.stopping.clearing import Clearing, Sightings
from orchestrator.stopping.quarantine import ISSUE, Quarantine
from orchestrator.timing import Timing
from orchestrator.views import Desired, State
from tests.daemon.world import LIMIT, Sleepers, World, a_plan
from tests.hosts.trees import Tree
from tests.telling.golden import told
from tests.waiting import until

GIB = 1 << 30
ONE, TWO = "0000:01:00.0", "0000:02:00.0"
QUICK = Timing(
    backoff_first=0.02, backoff_next=0.02, backoff_max=0.02, memory_free=0.15, memory_step=0.01, reconcile_period=0.05
)
HOLDER = 4194301
"""A pid that no process has here: the kernel gives none above 4194303 and seldom one so high."""


def gpu(pci: str, index: int) -> Accelerator:
    name = f"nvidia.com/gpu={index}"
    return Accelerator("nvidia", "RTX 3090", "sm_86", pci, None, 24 * GIB, 20 * GIB, False, devices=(name,))


class Cards(Sleepers):
    """Two GPUs and their driver, and a runner whose engines take memory of them; `give_back` frees it."""

    def __init__(self, world: World, tree: Tree) -> None:
        super().__init__(world.clock)
        self.world = world
        gpus = (gpu(ONE, 0), gpu(TWO, 1))
        facts = HostFacts("h", None, None, Cpu(None, "x86_64", 1), Memory(1, 1), gpus, ())
        self.host = HostWatch(facts, world.timing, tree.roots)
        self.gate = DeviceGate(self.host.facts, lambda _: False)
        self.users: dict[str, list[GpuUser]] = {ONE: [], TWO: []}
        self.lost = 0
        self.left: list[Any] = []
        """Processes that outlive the container."""
        self.sightings = Sightings()
        self.quarantine = Quarantine(world.issues, self.host.set_quarantined)
        self.clearing = Clearing(
            read=self.read,
            facts=self.host.facts,
            taken=self.gate.taken,
            sightings=self.sightings,
            quarantine=self.quarantine,
            journal=world.journal,
            clock=world.clock,
            timing=world.timing,
            alive=lambda _: list(self.left),
            still=lambda pid, _: pid in [holder.pid for holder in self.left],
        )
        world.gpus.bar = self.gate.bar
        world.look = self.host.facts
        world.planner.answer = a_plan(devices=("nvidia.com/gpu=0",))

    async def read(self) -> None:
        gpus = {}
        for where, users in self.users.items():
            used = sum(u.memory or 0 for u in users) + (self.lost if where == ONE else 0)
            processes = tuple(GpuProcess(u.pid, u.memory, u.kind) for u in users)
            gpus[where] = GpuSample(where, memory_used=used, memory_free=24 * GIB - used, processes=processes)
        sample = Sample({}, gpus=gpus, users=tuple(u for users in self.users.values() for u in users))
        self.sightings.on_sample(sample)
        self.quarantine.on_sample(sample)

    async def bring_up(self, engine: Engine, **more: Any) -> Any:
        proof = await super().bring_up(engine, **more)
        (where,) = self.gate.taken(engine.plan)
        self.users[where].append(GpuUser(where, HOLDER, "python3", 18 * GIB, "compute", engine.container_id, False))
        await self.read()
        return proof

    async def take_down(self, engine: Engine) -> None:
        self.downs += 1
        self.kill(engine.generation - 1)
        await engine.exited.wait()
        # the container is gone, and with it the control group of what the driver still lists
        self.users = {
            where: [replace(u, name=None, container=None) if u.container == engine.container_id else u for u in users]
            for where, users in self.users.items()
        }
        await self.clearing.wait(engine)
        engine.unfollow()

    def give_back(self) -> None:
        self.users, self.lost, self.left = {ONE: [], TWO: []}, 0, []


@pytest.fixture
async def cards(tmp_path: Path) -> AsyncIterator[Cards]:
    world = await World.open(tmp_path, QUICK)
    made = Cards(world, Tree(tmp_path / "root").machine())
    object.__setattr__(world.context, "runner", made)
    world.runner = made
    yield made
    await world.close()
    await made.host.close()


async def entries(cards: Cards, code: str) -> list[Any]:
    return [e async for e in cards.world.journal.follow() if e.code == code]


async def test_memory_that_does_not_come_back_quarantines_the_gpu_and_names_the_holder(cards: Cards) -> None:
    world = cards.world
    engine = await world.started()
    await world.actor.set_desired(Desired.STOPPED, "t")
    await world.until_code("failed")
    failed = (await entries(cards, "failed"))[0]
    assert failed.evidence["code"] == "wedged"
    assert failed.evidence["reason"] == "listed_by_driver"
    assert failed.evidence["holders"][0]["pid"] == HOLDER
    assert failed.evidence["after_s"] >= QUICK.memory_free
    assert f"memory is held on GPU {ONE}: process {HOLDER}" in failed.text
    assert engine in world.d.engines, "what holds memory is not gone"
    assert engine.state is State.WEDGED
    issue = next(i for i in world.issues.list() if i.code == ISSUE)
    assert (issue.subject, issue.evidence["engine"]) == (ONE, engine.name)
    assert f"process {HOLDER} (python3, has ended, 18.00 GiB)" in issue.text
    assert issue.hint is not None

    # the next start goes elsewhere: to the other GPU of this kind, and never to the CPU
    facts = cards.host.facts()
    found = places.of_host(facts, None)
    assert [[a.pci for a in kind] for kind in found.kinds] == [[TWO]]
    assert found.unfit[0][0] == "device_quarantined"
    assert device_need.absent(a_plan(devices=("nvidia.com/gpu=0",)), facts) == ("nvidia.com/gpu=0",)
    need = device_need.Need((Device("nvidia", "sm_86", ONE),), (), "it was proven on it")
    assert device_need.missing(need, facts) is None, "the other one is of the same kind"
    assert cards.gate.bar(world.d) is None

    # both end by themselves: at a reading, without anybody's help
    cards.give_back()
    await cards.read()
    await until(lambda: not world.d.engines, LIMIT, "the engine is gone")
    assert not world.issues.holds(ISSUE)
    assert len(places.of_host(cards.host.facts(), None).kinds[0]) == 2
    over = (await entries(cards, f"{ISSUE}_over"))[0]
    assert over.text == f"GPU {ONE} is used again: what {engine.name} held is free"
    assert len(await entries(cards, "stopped")) == 1
    (free,) = await entries(cards, "memory_free")
    assert free.evidence["after_s"] >= QUICK.memory_free
    assert len(await entries(cards, ISSUE)) == 1, "opened once, however often it is looked at"
    told(world, "m", "08-memory-held")


async def test_bytes_that_nobody_has_are_held_too(cards: Cards) -> None:
    world = cards.world
    await world.started()

    async def vanish() -> None:
        cards.users[ONE], cards.lost = [], 18 * GIB
        await Cards.read(cards)

    cards.clearing._read = vanish
    await world.actor.set_desired(Desired.STOPPED, "t")
    await world.until_code("failed")
    failed = (await entries(cards, "failed"))[0]
    assert (failed.evidence["code"], failed.evidence["reason"]) == ("wedged", "held_by_nobody")
    assert failed.evidence["lost_bytes"] == 18 * GIB
    assert "no process that the driver lists" in failed.text
    cards.clearing._read = cards.read
    cards.give_back()
    await cards.read()
    await until(lambda: not world.d.engines, LIMIT, "the engine is gone")


async def test_memory_that_comes_back_late_is_waited_for_and_nothing_is_said(cards: Cards) -> None:
    """The false alarm: some drivers take seconds."""
    world = cards.world
    await world.started()
    reads = 0

    async def late() -> None:
        nonlocal reads
        reads += 1
        if reads == 4:
            cards.give_back()
        await Cards.read(cards)

    cards.clearing._read = late
    await world.actor.set_desired(Desired.STOPPED, "t")
    await until(lambda: not world.d.engines, LIMIT, "the engine is gone")
    assert reads >= 4 + 2
    assert not world.issues.list()
    assert await entries(cards, "failed") == []
    (free,) = await entries(cards, "memory_free")
    assert free.evidence["free_bytes"] == {ONE: 24 * GIB}


async def test_with_every_gpu_held_a_start_waits_and_comes_by_itself(cards: Cards) -> None:
    world = cards.world
    cards.host._facts = replace(cards.host._facts, accelerators=(gpu(ONE, 0),))
    del cards.users[TWO]
    await world.started()
    await world.actor.set_desired(Desired.STOPPED, "t")
    await world.until_code("failed")
    barred = cards.gate.bar(world.d)
    assert barred is not None
    assert barred.code == ISSUE
    assert str(HOLDER) in barred.text
    assert places.of_host(cards.host.facts(), None).kinds == (), "never the CPU instead"
    await world.actor.set_desired(Desired.RUNNING, "t")
    cards.users = {ONE: []}
    await cards.read()
    await until(lambda: world.d.serving_engine is not None, LIMIT, "it serves again")
    assert cards.gate.bar(world.d) is None


async def test_a_stop_of_one_that_never_came_waits_for_nothing(cards: Cards) -> None:
    engine = Engine("0" * 16, "m", 1, a_plan(devices=("nvidia.com/gpu=0",)), "key", None, None, 0.0)
    async with asyncio.timeout(1):
        await cards.clearing.wait(engine)

"""One queue a device: first come, first served, in PCI order, and nothing that gives memory back waits in it."""

from __future__ import annotations

import asyncio
import random

import pytest

from hosts.facts import Accelerator, Cpu, HostFacts, Memory
from orchestrator.admission import Admission
from orchestrator.device_queue import DeviceQueues
from orchestrator.errors import DoesNotFit
from orchestrator.plan import Plan
from tests.daemon.world import a_plan
from tests.waiting import until

ONE, TWO = "0000:01:00.0", "0000:02:00.0"
LIMIT = 5.0


def gpu(pci: str, free: int, device: str) -> Accelerator:
    return Accelerator("nvidia", "x", "sm_86", pci, None, free, free, False, devices=(device,))


def a_host(first: int = 100, second: int = 100) -> HostFacts:
    cards = (gpu(ONE, first, "nvidia.com/gpu=0"), gpu(TWO, second, "nvidia.com/gpu=1"))
    return HostFacts("h", None, None, Cpu(None, "x86_64", 2), Memory(1 << 40, 1 << 40), cards)


def on(size: int, *cards: int) -> Plan:
    return a_plan(size, tuple(f"nvidia.com/gpu={card}" for card in cards))


class Evicting:
    """In the place of eviction: room comes when the test says so."""

    def __init__(self, admission: Admission, victim: str | None = None) -> None:
        self.admission, self.victim = admission, victim
        self.asked: list[tuple[str, int]] = []
        self.may_end = asyncio.Event()

    async def __call__(self, plan: Plan, devices: tuple[str, ...], missing: int) -> bool:
        self.asked.append((devices[0], missing))
        await self.may_end.wait()
        if self.victim is None:
            return False
        self.admission.forget(self.victim)
        return True


async def test_what_waits_for_room_is_not_overtaken() -> None:
    """Something small would fit at once into what is left, and into what is being freed for the one before it."""
    admission = Admission(a_host)
    await admission.reserve("old", on(90, 0))
    room = admission.make_room = Evicting(admission, "old")
    order: list[str] = []

    async def reserve(engine: str, size: int, *cards: int) -> None:
        await admission.reserve(engine, on(size, *cards))
        order.append(engine)

    big = asyncio.create_task(reserve("big", 100, 0))
    await until(lambda: room.asked == [(ONE, 90)], LIMIT, "it asks for room")
    small = asyncio.create_task(reserve("small", 5, 0))
    other = asyncio.create_task(reserve("elsewhere", 100, 1))
    await asyncio.wait_for(other, LIMIT)
    await until(lambda: len(admission.queues.line(ONE)) == 2, LIMIT, "it waits behind the big one")
    room.may_end.set()
    await asyncio.wait_for(big, LIMIT)
    with pytest.raises(DoesNotFit):
        await asyncio.wait_for(small, LIMIT)
    assert order == ["elsewhere", "big"]
    assert admission.queues.lines() == {}


async def test_what_gives_memory_back_passes_all_who_wait() -> None:
    """A stop, and the end of an engine that the memory guard killed, come to `forget` while somebody is asking."""
    admission = Admission(a_host)
    await admission.reserve("old", on(100, 0))
    room = admission.make_room = Evicting(admission)
    big = asyncio.create_task(admission.reserve("big", on(100, 0)))
    await until(lambda: bool(room.asked), LIMIT, "it asks for room")
    admission.forget("old")
    assert admission.free([ONE]) == 100
    room.may_end.set()
    with pytest.raises(DoesNotFit):
        await asyncio.wait_for(big, LIMIT)  # nobody made room for it, and it does not look by itself
    admission.make_room = None
    await admission.reserve("big", on(100, 0))


async def test_a_start_that_is_called_off_gives_its_place_up_at_once() -> None:
    admission = Admission(a_host)
    await admission.reserve("old", on(90, 0))
    room = admission.make_room = Evicting(admission, "old")
    first = asyncio.create_task(admission.reserve("first", on(100, 0)))
    await until(lambda: bool(room.asked), LIMIT, "it asks for room")
    seen: list[tuple[str, str]] = []
    waits = [
        asyncio.create_task(admission.reserve(f"w{n}", on(10, 0), lambda device, before: seen.append((device, before))))
        for n in range(3)
    ]
    await until(lambda: len(admission.queues.line(ONE)) == 4, LIMIT, "three wait")
    assert seen == [(ONE, "m")] * 3
    waits[0].cancel()
    first.cancel()
    await asyncio.wait([first, waits[0]])
    room.may_end.set()
    await asyncio.wait_for(waits[1], LIMIT)
    await asyncio.wait_for(waits[2], LIMIT)  # for which the old one went
    assert set(admission.claims()) == {"w1", "w2"}
    assert admission.queues.lines() == {}


async def test_who_gives_up_waiting_for_one_device_leaves_the_queue_of_the_other() -> None:
    queues, may_end = DeviceQueues(), asyncio.Event()

    async def turn(*devices: str) -> None:
        async with queues.turn(devices, "x"):
            await may_end.wait()

    busy = asyncio.create_task(turn(TWO))
    await until(lambda: queues.line(TWO) == ("x",), LIMIT, "held")
    both = asyncio.create_task(turn(TWO, ONE))
    await until(lambda: queues.lines() == {ONE: ("x",), TWO: ("x", "x")}, LIMIT, "it has the first, in PCI order")
    both.cancel()
    await asyncio.wait([both])
    assert queues.lines() == {TWO: ("x",)}
    may_end.set()
    await asyncio.wait_for(busy, LIMIT)


@pytest.mark.parametrize("seed", range(20))
async def test_any_number_of_devices_in_any_order_never_lock_each_other_out(seed: int) -> None:
    chance = random.Random(seed)
    queues = DeviceQueues()
    devices = [f"0000:0{n}:00.0" for n in range(4)]
    inside: dict[str, str] = {}

    async def one(who: str) -> None:
        wanted = chance.sample(devices, chance.randint(1, 4))
        async with queues.turn(wanted, who):
            for device in wanted:
                assert inside.setdefault(device, who) == who, "two on one device"
            for _ in range(chance.randint(0, 5)):
                await asyncio.sleep(0)
            for device in wanted:
                del inside[device]

    tasks = [asyncio.create_task(one(f"t{n}")) for n in range(40)]
    for task in chance.sample(tasks, 10):
        for _ in range(chance.randint(0, 3)):
            await asyncio.sleep(0)
        if not any(who == f"t{tasks.index(task)}" for who in inside.values()):
            task.cancel()
    done, late = await asyncio.wait(tasks, timeout=LIMIT)
    assert not late
    for task in done:
        assert task.cancelled() or task.exception() is None
    assert queues.lines() == {}

"""The end of a history: all faults end, people ask once more for what they want, and then it has to come about."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from orchestrator.deployment import Deployment
from orchestrator.views import Desired
from tests.history.daemon import GROUPS, TTL
from tests.history.gateway import Request
from tests.history.machine import FLAWS, GIB, GPUS, HOST, SIZES
from tests.history.planner import HOST_LIMIT, KINDS, LADDER

if TYPE_CHECKING:
    from orchestrator.actor import Actor
    from tests.history.history import History

SETTLING = 2400.0
"""Seconds of made-up time after the last fault in which everything has to be as it should be."""
STEP = 20.0
PATIENCE = 8
"""How often a client asks again when it was told that there is nothing."""
LOOPS = frozenset({"journal", "reconcile", "telemetry", "reports", "demand"})


async def settle(history: History) -> list[str]:
    """What is not as it should be; looked at until it is, for at most `SETTLING` seconds."""
    machine = history.machine
    end = machine.now + SETTLING
    clients = [asyncio.ensure_future(_ask(history, name)) for name in _on_demand(history)]
    wrong, calm = ["never looked at"], 0
    while calm < 2 and machine.now < end:
        await asyncio.sleep(STEP)
        history.look()
        wrong = _wrong(history, clients)
        calm = 0 if wrong else calm + 1
    for client in clients:
        client.cancel()
    return wrong


def _on_demand(history: History) -> list[str]:
    return sorted(name for name, wish in history.wishes.items() if wish is Desired.ON_DEMAND)


async def _ask(history: History, name: str) -> Request:
    """A client that wants an answer, and asks again when it is told to come later."""
    tries = 0
    while True:
        tries += 1
        request = history.front.arrive(name, 3.0)
        while request.ended is None:  # noqa: ASYNC110 - made-up time
            await asyncio.sleep(1.0)
        if request.ended == "served" or (tries >= PATIENCE and _excuse(history, name) is not None):
            return request
        await asyncio.sleep(30.0)


def _wrong(history: History, clients: list[asyncio.Task[Request]]) -> list[str]:
    found: list[str] = []
    for actor in history.daemon.registry.all():
        found += _come_about(history, actor)
    if not found and all(client.done() for client in clients):
        found += _nothing_left(history)
    for client in clients:
        if not client.done():
            found.append("a client still waits for an answer")
            continue
        request = client.result()
        if request.ended != "served" and not request.why:
            found.append(f"{request.model} is not served, and nobody says why")
    return found


def _come_about(history: History, actor: Actor) -> list[str]:
    d = actor.deployment
    wish = history.wishes.get(d.name, d.desired)
    engines = [(e.name, e.state.value) for e in d.engines]
    if wish is Desired.STOPPED and d.engines:
        return [f"{d.name} is to be stopped, and has {engines}"]
    if wish is Desired.ON_DEMAND and any(d.engines) and _idle(history, d.name) > (KINDS[d.name].ttl_s or TTL) + 60.0:
        return [f"{d.name} is there on demand, nobody has asked for {_idle(history, d.name):.0f} s: {engines}"]
    if wish is Desired.RUNNING and (d.serving_engine is None or len(d.engines) != 1):
        excuse = _excuse(history, d.name)
        if excuse is None:
            return [f"{d.name} is to run: {engines}, {d.reason}, {d.failures}, stuck {d.stuck_until}, held {d.held}"]
    if wish is Desired.RUNNING and d.serving_engine is not None:
        process = next((p for p in history.machine.processes if p.engine == d.serving_engine.id), None)
        if process is not None and process.flawed:
            return [f"{d.name} runs with {process.rung}, which does not work"]
    return []


def _idle(history: History, name: str) -> float:
    now = history.machine.now
    if any(r.ended is None for r in history.requests if r.model == name):
        return 0.0
    engine = history.daemon.registry.get(name).deployment.serving_engine
    ready = now if engine is None or engine.ready_at is None else engine.ready_at
    return now - max(ready, history.front.last_end.get(name, 0.0))


def _excuse(history: History, name: str) -> str | None:
    """Why it need not serve; it has to say so too."""
    d = history.daemon.registry.get(name).deployment
    flaw = FLAWS[history.machine.flaws.get(name, "none")]
    if all(flaw(method.value, slots) for _, _, method, slots in LADDER):
        return "nothing that can be launched of it works" if d.reason is not None else None
    if d.reason is None:
        return None
    taken = {n for g in GROUPS if name in g.members for n in g.members} - {name}
    if any(history.wishes.get(other) is Desired.RUNNING for other in taken):
        return "its group is taken"
    if not has_room(history, d):
        return "there is no room"
    return None


def has_room(history: History, d: Deployment) -> bool:
    """Whether there would be memory for it if all that makes way were gone."""
    kind, machine = KINDS[d.name], history.machine
    size = kind.size - (0 if d.speculate else 3 * GIB)
    own = {d.name} | {n for n in KINDS if history.wishes.get(n) is Desired.ON_DEMAND}
    left = dict(SIZES)
    left[HOST] = HOST_LIMIT
    for process in machine.processes:
        if process.deployment not in own:
            for device in left:
                left[device] -= process.size.get(device, 0) if process.alive else process.kept.get(device, 0)
    if not kind.gpus:
        return left[HOST] >= size
    return sum(left[gpu] >= size for gpu in GPUS) >= kind.gpus


def _nothing_left(history: History) -> list[str]:
    daemon, machine, found = history.daemon, history.machine, list[str]()
    engines = {e.id: e for a in daemon.registry.all() for e in a.deployment.engines}
    containers = {e.container_id for e in engines.values()}
    found += [f"{c.spec.name} ({c.state}) is nobody's" for c in machine.containers.values() if c.id not in containers]
    found += [
        f"process {p.pid} of {p.deployment}-{p.generation} is nobody's"
        for p in machine.processes
        if p.alive and p.container not in containers
    ]
    found += [f"memory is promised to {e}, which is no engine" for e in daemon.admission.claims() if e not in engines]
    if daemon.admission.queues.lines():
        found.append(f"in the queues: {daemon.admission.queues.lines()}")
    if daemon.quarantine.held:
        found.append(f"left alone: {list(daemon.quarantine.held)}")
    for file in daemon.context.paths.engines.iterdir():
        if file.name.removesuffix(".key") not in engines:
            found.append(f"{file.name} is nobody's")
    rest = set(history.database.engines) - set(engines)
    if rest and not history.database.was_full_after:
        found.append(f"rows of engines that are gone: {rest}")
    for name, wish in history.wishes.items():
        row = history.database.rows.get(name)
        if row is None or row.desired is not wish:
            found.append(f"{name} is to be {wish}, and the database has {row}")
    waiting = [task for task in history.asked if not task.done()]
    if waiting:  # three to one start
        found.append(f"{len(waiting)} still wait to hear of a start")
    open_ended = [r for r in history.requests if r.ended is None]
    if open_ended:
        found.append(f"requests without an end: {open_ended[:3]}")
    known = LOOPS | {f"actor-{name}" for name in KINDS}
    others = [name for name in daemon.tasks() if name not in known]
    if others:
        found.append(f"tasks that have not ended: {others}")
    return found

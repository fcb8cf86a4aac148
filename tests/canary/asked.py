"""A canary of its own for engines that run as processes: no daemon, no container."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.canary.checking import Canary
from orchestrator.canary.records import Records
from orchestrator.clock import SystemClock
from orchestrator.engine import Engine, new_id
from orchestrator.engine_client import EngineClient
from orchestrator.errors import EngineFailed
from orchestrator.events import Journal
from orchestrator.measuring.ledger import Ledger
from orchestrator.measuring.observing import Observing
from orchestrator.plan import Evidence, ExpectedMemory, Method, Plan, PlanMount
from orchestrator.profiles import load
from orchestrator.proof import counters
from orchestrator.runtimes import EngineCounters, adapter
from orchestrator.store import Store
from orchestrator.timing import Timing
from orchestrator.views import Event

HOST = load("dankserver")
MEMORY = ExpectedMemory(weights=1, kv=0, state=0, drafter=0, compute=0, total=1, budget=None)


def a_plan(
    model: Path, *words: str, method: Method = Method.NONE, parallel: int = 2, context: int = 2048, **more: Any
) -> Plan:
    """A plan that launches this file, as far as a canary looks at it."""
    plan = Plan(
        model="m",
        variant="f32",
        runtime="llama.cpp",
        runtime_version="b11549",
        image="sha256:1",
        method=method,
        draft_tokens=0,
        drafter=None if method is Method.NONE else "drafter",
        context=context,
        parallel=parallel,
        argv=("-m", f"/models/{model.name}", *words),
        env={},
        devices=(),
        mounts=(PlanMount(str(model.parent), "/models"),),
        expected_memory=MEMORY,
        evidence=Evidence.UNTRIED,
    )
    return replace(plan, **more)


@dataclass
class Desk:
    """A canary, what it keeps, and what it told."""

    canary: Canary
    records: Records
    journal: Journal
    ledger: Ledger
    observing: Observing

    async def look(self, plan: Plan, socket: Path, key: str = "k") -> None:
        """One canary before ready, of a new engine that listens here."""
        engine = Engine(new_id(), plan.model, 1, plan, "k", str(socket), None, 0.0)
        async with EngineClient(socket=str(socket), port=None, key=key, timeout=60) as client:
            await self.canary.before_ready(engine, client)

    async def fails(self, plan: Plan, socket: Path) -> EngineFailed:
        """The same, which must fail; why it did."""
        with pytest.raises(EngineFailed) as caught:
            await self.look(plan, socket)
        assert caught.value.code == "canary_failed"
        assert caught.value.retryable
        assert caught.value.hint
        return caught.value

    async def counters(self, plan: Plan, socket: Path) -> EngineCounters:
        """What the engine has counted by now."""
        async with EngineClient(socket=str(socket), port=None, key="k", timeout=10) as client:
            found = await counters(client, adapter(plan.runtime), Timing())
        assert found is not None
        return found

    def events(self) -> list[Event]:
        """What it told, oldest first."""
        return list(self.journal._recent)

    def last(self) -> Event:
        return self.events()[-1]


class _Host:
    def facts(self) -> Any:
        return HOST

    def telemetry(self, since: int = 0, limit: int | None = None) -> list[Any]:
        return []


@asynccontextmanager
async def a_desk(folder: Path, timing: Timing | None = None) -> AsyncIterator[Desk]:
    """A desk that keeps its books in this folder; a second one in it finds them."""
    clock, timing = SystemClock(), timing or Timing()
    store, ledger = await Store.open(folder / "state.db"), await Ledger.open(folder / "measured.db")
    try:
        journal = Journal(store, clock, host="h", boot_id="b", last=0)
        observing = Observing(ledger, host=_Host(), podman=None, clock=clock, timing=timing, client=None)  # type: ignore[arg-type]
        records = Records(ledger)
        canary = Canary(
            records, facts=lambda: HOST, journal=journal, clock=clock, timing=timing, learned=observing.read
        )
        yield Desk(canary, records, journal, ledger, observing)
    finally:
        await ledger.close()
        await store.close()

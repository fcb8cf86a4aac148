"""A runner against real Podman without a daemon: for plans that the planner would never make."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from containers.labels import owned_by
from containers.podman import Podman
from containers.ports import Ports
from hosts.probe import probe
from orchestrator.admission import Admission
from orchestrator.clock import SystemClock
from orchestrator.config import Config
from orchestrator.engine import Engine, key_file, new_id, new_key, socket_folder
from orchestrator.gateway_link import GatewayLink
from orchestrator.models import Drafter, Format, ModelEntry, Ngram, Speculation, Variant
from orchestrator.paths import Paths, find, prepare
from orchestrator.plan import Method, Plan
from orchestrator.planning import Planning
from orchestrator.proof import Proof
from orchestrator.runner import Identity, Runner
from orchestrator.timing import Timing
from tests.daemon.world import marks_in
from tests.models import generate as g

LOAD = 30.0


@dataclass
class Bench:
    """A runner against real Podman, with a store that holds every model file, and no daemon."""

    paths: Paths
    planning: Planning
    runner: Runner
    said: list[str]

    async def plan(self, method: Method, drafter: str | None = None, *, target: str = g.TARGET) -> Plan:
        """What the planner makes of a target and a drafter that belong together."""
        drafters = (
            ()
            if drafter is None
            else (Drafter(name="drafter", method=method, format=Format.GGUF, path=f"models/{drafter}"),)
        )
        entry = ModelEntry(
            name="liar",
            variants=(Variant(name="f32", format=Format.GGUF, quantisation="F32", path=f"models/{target}"),),
            drafters=drafters,
            speculation=Speculation(method=method, ngram=Ngram()),
            context=2048,
            parallel=1,
            threads=1,
        )
        return await self.planning.plan(entry)

    def engine(self, plan: Plan) -> Engine:
        """An engine that is about to be started from the plan."""
        name = new_id()
        where = str(socket_folder(self.paths, name) / "engine.sock") if plan.socket else None
        return Engine(name, "liar", 1, plan, new_key(), where, None, 0.0)

    async def bring_up(self, plan: Plan) -> Proof:
        """Start an engine, hear its proof, and take it down without a trace, whatever came of it."""
        engine = self.engine(plan)
        try:
            return await self.up(engine)
        finally:
            await self.down(engine)

    async def up(self, engine: Engine, *, limit: float = LOAD) -> Proof:
        return await self.runner.bring_up(
            engine, limit=limit, seen=lambda state, text: self.said.append(f"{state}: {text}")
        )

    async def down(self, engine: Engine) -> None:
        await self.runner.take_down(engine)
        assert not socket_folder(self.paths, engine.id).exists()
        assert not key_file(self.paths, engine.id).exists()
        assert await self.runner.podman.listed(owned_by(self.paths.owner)) == {}


@contextmanager
def filled_store(models: Path) -> Iterator[Path]:
    """A state folder whose store has all these models, in `models/`."""
    state = Path(tempfile.mkdtemp(prefix="or-bench-"))
    shutil.copytree(models, state / "models" / "models")
    yield state
    shutil.rmtree(state)


@asynccontextmanager
async def opened(state: Path, podman_socket: str) -> AsyncIterator[Bench]:
    """A bench on this state folder."""
    paths = prepare(find(state_dir=state))
    clock, timing = SystemClock(), Timing().scaled(0.05)
    podman = Podman(podman_socket, call_timeout=timing.podman_call)
    facts = await asyncio.to_thread(probe, deadline=timing.probe_call)
    admission = Admission(lambda: facts)
    runner = Runner(
        podman=podman,
        paths=paths,
        identity=Identity(paths.owner, "test"),
        admission=admission,
        model_folders=lambda: (str(paths.store),),
        gateway=GatewayLink(paths.gateway_socket, clock, timing),
        ports=Ports(clock.now),
        marks=marks_in(paths.loading),
        clock=clock,
        timing=timing,
        log_bytes=lambda: 65536,
    )
    try:
        yield Bench(paths, Planning(paths, Config(), admission, podman, clock), runner, [])
    finally:
        await podman.close()

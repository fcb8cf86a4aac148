"""The daemon's heart: one `Outrider` a host, which the control API faces (`orchestrator.facade`).

Composition and the loops; decisions are in the pure modules, deployments in their actors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog

from containers.errors import ContainerError
from containers.podman import Podman
from containers.ports import Ports
from containers.spec import LogLine
from hosts.bootid import boot_id
from hosts.facts import HostFacts, Problem
from orchestrator import config as configuration
from orchestrator import governor, locks
from orchestrator.actor import Actor
from orchestrator.admission import Admission
from orchestrator.adopting import Adopter
from orchestrator.chores import Chores
from orchestrator.clock import Clock
from orchestrator.config import Config
from orchestrator.config_diff import Action, diff, model_of
from orchestrator.deployment import Deployment
from orchestrator.errors import ConfigError, NotFound, Refused
from orchestrator.events import Journal
from orchestrator.gateway_link import GatewayLink
from orchestrator.governor import Governing
from orchestrator.host_watch import HostWatch
from orchestrator.jobs import Handle, Jobs
from orchestrator.model_store import AddModel, add, remove
from orchestrator.models import ModelEntry
from orchestrator.paths import Paths
from orchestrator.planning import Planning
from orchestrator.routing import RoutingTable
from orchestrator.runner import Identity, Runner
from orchestrator.steps import Cause, Context
from orchestrator.store import DesiredRow, Store
from orchestrator.supervise import Loops
from orchestrator.timing import Timing
from orchestrator.views import (
    Change,
    DeploymentView,
    Desired,
    EngineView,
    Event,
    Health,
    JobView,
    ModelView,
    ReloadResult,
    Why,
)

log = structlog.get_logger("daemon")


@dataclass(slots=True)
class Parts:
    """What `Outrider.open` put together."""

    paths: Paths
    config: Config
    version: str
    clock: Clock
    timing: Timing
    store: Store
    journal: Journal
    podman: Podman
    host: HostWatch
    gateway: GatewayLink
    routing: RoutingTable
    planning: Planning
    context: Context
    held: list[locks.Lock]
    desired: Sequence[DesiredRow]
    revive: Callable[[], Awaitable[None]] | None


class Outrider:
    """See `orchestrator.facade.Facade` for what each verb promises."""

    def __init__(self, parts: Parts) -> None:
        self._p = parts
        self._actors: dict[str, Actor] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loops = Loops(parts.clock)
        self._jobs = Jobs(parts.clock)
        self._chores: Chores | None = None
        self._adopter = Adopter(parts.context, parts.podman)
        self._adopted = False
        self._started_at = parts.clock.now()
        self._podman_ok: bool | None = None
        self._config_problem: Why | None = None
        self._reloading = asyncio.Lock()
        self.ended = asyncio.Event()
        """Set when somebody asked the daemon to end."""
        for entry in parts.config.models:
            self._define(entry)
        for row in parts.desired:
            actor = self._find(row.deployment)
            if actor is not None:
                actor.deployment.desired, actor.deployment.desired_by = row.desired, row.author

    # opening and closing

    @classmethod
    async def open(
        cls,
        paths: Paths,
        config: Config,
        *,
        podman_socket: str,
        revive: Callable[[], Awaitable[None]] | None,
        clock: Clock,
        timing: Timing,
        version: str,
    ) -> Outrider:
        """Take the locks, open the database, look at the host. Raises `Conflict` when another daemon has the folder.

        `revive` starts a Podman service of our own again; None when Podman is not ours to start.
        """
        held = [await asyncio.to_thread(locks.take_state, paths.state_dir)]
        try:
            host = await HostWatch.start(config.host.name, clock, timing)
            store = await Store.open(paths.database)
        except BaseException:
            held[0].release()
            raise
        gpus, refused = locks.take_gpus(a.pci for a in host.facts().accelerators)
        held += gpus
        for address, error in refused.items():
            host.add_problem(Problem("gpu_locked", None, f"GPU {address}: {error.detail}", error.hint))
        boot = boot_id() or "unknown"
        name = host.facts().host
        last = await store.journal(limit=1)
        journal = Journal(store, clock, host=name, boot_id=boot, last=last[-1].sequence if last else 0)
        if store.set_aside is not None:
            journal.emit("daemon", "database_set_aside", f"the database was unreadable and is now {store.set_aside}")
        routing = RoutingTable(
            boot_id=boot, owner=paths.owner, host=name, revision=await store.revision(int(clock.wall() * 1000))
        )
        gateway = GatewayLink(paths.gateway_socket, clock, timing)
        podman = Podman(podman_socket, call_timeout=timing.podman_call)
        admission = Admission(host.facts, config.host.engine_memory)
        planning = Planning(paths, config, admission, podman)
        runner = Runner(
            podman=podman,
            paths=paths,
            identity=Identity(paths.owner, name),
            admission=admission,
            gateway=gateway,
            ports=Ports(clock.now),
            clock=clock,
            timing=timing,
            refresh=host.read,
        )
        context = Context(paths, clock, timing, store, journal, routing, gateway, admission, planning, runner)
        return cls(
            Parts(
                paths,
                config,
                version,
                clock,
                timing,
                store,
                journal,
                podman,
                host,
                gateway,
                routing,
                planning,
                context,
                held,
                await store.desired(),
                revive,
            )
        )

    def start(self) -> None:
        """Begin the loops. Adoption comes with the first round in which Podman answers."""
        p, timing = self._p, self._p.timing
        p.journal.emit(
            "daemon", "started", f"Outrider {p.version} on {p.host.facts().host}", evidence={"owner": p.paths.owner}
        )
        self._loops.forever("journal", p.journal.write_forever)
        self._loops.every("reconcile", timing.reconcile_period, self._reconcile)
        self._loops.every("telemetry", timing.telemetry_period, p.host.read)
        self._loops.every("governor", timing.governor_period, self._govern)
        self._chores = Chores({"compact": p.store.compact, "sweep": self._sweep})
        self._chores.start()

    async def close(self) -> None:
        """End the daemon, also one that was never started. Engines go on; the next daemon adopts them."""
        p = self._p
        if self._chores is not None:
            await self._chores.close()
        await self._loops.close()
        await self._jobs.close()
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        left = sum(len(a.deployment.live()) for a in self._actors.values())
        p.journal.emit("daemon", "ended", f"the daemon ends; {left} engines go on", evidence={"engines": left})
        await p.journal.flush()
        await p.store.close()
        await p.podman.close()
        await p.host.close()
        for lock in p.held:
            lock.release()

    # deployments

    def _define(self, entry: ModelEntry) -> Actor:
        actor = Actor(Deployment(entry, self._p.host.facts().host), self._p.context)
        self._actors[entry.name] = actor
        if self._adopted:
            self._run(actor)
        return actor

    def _run(self, actor: Actor) -> None:
        name = actor.deployment.name
        self._tasks[name] = asyncio.create_task(actor.run(), name=f"actor-{name}")

    def _actor(self, name: str) -> Actor:
        actor = self._actors.get(name)
        if actor is not None:
            return actor
        for other in self._actors.values():
            if name in other.deployment.entry.aliases:
                return other
        raise NotFound(
            f"no model {name!r}",
            hint="`outrider models` lists what there is; `outrider model add NAME FILE.gguf` adds one",
            evidence={"models": sorted(self._actors)},
        )

    def _find(self, name: str) -> Actor | None:
        """The actor of a public name; a catalogue model gets one when it is first asked for."""
        actor = self._actors.get(name)
        if actor is None:
            entry = self._p.planning.entry(name)
            actor = None if entry is None else (self._actors.get(entry.name) or self._define(entry))
        return actor

    def _known(self, name: str) -> Actor:
        """`_find`, or NotFound."""
        return self._find(name) or self._actor(name)

    async def _reconcile(self) -> None:
        """Observed against known: adopt first, then notice what vanished or belongs to nobody."""
        try:
            if not self._adopted:
                await self._adopt()
            else:
                await self._adopter.relist(list(self._actors.values()))
        except ContainerError as error:
            if self._podman_ok is not False:
                self._p.journal.emit("podman", error.code, error.detail, evidence={"hint": error.hint})
            self._podman_ok = False
            if self._p.revive is not None:
                await self._p.revive()
            return
        if self._podman_ok is False:
            self._p.journal.emit("podman", "podman_back", "Podman answers again")
        self._podman_ok = True
        await self._refresh_plans()

    async def _adopt(self) -> None:
        await self._adopter.adopt(self._find, self._actors)
        await self._sweep()
        self._adopted = True
        for actor in self._actors.values():
            actor.publish()
            self._run(actor)
        self._p.routing.open()

    async def _sweep(self) -> object:
        return await self._adopter.sweep(list(self._actors.values()))

    async def _refresh_plans(self) -> None:
        """What the planner would choose now, for `drifted`. It never restarts anything."""
        for actor in list(self._actors.values()):
            d = actor.deployment
            if d.serving_engine is not None and d.fresh is None:
                with suppress(ContainerError, Refused, NotFound):
                    plan = await self._p.planning.plan(d.entry, speculate=d.speculate, running=d.wanted)
                    d.fresh = plan.digest

    # the governor

    async def _govern(self) -> None:
        now, scale = self._p.clock.now(), self._p.timing.scale
        for actor in list(self._actors.values()):
            d = actor.deployment
            policy = d.entry.speculation
            if policy.policy != "qps" or d.busy or d.serving_engine is None or d.desired is not Desired.RUNNING:
                continue
            rate = self._p.gateway.rate(d.name)
            d.governor = governor.observe(d.governor, policy, rate=rate, now=now)
            if not d.speculating and d.speculate:
                continue  # the plan itself has no speculation: nothing to drop or resume
            decision = governor.decide(
                d.governor, policy, speculating=d.speculating, rate=rate, dwell=policy.dwell_s * scale, now=now
            )
            if decision.action is Governing.KEEP:
                continue
            resume = decision.action is Governing.RESUME
            self._p.journal.emit(
                "governor",
                "speculation_resumed" if resume else "speculation_dropped",
                f"{d.name}: {rate:.2f} requests/s against {decision.evidence['threshold']}",
                deployment=d.name,
                evidence={"reason": decision.reason, **decision.evidence},
            )
            d.governor = replace(d.governor, above_since=None, below_since=None)
            await actor.replan(
                Cause(decision.reason, "governor", automatic=True, evidence=decision.evidence), speculate=resume
            )

    # what the API asks

    async def health(self) -> Health:
        p = self._p
        problems = [Why(x.code, x.detail, x.hint) for x in p.host.facts().problems if x.vendor is None]
        if self._config_problem is not None:
            problems.append(self._config_problem)
        if self._podman_ok is False:
            problems.append(Why("podman_unreachable", "Podman does not answer", "systemctl status podman.socket"))
        return Health(
            ok=self._podman_ok is not False,
            version=p.version,
            host=p.host.facts().host,
            boot_id=boot_id() or "unknown",
            owner=p.paths.owner,
            uptime_s=round(p.clock.now() - self._started_at, 3),
            podman=self._podman_ok,
            gateway=p.gateway.heard,
            loops=self._loops.ages(),
            problems=tuple(problems),
        )

    async def host(self) -> HostFacts:
        return self._p.host.facts()

    async def models(self) -> Sequence[ModelView]:
        return await self._p.planning.models()

    async def plan(self, model: str, *, what_if: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        entry = self._p.planning.entry(model)
        if entry is None:
            raise NotFound(f"no model {model!r}", hint="`outrider models` lists what there is")
        return (await self._p.planning.planned(entry, what_if=what_if)).to_dict()

    async def deployments(self) -> Sequence[DeploymentView]:
        return [self._actors[name].view() for name in sorted(self._actors)]

    async def deployment(self, name: str) -> DeploymentView:
        return self._actor(name).view()

    async def set_desired(self, name: str, desired: Desired, *, author: str) -> DeploymentView:
        actor = self._known(name) if desired is Desired.RUNNING else self._actor(name)
        d = actor.deployment
        if (d.desired, d.desired_by) != (desired, author):
            await self._p.store.set_desired(d.name, desired, author, self._p.clock.wall())
            self._p.journal.emit(
                "desired",
                f"desired_{desired}",
                f"{author} wants {d.name} {desired}",
                deployment=d.name,
                evidence={"by": author},
            )
        await actor.set_desired(desired, author)
        return actor.view()

    async def restart(self, name: str, *, author: str) -> DeploymentView:
        actor = self._running(name)
        self._p.journal.emit(
            "desired", "restart", f"{author} restarts {name}", deployment=actor.deployment.name, evidence={"by": author}
        )
        await actor.restart()
        return actor.view()

    async def apply(self, name: str, *, author: str) -> DeploymentView:
        actor = self._running(name)
        await actor.replan(Cause("apply", author))
        return actor.view()

    async def drain(self, name: str, *, author: str) -> DeploymentView:
        actor = self._running(name)
        self._p.journal.emit(
            "desired", "drain", f"{author} drains {name}", deployment=actor.deployment.name, evidence={"by": author}
        )
        await actor.drain()
        return actor.view()

    def _running(self, name: str) -> Actor:
        actor = self._actor(name)
        if actor.deployment.desired is not Desired.RUNNING:
            raise Refused(f"{name} is not meant to run", hint=f"`outrider start {name}` starts it")
        return actor

    async def engines(self) -> Sequence[EngineView]:
        return [e for d in await self.deployments() for e in d.engines]

    async def jobs(self) -> Sequence[JobView]:
        return self._jobs.list()

    async def job(self, job_id: str) -> JobView:
        return self._jobs.get(job_id)

    async def cancel_job(self, job_id: str) -> JobView:
        return await self._jobs.cancel(job_id)

    async def events(
        self, *, since: int = 0, follow: bool = False, deployment: str | None = None
    ) -> AsyncIterator[Event]:
        async for event in self._p.journal.follow(since=since, follow=follow, deployment=deployment):
            yield event

    async def logs(self, name: str, *, tail: int | None = 100, follow: bool = False) -> AsyncIterator[LogLine]:
        d = self._actor(name).deployment
        engine = d.serving_engine or max(d.live(), key=lambda e: e.generation, default=None)
        if engine is None or engine.container_id is None:
            for line in list(d.last_log)[-tail:] if tail is not None else d.last_log:
                yield line
            return
        async for line in self._p.podman.logs(engine.container_id, tail=tail, follow=follow):
            yield line

    # models and configuration

    async def add_model(self, request: Mapping[str, Any]) -> JobView:
        asked = AddModel.read(request)

        async def work(handle: Handle) -> str:
            added = await add(
                asked,
                self._p.paths.store,
                self._p.paths.models_d,
                progress=lambda done, total: handle.progress("copying and checking", done, total),
            )
            await self.reload(dry_run=False)
            return f"model {added.entry.name} is ready to start"

        return self._jobs.start("model_add", asked.name, work)

    async def remove_model(self, name: str, *, weights: bool) -> None:
        actor = self._actor(name)
        if actor.deployment.live() or actor.deployment.desired is Desired.RUNNING:
            raise Refused(f"{name} is running", hint=f"`outrider stop {name}` first")
        await remove(actor.deployment.name, self._p.paths.store, self._p.paths.models_d, weights=weights)
        await self.reload(dry_run=False)

    async def reload(self, *, dry_run: bool) -> ReloadResult:
        async with self._reloading:
            try:
                new = await asyncio.to_thread(configuration.load, self._p.paths)
            except ConfigError as error:
                self._p.journal.emit("config", error.code, str(error), evidence=error.evidence)
                self._config_problem = Why(error.code, error.detail, error.hint)
                raise
            changes = diff(self._p.config, new)
            if dry_run:
                return ReloadResult(False, changes)
            self._config_problem = None
            await self._take_up(new, changes)
            return ReloadResult(True, changes)

    async def _take_up(self, new: Config, changes: Sequence[Change]) -> None:
        """Apply only what changed: engines of untouched models never notice."""
        self._p.config = new
        self._p.planning.configure(new)
        if changes:
            self._p.journal.emit(
                "config",
                "reloaded",
                f"{len(changes)} changes",
                evidence={"changes": [f"{c.subject}: {c.kind} {c.detail}" for c in changes][:50]},
            )
        everything = any(model_of(c) is None and c.action == Action.APPLY for c in changes)
        acting = {model_of(c) for c in changes if c.action == Action.APPLY}
        entries = {entry.name: entry for entry in new.models}
        for name in [n for n in self._actors if n not in entries and self._p.planning.entry(n) is None]:
            await self._undefine(name)
        for name, entry in entries.items():
            actor = self._actors.get(name)
            if actor is None:
                self._define(entry)
            else:
                replan = everything or name in acting
                await actor.define(entry, Cause("reload", "configuration") if replan else None)

    async def _undefine(self, name: str) -> None:
        """A model is no longer defined: its engine stops, and nothing is desired of it."""
        actor = self._actors[name]
        await actor.set_desired(Desired.STOPPED, "configuration")
        await self._all_stopped([actor])
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        del self._actors[name]
        self._p.routing.publish(name, None)
        self._p.gateway.forget(name)
        await self._p.store.forget(name)

    # the gateway, and the end

    async def routing_tables(self) -> AsyncIterator[Mapping[str, Any]]:
        async for table in self._p.routing.follow():
            yield table

    async def gateway_report(self, report: Mapping[str, Any]) -> None:
        self._p.gateway.report(report)

    async def shutdown(self, *, engines: bool) -> None:
        if engines:
            for actor in self._actors.values():
                await actor.halt()
            await self._all_stopped(list(self._actors.values()))
        self.ended.set()

    async def _all_stopped(self, actors: Sequence[Actor]) -> None:
        limit = self._p.timing.drain + self._p.timing.shutdown
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                for actor in actors:
                    await actor.settled()

    async def metrics(self) -> Mapping[str, Any]:
        p = self._p
        deployments = [a.deployment for a in self._actors.values()]
        switches: dict[str, dict[str, int]] = {}
        for d in deployments:
            switches[d.name] = dict(d.switches)
        return {
            "events": {f"{kind}/{code}": n for (kind, code), n in p.journal.counts.items()},
            "requests": p.gateway.totals(),
            "engines": p.gateway.engines(),
            "rates": {name: round(p.gateway.rate(name), 3) for name in self._actors},
            "switches": switches,
            "memory_expected": {
                d.name: {k: v for k, v in asdict(d.wanted.expected_memory).items() if v is not None}
                for d in deployments
                if d.wanted is not None
            },
            "reconcile_pass_seconds": round(self._loops.took.get("reconcile", 0.0), 6),
            "reserved_bytes": p.context.admission.promised_bytes(),
            "table_revision": p.routing.revision,
        }

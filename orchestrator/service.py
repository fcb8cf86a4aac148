"""The daemon's heart: one `Outrider` a host, which the control API faces (`orchestrator.facade`).

The loops and the verbs. Decisions are in the pure modules, deployments in their actors.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import structlog

from containers.spec import LogLine
from hosts.facts import HostFacts
from orchestrator.adopting import Adopter
from orchestrator.assembly import Parts, watch_devices
from orchestrator.chores import Chores
from orchestrator.config import Config
from orchestrator.doctor.asking import by_the_daemon
from orchestrator.doctor.patrol import Patrol
from orchestrator.engine_watches import EngineWatches
from orchestrator.errors import Refused
from orchestrator.governing import govern
from orchestrator.housekeeping import Housekeeping, Wish, may_pull
from orchestrator.issue_watch import IssueWatch
from orchestrator.jobs import Handle
from orchestrator.model_store import AddModel, add
from orchestrator.reconciling import Reconciliation
from orchestrator.registry import Registry
from orchestrator.reloading import Reloading
from orchestrator.supervise import Loops
from orchestrator.telemetry import TelemetryView, watched
from orchestrator.telling.amounts import count
from orchestrator.telling.desk import Desk, Told
from orchestrator.verbs import Verbs
from orchestrator.views import (
    DeploymentView,
    Desired,
    EngineView,
    Event,
    Health,
    ImageView,
    Issue,
    JobView,
    MeasuredView,
    ModelView,
    PinView,
    PruneResult,
    ReloadResult,
    RoomView,
    Why,
)
from orchestrator.weights.manager import Weights
from orchestrator.weights.request import PullPreview

log = structlog.get_logger("daemon")


class Outrider(Told):
    """See `orchestrator.facade.Facade` for what each verb promises."""

    def __init__(self, parts: Parts) -> None:
        self._p = parts
        self._c = parts.context
        self._registry = Registry(self._c, parts.planning, parts.host.facts().host)
        self._reloading = Reloading(parts.config, self._c, parts.planning, self._registry)
        self._adopter = Adopter(self._c, parts.podman)
        self._loops = Loops(self._c.clock)
        self._rounds = Reconciliation(
            self._c,
            self._registry,
            adopter=self._adopter,
            planning=parts.planning,
            loops=self._loops,
            revive=parts.revive,
        )
        self._jobs = parts.jobs
        self._housekeeping = Housekeeping(
            self._c,
            parts.podman,
            self._jobs,
            config=lambda: self.config,
            deployments=lambda: [actor.deployment for actor in self._registry.all()],
        )
        self._devices = watch_devices(parts, self._registry.all)
        patrol = Patrol(
            self._c.issues, parts.host.facts, lambda facts: by_the_daemon(self._c.paths, self.config, facts)
        )
        self._chores = Chores(
            {
                "compact": self._c.store.compact,
                "measurements": parts.observing.compact,
                "sweep": self._rounds.sweep,
                "pull_leftovers": self._c.images.pulls.sweep,
                "doctor": patrol.look,
            },
            soon={"doctor": self._c.timing.doctor_first},
        )
        self._weights = Weights(
            self._c,
            parts.planning,
            self._jobs,
            config=lambda: self._reloading.config,
            boot=parts.boot_id,
            reload=lambda: self.reload(dry_run=False),
            add=self.add_model,
        )
        self._watches = EngineWatches(self._c, parts.roots)
        self._verbs = Verbs(self._c, self._registry)
        self._desk = Desk(self._c, self._registry, health=self.health, loops=self._loops, paces=parts.observing.paces)
        self._issue_watch = IssueWatch(self._c.issues, self._desk.sight)
        self._started_at = self._c.clock.now()
        self.ended = asyncio.Event()
        """Set when somebody asked the daemon to end."""
        for entry in parts.config.models:
            self._registry.define(entry)
        self._c.images.attend(self._image_users)
        parts.desk.actors = self._registry.all
        for row in parts.desired:
            actor = self._registry.own(row.deployment)
            if actor is not None:
                actor.deployment.desired, actor.deployment.desired_by = row.desired, row.author
                actor.deployment.drained = row.drained

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._reloading.config

    # opening and closing

    def start(self) -> None:
        """Begin the loops. Adoption comes with the first round in which Podman answers."""
        timing = self._c.timing
        self._c.journal.emit(
            "daemon",
            "started",
            f"Outrider {self._p.version} on {self._p.host.facts().host}",
            evidence={"owner": self._c.paths.owner},
        )
        self._reloading.caution()
        self._loops.forever("journal", self._c.journal.write_forever)
        self._p.pauses.listeners += [self._loops.refresh, self._watches.health.awake_again]
        self._loops.every("pauses", timing.pause_look, self._p.pauses.look)
        self._loops.every("reconcile", timing.reconcile_period, self._rounds.look)
        self._loops.every("guard", timing.guard_period, lambda: self._p.guard.look(self._registry.all()))
        self._p.host.watch(lambda: watched(a.deployment for a in self._registry.all()))
        self._loops.every("telemetry", timing.telemetry_period, self._p.host.read)
        self._loops.every(
            "measuring",
            timing.telemetry_period,
            lambda: self._p.observing.look([a.deployment for a in self._registry.all()]),
        )
        self._loops.every("devices", timing.device_look, self._devices.look)
        self._loops.every("disks", timing.disk_period, self._housekeeping.look)
        self._watches.start(self._loops, self._registry.all)
        self._loops.every("demand", timing.demand_period, self._look_at_demand)
        self._loops.every("governor", timing.governor_period, lambda: govern(self._c, self._registry.all()))
        self._loops.every("issues", timing.reconcile_period, self._issue_watch.look)
        self._chores.start()

    async def looked(self) -> None:
        """Wait until what runs was adopted, or until Podman is known to be away."""
        await self._loops.first_round("reconcile")

    def on_pulse(self, pulse: Callable[[], object], allowance: float) -> None:
        """Have `pulse` called whenever the reconcile loop gets on, unless another loop has been
        stuck for `allowance` seconds. Podman being away is no reason: waiting for it has a deadline."""
        self._loops.pulse("reconcile", pulse, allowance)

    async def close(self) -> None:
        """End the daemon. Engines go on; the next daemon adopts them."""
        try:
            await self._chores.close()
            await self._loops.close()
            await self._watches.close()
            await self._devices.close()
            await self._jobs.close()
            await self._adopter.close()
            await self._registry.close(self._c.timing.shutdown)
            await self._c.marks.withdraw()
            left = sum(len(a.deployment.live()) for a in self._registry.all())
            self._c.journal.emit(
                "daemon",
                "ended",
                f"the daemon ends; {count(left, 'engine goes', 'engines go')} on",
                evidence={"engines": left},
            )
        finally:
            await self._p.closing.aclose()  # the database's thread would keep the process alive

    # what the API asks: the daemon and its host

    async def health(self) -> Health:
        problems = [Why(x.code, x.detail, x.hint) for x in self._p.host.facts().problems if x.vendor is None]
        if self._reloading.problem is not None:
            problems.append(self._reloading.problem)
        if self._rounds.podman_ok is False:
            problems.append(Why("podman_unreachable", "Podman does not answer", "systemctl status podman.socket"))
        return Health(
            ok=self._rounds.podman_ok is not False,
            version=self._p.version,
            host=self._p.host.facts().host,
            boot_id=self._p.boot_id,
            owner=self._c.paths.owner,
            uptime_s=round(self._c.clock.now() - self._started_at, 3),
            podman=self._rounds.podman_ok,
            gateway=self._c.gateway.heard,
            loops=self._loops.ages(),
            problems=tuple(problems),
        )

    async def host(self) -> HostFacts:
        return self._p.host.shown()

    async def telemetry(self, *, since: int = 0, limit: int | None = None) -> Sequence[TelemetryView]:
        return self._p.host.telemetry(since, limit)

    async def issues(self) -> Sequence[Issue]:
        return self._c.issues.list()

    async def shutdown(self, *, engines: bool) -> None:
        if engines:
            await self._end_engines()
        self.ended.set()

    async def _end_engines(self) -> None:
        limit = self._c.timing.drain + self._c.timing.shutdown
        with suppress(TimeoutError):
            async with asyncio.timeout(self._c.timing.shutdown):
                await self._rounds.adopted.wait()  # before that nobody knows what runs
        actors = self._registry.all()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                for actor in actors:
                    await actor.halt()
        await self._registry.settled(actors, limit)

    # models and plans

    async def models(self) -> Sequence[ModelView]:
        return await self._p.planning.models()

    async def plan(self, model: str, *, what_if: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        await self._p.host.freshen()
        return await self._p.planning.explained(self._p.planning.find(model), what_if=what_if)

    # images

    def _image_users(self) -> Mapping[str, tuple[bool, Sequence[str]]]:
        return {a.deployment.name: a.deployment.images() for a in self._registry.all()}

    def _look_for_drift(self) -> None:
        """A name may mean another image now, so what would be planned is asked for again."""
        for actor in self._registry.all():
            actor.deployment.fresh = None

    async def images(self) -> Sequence[ImageView]:
        return await self._c.images.list()

    async def pull_image(self, reference: str, *, author: str) -> JobView:
        return self._c.images.pull(reference, author=author)

    async def pin_image(self, reference: str, digest: str | None, *, author: str) -> PinView:
        pin = await self._c.images.pin(reference, digest, author=author)
        self._look_for_drift()
        return pin

    async def unpin_image(self, reference: str, *, author: str) -> None:
        await self._c.images.unpin(reference, author=author)
        self._look_for_drift()

    async def remove_image(self, reference: str, *, force: bool, author: str) -> ImageView:
        return await self._c.images.remove(reference, force=force, author=author)

    # models

    async def add_model(self, request: Mapping[str, Any]) -> JobView:
        asked = AddModel.read(request)
        may_pull(self._c.issues, "model_add")

        async def work(handle: Handle) -> str:
            added = await add(
                asked,
                self._c.paths.store,
                self._c.paths.models_d,
                progress=lambda done, total: handle.progress("copying and checking", done, total),
                room=self._weights.room_for(asked.name),
            )
            await self.reload(dry_run=False)
            return f"model {added.entry.name} is ready to start"

        return self._jobs.start("model_add", asked.name, work)

    async def remove_model(self, name: str, *, weights: bool) -> None:
        entry = self._p.planning.find(name)
        actor = self._registry.own(entry.name)
        if actor is not None and (actor.deployment.live() or actor.deployment.desired is not Desired.STOPPED):
            raise Refused(f"{entry.name} is running", hint=f"`outrider stop {entry.name}` first")
        await self._weights.remove(entry, weights=weights)
        await self.reload(dry_run=False)

    async def pull_model(self, request: Mapping[str, Any]) -> JobView:
        return await self._weights.pull(request)

    async def preview_pull(self, request: Mapping[str, Any]) -> PullPreview:
        return await self._weights.preview(request)

    async def verify_model(self, name: str) -> JobView:
        return await self._weights.verify(name)

    async def reload(self, *, dry_run: bool) -> ReloadResult:
        return await self._reloading.reload(dry_run=dry_run)

    # deployments

    async def deployments(self) -> Sequence[DeploymentView]:
        return [actor.view() for actor in self._registry.all()]

    async def deployment(self, name: str) -> DeploymentView:
        return self._registry.get(name).view()

    async def set_desired(self, name: str, desired: Desired, *, author: str, force: bool = False) -> DeploymentView:
        return await self._verbs.set_desired(name, desired, author=author, force=force)

    async def restart(self, name: str, *, author: str) -> DeploymentView:
        return await self._verbs.restart(name, author=author)

    async def apply(self, name: str, *, author: str) -> DeploymentView:
        return await self._verbs.apply(name, author=author)

    async def drain(self, name: str, *, author: str) -> DeploymentView:
        return await self._verbs.drain(name, author=author)

    async def engines(self) -> Sequence[EngineView]:
        return [e for d in await self.deployments() for e in d.engines]

    async def logs(self, name: str, *, tail: int | None = 100, follow: bool = False) -> AsyncIterator[LogLine]:
        d = self._registry.get(name).deployment
        engine = d.serving_engine or max(d.live(), key=lambda e: e.generation, default=None)
        if engine is None or engine.container_id is None:
            for line in list(d.last_log)[-tail:] if tail is not None else d.last_log:
                yield line
            return
        async for line in self._p.podman.logs(engine.container_id, tail=tail, follow=follow):
            yield line

    async def room(self, name: str) -> RoomView:
        d = self._registry.known(name).deployment
        plan = d.wanted or await self._p.planning.plan(d.entry, speculate=d.speculate)
        return self._p.desk.preview(d, plan)

    async def _look_at_demand(self) -> None:
        if not self._rounds.adopted.is_set():
            return
        for actor in self._registry.all():
            if self._p.desk.on_by_default(actor.deployment):
                await self.set_desired(actor.deployment.name, Desired.ON_DEMAND, author="configuration")
        await self._p.desk.look()

    # what was learned from running

    async def measured(self) -> Sequence[MeasuredView]:
        return await self._p.observing.views()

    async def forget_measured(self, model: str | None) -> int:
        return await self._p.observing.forget(model)

    # housekeeping

    async def prune(self, wish: Wish, *, dry_run: bool, only: Collection[str] | None = None) -> PruneResult:
        return await self._housekeeping.prune(wish, dry_run=dry_run, only=only)

    # jobs, events, metrics

    async def jobs(self) -> Sequence[JobView]:
        return self._jobs.list()

    async def job(self, job_id: str) -> JobView:
        return self._jobs.get(job_id)

    async def cancel_job(self, job_id: str) -> JobView:
        return await self._jobs.cancel(job_id)

    async def events(
        self, *, since: int = 0, follow: bool = False, deployment: str | None = None
    ) -> AsyncIterator[Event]:
        async for event in self._c.journal.follow(since=since, follow=follow, deployment=deployment):
            yield event

    async def metrics(self) -> Mapping[str, Any]:
        deployments = [a.deployment for a in self._registry.all()]
        return {
            "events": {f"{kind}/{code}": n for (kind, code), n in self._c.journal.counts.items()},
            "requests": self._c.gateway.totals(),
            "engines": self._c.gateway.engines(),
            "rates": {d.name: round(self._c.gateway.rate(d.name), 3) for d in deployments},
            "switches": {d.name: dict(d.switches) for d in deployments},
            "memory_expected": {
                d.name: {k: v for k, v in asdict(d.wanted.expected_memory).items() if v is not None and k != "devices"}
                for d in deployments
                if d.wanted is not None
            },
            "reconcile_pass_seconds": round(self._loops.took.get("reconcile", 0.0), 6),
            "tasks": len(asyncio.all_tasks()),
            "reserved_bytes": self._c.admission.promised_bytes(),
            "table_revision": self._c.routing.revision,
        }

    # the gateway

    async def routing_tables(self) -> AsyncIterator[Mapping[str, Any]]:
        async for table in self._c.routing.follow():
            yield table

    async def gateway_report(self, report: Mapping[str, Any]) -> None:
        self._c.gateway.report(report)
        self._p.desk.heard()

"""Putting the daemon's parts together: locks, database, host, Podman, planner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from containers.podman import Podman
from containers.ports import Ports
from hosts.bootid import boot_id
from hosts.cgroups import container_of_pid
from hosts.device_events import DeviceEvent
from hosts.facts import Problem
from hosts.kernel_log import KernelLog
from hosts.nvidia_events import NvidiaEvents
from hosts.nvidia_serving import module_epoch
from hosts.pressure import read_pressure
from hosts.roots import Roots
from orchestrator import image_pulls, locks
from orchestrator.actor import Actor
from orchestrator.admission import Admission
from orchestrator.automation import Automation
from orchestrator.canary import Canary
from orchestrator.canary.records import Records
from orchestrator.clock import Clock
from orchestrator.config import Config
from orchestrator.context import Context
from orchestrator.demand.desk import Desk
from orchestrator.device_gate import DeviceGate
from orchestrator.device_reports import Processes
from orchestrator.device_wait import DeviceWait
from orchestrator.device_watch import DeviceWatch, Tools
from orchestrator.events import Journal
from orchestrator.gateway_link import GatewayLink
from orchestrator.guard import Guard
from orchestrator.host_watch import HostWatch
from orchestrator.housekeeping import may_pull
from orchestrator.image_pulls import ImagePulls
from orchestrator.image_sources import ImageSources
from orchestrator.images import Images
from orchestrator.issues import Issues
from orchestrator.jobs import Jobs
from orchestrator.loading_marks import LoadingMarks
from orchestrator.measuring.ledger import Ledger
from orchestrator.measuring.observing import Observing
from orchestrator.paths import Paths
from orchestrator.pause_watch import PauseWatch
from orchestrator.planning import Planning
from orchestrator.restarting.ledger import Ledger as CrashLedger
from orchestrator.routing import RoutingTable
from orchestrator.runner import Identity, Runner
from orchestrator.stopping.clearing import Clearing, Sightings
from orchestrator.stopping.quarantine import Quarantine
from orchestrator.store import DesiredRow, Store
from orchestrator.timing import Timing
from orchestrator.turns import Turns


@dataclass(frozen=True, slots=True)
class Parts:
    """What `assemble` put together. `closing` ends all of it, in order."""

    config: Config
    version: str
    boot_id: str
    podman: Podman
    host: HostWatch
    roots: Roots
    planning: Planning
    context: Context
    guard: Guard
    desk: Desk
    jobs: Jobs
    gate: DeviceGate
    observing: Observing
    pauses: PauseWatch
    desired: Sequence[DesiredRow]
    revive: Callable[[], Awaitable[None]] | None
    closing: AsyncExitStack


async def assemble(
    paths: Paths,
    config: Config,
    *,
    podman_socket: str,
    revive: Callable[[], Awaitable[None]] | None,
    clock: Clock,
    timing: Timing,
    version: str,
) -> Parts:
    """Take the locks, open the database, look at the host.

    `revive` starts a Podman service of our own again; None when Podman is not ours to start.
    Raises `Conflict` when another daemon has the folder, `DatabaseFailed`; nothing stays open then.
    """
    async with AsyncExitStack() as closing:
        held = await asyncio.to_thread(locks.take_state, paths.state_dir)
        closing.callback(held.release)
        roots = Roots.from_environ()
        host = await HostWatch.start(config.host.name, timing, roots, clock)
        closing.push_async_callback(host.close)
        store = await Store.open(paths.database)
        closing.push_async_callback(store.close)
        podman = Podman(podman_socket, call_timeout=timing.podman_call)
        closing.push_async_callback(podman.close)
        for lock in _lock_gpus(host, [a.pci for a in host.facts().accelerators]):
            closing.callback(lock.release)
        boot, name = boot_id(roots) or "unknown", host.facts().host
        last = await store.journal(limit=1)
        journal = Journal(store, clock, host=name, boot_id=boot, last=last[-1].sequence if last else 0)
        closing.push_async_callback(journal.flush)
        if store.set_aside is not None:
            journal.emit("daemon", "database_set_aside", f"the database was unreadable and is now {store.set_aside}")
        issues = Issues(journal, clock)
        marks = LoadingMarks(paths.loading, boot, clock, issues)
        await asyncio.to_thread(marks.inherit)
        revision = await store.revision(int(clock.wall() * 1000))
        gateway = GatewayLink(paths.gateway_socket, clock, timing)
        admission = Admission(host.facts, config.host.engine_memory)
        jobs = Jobs(clock)
        # the settings are those of the planning, which a reload changes
        sources = ImageSources(lambda: planning.image_settings)
        pulls = ImagePulls(
            podman=podman,
            sources=sources,
            jobs=jobs,
            journal=journal,
            clock=clock,
            timing=timing,
            low_water=lambda: planning.low_water,
            may_pull=lambda: may_pull(issues, image_pulls.KIND),
            known_bytes=lambda reference: images.known_bytes(reference),  # noqa: PLW0108 - made below
            pulled=lambda image, reference: store.note_pulled(image, reference, clock.wall()),
        )
        images = Images(
            podman=podman,
            store=store,
            journal=journal,
            clock=clock,
            sources=sources,
            pulls=pulls,
            pulls_at_start=lambda: planning.image_settings.pull == "missing",
        )
        await images.read()
        ledger = await Ledger.open(paths.measurements)
        closing.push_async_callback(ledger.close)
        observing = Observing(
            ledger,
            host=host,
            podman=podman,
            clock=clock,
            timing=timing,
            client=lambda engine: runner.client(engine),  # noqa: PLW0108 - made below
            traffic=gateway.told,
        )
        await observing.read()
        planning = Planning(
            paths, config, admission, podman, clock, images=images, timing=timing, measured=lambda: observing.known
        )
        gate = DeviceGate(host.facts, planning.on_cpu)
        sightings, quarantine = Sightings(), Quarantine(issues, host.set_quarantined)
        host.listeners += [sightings.on_sample, quarantine.on_sample]
        clearing = Clearing(
            read=host.read,
            facts=host.facts,
            taken=gate.taken,
            sightings=sightings,
            quarantine=quarantine,
            journal=journal,
            clock=clock,
            timing=timing,
        )
        runner = Runner(
            podman=podman,
            paths=paths,
            identity=Identity(paths.owner, name),
            admission=admission,
            model_folders=lambda: planning.model_folders,
            gateway=gateway,
            ports=await asyncio.to_thread(Ports, clock.now, paths.engine_ports, boot=boot),
            clock=clock,
            timing=timing,
            log_bytes=lambda: planning.log_bytes,
            marks=marks,
            roots=roots,
            refresh=host.read,
            clearing=clearing,
            journal=journal,
            canary=Canary(
                Records(ledger),
                facts=host.facts,
                journal=journal,
                clock=clock,
                timing=timing,
                learned=observing.read,
            ),
        )
        routing = RoutingTable(boot_id=boot, owner=paths.owner, host=name, revision=revision)
        guard = Guard(
            config.guard,
            read=lambda: read_pressure(roots),
            admission=admission,
            runner=runner,
            journal=journal,
            issues=issues,
            clock=clock,
            timing=timing,
        )
        needs = DeviceWait(
            facts=host.facts,
            probe=host.probe,
            freshen=host.freshen,
            need=planning.device_need,
            memory=store,
            issues=issues,
        )
        automation = await _automation(store)
        shared = (paths, clock, timing, store, journal, issues, routing, gateway, admission, planning, runner)
        crashes = await CrashLedger.open(store, boot)
        pauses = PauseWatch(journal, clock, timing)
        desk = Desk(
            config.demand,
            config.group,
            admission=admission,
            gateway=gateway,
            journal=journal,
            automation=automation,
            clock=clock,
            timing=timing,
            awake_since=pauses.awake_since,
        )
        context = Context(*shared, marks, guard, images, gate, needs, Turns(), automation, crashes, pauses, desk)
        known = (config, version, boot, podman, host, roots, planning)
        desired = await store.desired()
        return Parts(*known, context, guard, desk, jobs, gate, observing, pauses, desired, revive, closing.pop_all())


async def _automation(store: Store) -> Automation:
    """What a person paused, and has not resumed since."""
    automation = Automation()
    for row in await store.paused():
        automation.pause(row.name, row.author)
    return automation


def watch_devices(parts: Parts, actors: Callable[[], Sequence[Actor]]) -> DeviceWatch:
    """The watch over this host's GPUs, fed by NVML, by the kernel's log and by each reading of the host."""

    def claim(addresses: Sequence[str]) -> None:
        for lock in _lock_gpus(parts.host, addresses):
            parts.closing.callback(lock.release)

    def nvml(deliver: Callable[[DeviceEvent], None]) -> NvidiaEvents:
        return NvidiaEvents(deliver, parts.roots, check=parts.context.timing.device_look)

    def kernel(deliver: Callable[[DeviceEvent], None]) -> KernelLog:
        return KernelLog(deliver, lambda: tuple(parts.gate.verdicts), roots=parts.roots)

    context = parts.context
    watch = DeviceWatch(
        Tools(
            host=parts.host,
            gate=parts.gate,
            journal=context.journal,
            issues=context.issues,
            clock=context.clock,
            actors=actors,
            processes=Processes(
                container_of=lambda pid: container_of_pid(parts.roots, pid),
                exists=lambda pid: (parts.roots.proc / str(pid)).is_dir(),
            ),
            module=lambda: module_epoch(parts.roots),
            sources=(nvml, kernel),
            claim=claim,
        )
    )
    parts.host.listeners.append(watch.on_sample)
    parts.host.probed.append(watch.on_probe)
    return watch


def _lock_gpus(host: HostWatch, addresses: Iterable[str]) -> Sequence[locks.Lock]:
    """The locks on these GPUs; one that another daemon holds is a problem of the host."""
    held, refused = locks.take_gpus(addresses)
    for address, error in refused.items():
        host.add_problem(Problem("gpu_locked", None, f"GPU {address}: {error.detail}", error.hint))
    return held

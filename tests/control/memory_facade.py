"""A daemon that lives in memory: `Facade` kept honestly, without engines behind it.

It keeps models, deployments, jobs and a journal, tells followers of each change, and
counts its open iterators, so that tests can see that the API closes them.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from containers.spec import LogLine
from hosts.facts import Accelerator, Cpu, HostFacts, Memory, Problem
from hosts.gpu_users import GpuUser
from hosts.host_sample import HostSample
from orchestrator.errors import ConfigError, DoesNotFit, NotFound, OutriderError, Refused
from orchestrator.housekeeping.unused import Wish
from orchestrator.model_store import AddModel
from orchestrator.plan import Evidence, ExpectedMemory, Method, Plan, Planned, Reason, Rejected
from orchestrator.telemetry import AcceleratorReading, EngineReading, TelemetryView
from orchestrator.telling.story import Entry, Story, tell
from orchestrator.views import (
    Change,
    DeploymentView,
    Desired,
    EngineView,
    Event,
    Health,
    ImageNeedsView,
    ImageView,
    Issue,
    JobState,
    JobView,
    MeasuredView,
    ModelView,
    PauseView,
    PinView,
    PrunedThing,
    PruneResult,
    ReloadResult,
    RoomView,
    State,
    Why,
)
from orchestrator.weights.request import PullPreview, PullRequest

HOST = "testhost"
BOOT = "6f0c3f9e-0000-4000-8000-000000000001"
GIB = 1024**3
IMAGE = "ghcr.io/ggml-org/llama.cpp:server-cuda"


class MemoryFacade:
    """Deployments `smollm2` (alias `org/SmolLM2`) and `huge` (never fits)."""

    def __init__(self) -> None:
        self.fail: Callable[[str], None] = lambda call: None
        """Called with each call's name first: a test makes it raise."""
        self.gate: asyncio.Event | None = None
        """When set, `drain` waits for it, as it would for requests in flight."""
        self.gate_waiters = 0
        self.open_iterators = 0
        self.lines_made = 0
        self.endless_log = False
        self.reports: list[Mapping[str, Any]] = []
        self.shutdowns: list[bool] = []
        self.wishes: list[tuple[Wish, bool, Collection[str] | None]] = []
        self.journal: list[Event] = []
        self.paused: list[PauseView] = []
        self.log_lines = [LogLine("stderr", f"line {n}") for n in range(1, 6)]
        self.table: dict[str, Any] = {"schema": 1, "revision": 1, "owner": "0" * 16, "models": []}
        self.aliases = {"org/SmolLM2": "smollm2"}
        self._changed = asyncio.Condition()
        self._jobs: dict[str, JobView] = {}
        needs = ImageNeedsView("nvidia", (), (), "525.60.13", "12.8", None, None, None, "a table")
        self._images = {
            IMAGE: ImageView(
                IMAGE, "sha256:" + "2" * 64, "sha256:" + "1" * 64, 9 * GIB, None, (), ("llama-cpp-cuda",), False, needs
            )
        }
        self._models = {
            "smollm2": ModelView("smollm2", ("org/SmolLM2",), ("q8-0",), (), "catalogue", 150_000_000, True),
            "huge": ModelView("huge", (), ("bf16",), (), "models.d/huge.toml", 900 * GIB, False, "weights are missing"),
        }
        self._deployments = {name: self._stopped(name) for name in self._models}

    # what tests do to it

    async def happen(self, code: str, text: str, deployment: str | None = None) -> Event:
        """Write to the journal and wake followers."""
        event = Event(len(self.journal) + 1, 1_760_000_000.0, HOST, BOOT, "decision", code, text, deployment, {"n": 1})
        async with self._changed:
            self.journal.append(event)
            self._changed.notify_all()
        return event

    async def route(self) -> None:
        """Publish a new routing table."""
        async with self._changed:
            self.table = {**self.table, "revision": self.table["revision"] + 1}
            self._changed.notify_all()

    async def print_line(self, text: str) -> None:
        """The engine writes to its log."""
        async with self._changed:
            self.log_lines.append(LogLine("stdout", text))
            self._changed.notify_all()

    # the protocol

    async def health(self) -> Health:
        self.fail("health")
        why = Why("podman_unreachable", "Podman does not answer", "systemctl start podman.socket")
        return Health(True, "0.0.test", HOST, BOOT, "0" * 16, 12.5, False, None, {"reconcile": 0.25}, (why,))

    async def host(self) -> HostFacts:
        self.fail("host")
        gpu = Accelerator("nvidia", "RTX 3090", "sm_86", "0000:01:00.0", None, 24 * GIB, 23 * GIB, False)
        return HostFacts(
            HOST,
            "Debian",
            "6.1",
            Cpu("cpu", "x86_64", 2, ("avx2",)),
            Memory(8 * GIB, 4 * GIB),
            (gpu,),
            (Problem("amd_missing", "amd", "no driver", "install one"),),
        )

    async def telemetry(self, *, since: int = 0, limit: int | None = None) -> Sequence[TelemetryView]:
        self.fail("telemetry")
        gpu = AcceleratorReading(
            "0000:01:00.0", 24 * GIB, 15 * GIB, 9 * GIB, GIB, 66, 1695, 144.0, 420.0, 66.0, ("software_power_cap",)
        )
        engine = EngineReading("a" * 16, "smollm2", 3, {"0000:01:00.0": 14 * GIB}, 2 * GIB, GIB)
        stranger = GpuUser("0000:01:00.0", 99, "Xorg", GIB, "graphics", None, True)
        found = [
            TelemetryView(
                sequence=n * 5000,
                at=1_760_000_000.0 + 5 * n,
                monotonic_s=5.0 * n,
                host=HostSample(8 * GIB, 4 * GIB, 1.5, 0.25),
                accelerators=(gpu,),
                engines=(engine,),
                others=(stranger,),
                problems=("nvml_timeout",),
            )
            for n in range(1, 4)
            if n * 5000 > since
        ]
        return found if limit is None else found[max(0, len(found) - limit) :]

    async def issues(self) -> Sequence[Issue]:
        self.fail("issues")
        return (Issue("low_disk", "host", "little is left", "free some", 1700000000.0, {"free_bytes": 1}),)

    async def measured(self) -> Sequence[MeasuredView]:
        self.fail("measured")
        return (
            MeasuredView(
                "smollm2", "q8-0", "llama.cpp", "b11434", "cpu", "none", None, 2, 1 << 20, 0.5, 88.0, "2026-11-01"
            ),
        )

    async def forget_measured(self, model: str | None) -> int:
        self.fail("forget_measured")
        return 1 if model in (None, "smollm2") else 0

    async def images(self) -> Sequence[ImageView]:
        self.fail("images")
        return list(self._images.values())

    async def pull_image(self, reference: str, *, author: str) -> JobView:
        self.fail("pull_image")
        if reference.startswith("localhost/"):
            raise Refused(f"{reference} is built on this machine", hint="outrider image build cpu")
        job = JobView(f"job-{len(self._jobs) + 1}", "image_pull", reference, JobState.RUNNING, "pulling", 1.0, 0, 9)
        self._jobs[job.id] = job
        await self.happen("image_pull_started", f"{author} pulls {reference}")
        return job

    async def pin_image(self, reference: str, digest: str | None, *, author: str) -> PinView:
        self.fail("pin_image")
        pin = PinView(reference, digest or "sha256:" + "1" * 64, author, 1_760_000_000.0)
        self._images[IMAGE] = dataclasses.replace(self._images[IMAGE], pinned=pin)
        return pin

    async def unpin_image(self, reference: str, *, author: str) -> None:
        self.fail("unpin_image")
        if self._images[IMAGE].pinned is None:
            raise NotFound(f"{reference} is not pinned")
        self._images[IMAGE] = dataclasses.replace(self._images[IMAGE], pinned=None)

    async def remove_image(self, reference: str, *, force: bool, author: str) -> ImageView:
        self.fail("remove_image")
        if reference not in self._images:
            raise NotFound(f"there is no image {reference} here")
        if self._images[reference].pinned is not None and not force:
            raise Refused(f"{reference} is pinned", hint="--force")
        return self._images.pop(reference)

    async def models(self) -> Sequence[ModelView]:
        self.fail("models")
        return list(self._models.values())

    async def add_model(self, request: Mapping[str, Any]) -> JobView:
        self.fail("add_model")
        AddModel.read(request)
        return self._job("add_model", str(request["name"]))

    async def pull_model(self, request: Mapping[str, Any]) -> JobView:
        self.fail("pull_model")
        return self._job("model_pull", PullRequest.read(request).subject)

    async def preview_pull(self, request: Mapping[str, Any]) -> PullPreview:
        self.fail("preview_pull")
        return PullPreview(PullRequest.read(request).subject, (), 9, 4, 5, None, True)

    async def verify_model(self, name: str) -> JobView:
        self.fail("verify_model")
        return self._job("model_verify", self._name(name))

    def _job(self, kind: str, subject: str) -> JobView:
        job = JobView(f"job-{len(self._jobs) + 1}", kind, subject, JobState.RUNNING, "", 1.0, 0, 9)
        self._jobs[job.id] = job
        return job

    async def remove_model(self, name: str, *, weights: bool) -> None:
        self.fail("remove_model")
        name = self._name(name)
        if self._deployments[name].desired is not Desired.STOPPED:
            raise Refused(f"{name} is deployed", hint="stop it first")
        del self._models[name], self._deployments[name]
        await self.happen("model_removed", f"{name}, weights: {weights}", name)

    async def plan(self, model: str, *, what_if: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        self.fail("plan")
        name = self._name(model)
        if name == "huge":
            raise DoesNotFit("huge needs 900 GiB", hint="choose a smaller variant", evidence={"need_bytes": 900 * GIB})
        memory = ExpectedMemory(150_000_000, 1_000_000, 0, 0, 50_000_000, 201_000_000, 4 * GIB)
        plan = Plan(
            model=name,
            variant="q8-0",
            runtime="llama.cpp",
            runtime_version=None,
            image="localhost/engine:1",
            method=Method.NONE,
            draft_tokens=0,
            drafter=None,
            context=int((what_if or {}).get("context", 4096)),
            parallel=4,
            argv=("--model", "/models/m.gguf"),
            env={},
            devices=(),
            mounts=(),
            expected_memory=memory,
            evidence=Evidence.PROVEN,
            reasons=(Reason("cpu_only", "there is no accelerator"),),
        )
        rejected = Rejected("vllm", "q8-0", Method.NONE, "no_accelerator", "needs one", None, None)
        return Planned(plan, (), (rejected,)).to_dict()

    async def deployments(self) -> Sequence[DeploymentView]:
        self.fail("deployments")
        return list(self._deployments.values())

    async def deployment(self, name: str) -> DeploymentView:
        self.fail("deployment")
        return self._deployments[self._name(name)]

    async def room(self, name: str) -> RoomView:
        self.fail("room")
        if self._name(name) == "huge":
            why = Why("pinned", "smollm2 is pinned", "`pinned = false` in the definition of smollm2 lets it make way")
            return RoomView("huge", "refuse", "no_room", {"host": 900 * GIB}, {"host": GIB}, (), {"smollm2": why})
        return RoomView(self._name(name), "ready", "room", {"host": GIB}, {"host": 4 * GIB}, (), {})

    async def set_desired(self, name: str, desired: Desired, *, author: str, force: bool = False) -> DeploymentView:
        self.fail("set_desired")
        name = self._name(name)
        before = self._deployments[name]
        if force:
            await self.happen("start_forced", f"{name}, says {author}", name)
        if name == "huge" and desired is Desired.RUNNING:
            raise DoesNotFit("huge needs 900 GiB")
        if before.desired is not desired:
            running = desired is Desired.RUNNING
            engine = self._engine(name, 1) if running else None
            self._deployments[name] = dataclasses.replace(
                before,
                desired=desired,
                desired_by=author,
                state=State.READY if running else State.STOPPED,
                engine=engine,
                engines=() if engine is None else (engine,),
            )
            await self.happen("desired_set", f"{name} is to be {desired}, says {author}", name)
        return self._deployments[name]

    async def restart(self, name: str, *, author: str) -> DeploymentView:
        self.fail("restart")
        return await self._new_engine(name, "restarted", author)

    async def apply(self, name: str, *, author: str) -> DeploymentView:
        self.fail("apply")
        return await self._new_engine(name, "applied", author)

    async def drain(self, name: str, *, author: str) -> DeploymentView:
        self.fail("drain")
        name = self._name(name)
        if self.gate is not None:
            self.gate_waiters += 1
            await self.gate.wait()
        self._deployments[name] = dataclasses.replace(self._deployments[name], state=State.DRAINING)
        await self.happen("drained", f"{name}, says {author}", name)
        return self._deployments[name]

    async def pauses(self) -> Sequence[PauseView]:
        self.fail("pauses")
        return self.paused

    async def pause(self, name: str | None, *, author: str) -> Sequence[PauseView]:
        self.fail("pause")
        known = None if name is None else (await self.deployment(name)).deployment
        self.paused.append(PauseView(known, author, 1_760_000_000.0))
        return self.paused

    async def resume(self, name: str | None, *, author: str) -> Sequence[PauseView]:
        self.fail("resume")
        known = None if name is None else (await self.deployment(name)).deployment
        self.paused = [pause for pause in self.paused if known not in (None, pause.deployment)]
        return self.paused

    async def why(self, name: str, *, since_s: float | None = None) -> Story:
        self.fail("why")
        view = await self.deployment(name)
        return tell(view, [Entry(event, 60.0) for event in self.journal], since_s=since_s)

    async def engines(self) -> Sequence[EngineView]:
        self.fail("engines")
        return [engine for d in self._deployments.values() for engine in d.engines]

    async def jobs(self) -> Sequence[JobView]:
        self.fail("jobs")
        return list(self._jobs.values())

    async def job(self, job_id: str) -> JobView:
        self.fail("job")
        if job_id not in self._jobs:
            raise NotFound(f"there is no job {job_id}")
        return self._jobs[job_id]

    async def cancel_job(self, job_id: str) -> JobView:
        self.fail("cancel_job")
        job = await self.job(job_id)
        if job.state is JobState.RUNNING:
            self._jobs[job_id] = dataclasses.replace(job, state=JobState.CANCELLED)
        return self._jobs[job_id]

    async def events(
        self, *, since: int = 0, follow: bool = False, deployment: str | None = None
    ) -> AsyncIterator[Event]:
        with self._counted():
            self.fail("events")
            at = since
            while True:
                for event in self.journal[at:]:
                    self.fail("event")
                    if deployment is None or event.deployment == deployment:
                        yield event
                    at = event.sequence
                if not follow:
                    return
                async with self._changed:
                    await self._changed.wait_for(lambda seen=at: len(self.journal) > seen)  # type: ignore[misc]

    async def logs(self, name: str, *, tail: int | None = 100, follow: bool = False) -> AsyncIterator[LogLine]:
        with self._counted():
            self.fail("logs")
            self._name(name)
            while self.endless_log:
                self.lines_made += 1
                yield LogLine("stdout", "x" * 1000)
            at = max(0, len(self.log_lines) - (len(self.log_lines) if tail is None else tail))
            while True:
                for line in self.log_lines[at:]:
                    yield line
                at = len(self.log_lines)
                if not follow or (self.log_lines and self.log_lines[-1].text == "exited"):
                    return
                async with self._changed:
                    await self._changed.wait_for(lambda seen=at: len(self.log_lines) > seen)  # type: ignore[misc]

    async def reload(self, *, dry_run: bool) -> ReloadResult:
        self.fail("reload")
        change = Change("smollm2", "changed", "context: 4096 -> 8192", "drift")
        return ReloadResult(not dry_run, (change,))

    async def prune(self, wish: Wish, *, dry_run: bool, only: Collection[str] | None = None) -> PruneResult:
        self.fail("prune")
        self.wishes.append((wish, dry_run, only))
        thing = PrunedThing("log:/x", "log", "logs/x", 7, "remove", "old_log", "a newer log is beside it")
        return PruneResult(dry_run, 7, 0 if dry_run else 7, (thing if dry_run else thing.ended("removed"),))

    async def routing_tables(self) -> AsyncIterator[Mapping[str, Any]]:
        with self._counted():
            self.fail("routing_tables")
            seen = 0
            while True:
                seen = self.table["revision"]
                yield self.table
                async with self._changed:
                    await self._changed.wait_for(lambda seen=seen: self.table["revision"] > seen)  # type: ignore[misc]

    async def gateway_report(self, report: Mapping[str, Any]) -> None:
        self.fail("gateway_report")
        self.reports.append(report)

    async def shutdown(self, *, engines: bool) -> None:
        self.fail("shutdown")
        self.shutdowns.append(engines)

    async def metrics(self) -> Mapping[str, Any]:
        self.fail("metrics")
        return {
            "events": {"lifecycle/desired_set": 3, "odd": 1},
            "requests": {"smollm2": {"arrivals": 10, "completed": 7, "failed": 1, "rejected": 2, "cancelled": 0}},
            "rates": {"smollm2": 1.5},
            "engines": {"a" * 16: {"bytes": 1000, "events": 50, "requests": 7, "errors": 1, "ttfb_s": 0.02}},
            "memory_expected": {"smollm2": {"weights": 150_000_000, "total": 201_000_000, "budget": None}},
            "switches": {"smollm2": {"done": 2, "refused": 1}},
            "table_revision": 4,
            "bad name": 1,
            "states": {"smollm2": "ready"},
        }

    # inside

    @contextmanager
    def _counted(self) -> Any:
        self.open_iterators += 1
        try:
            yield
        finally:
            self.open_iterators -= 1

    def _name(self, name: str) -> str:
        name = self.aliases.get(name, name)
        if name not in self._models:
            raise NotFound(f"there is no model {name}", hint="see `outrider model ls`", evidence={"name": name})
        return name

    def _stopped(self, name: str) -> DeploymentView:
        return DeploymentView(
            deployment=name,
            desired=Desired.STOPPED,
            desired_by=None,
            state=State.STOPPED,
            reason=None,
            host=HOST,
            engine=None,
            engines=(),
            in_flight=0,
            waiting=0,
            plan=None,
            drifted=False,
            progress=None,
            next_attempt_s=None,
            restarts=0,
        )

    def _engine(self, name: str, generation: int) -> EngineView:
        return EngineView(
            id="a" * 16,
            deployment=name,
            generation=generation,
            state=State.READY,
            container_id="c" * 64,
            pid=4242,
            plan="f" * 64,
            runtime="llama.cpp",
            image="localhost/engine:1",
            method="none",
            draft_tokens=0,
            context=4096,
            parallel=4,
            socket="/run/engine.sock",
            port=None,
            since=1_760_000_000.0,
            in_flight=0,
        )

    async def _new_engine(self, name: str, code: str, author: str) -> DeploymentView:
        name = self._name(name)
        before = self._deployments[name]
        if before.engine is None:
            raise Refused(f"{name} does not run", hint=f"outrider start {name}")
        engine = self._engine(name, before.engine.generation + 1)
        self._deployments[name] = dataclasses.replace(before, engine=engine, engines=(engine,))
        await self.happen(code, f"{name}, says {author}", name)
        return self._deployments[name]


def failing(call: str, error: BaseException) -> Callable[[str], None]:
    """For `MemoryFacade.fail`: this call raises this error."""

    def fail(name: str) -> None:
        if name == call:
            raise error

    return fail


def bad_file() -> OutriderError:
    """What `reload` raises for a broken configuration."""
    return ConfigError("/etc/outrider/outrider.toml", "gateway.listen", "not an address", hint="such as 127.0.0.1:8080")

"""What the daemon shows of itself: frozen values that the API, the command line and metrics share.

Field names are the contract of `outrider ps --json` and friends. Times are Unix
seconds where a person reads them (`since`, `at`) and durations in seconds else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from orchestrator.plan import ExpectedMemory


class Desired(StrEnum):
    """What a person asked for. Written by one API verb, kept in SQLite."""

    RUNNING = "running"
    ON_DEMAND = "on_demand"
    """It is started by the first request, and may be unloaded when nobody uses it."""
    STOPPED = "stopped"


class State(StrEnum):
    """What a deployment, or one of its engines, is doing."""

    STOPPED = "stopped"
    PULLING = "pulling"
    CREATING = "creating"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"
    WEDGED = "wedged"
    """Its process outlives the removal of its container: its memory is not free."""
    WAITING_DEVICE = "waiting_device"
    """Of a deployment only: a device that it needs is not there (yet)."""
    IDLE = "idle"
    """Of a deployment only: it is there on demand, and nobody asks for it now."""


@dataclass(frozen=True, slots=True)
class Why:
    """A reason with a stable code, a sentence, and what to do next."""

    code: str
    text: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What was expected of an engine's memory, beside what it takes: bytes on each of its devices, or in system
    memory. `observed` is the most that was seen (None: not looked at yet), `printed` are the sizes that it
    printed itself while it started, by kind; what it did not print is absent."""

    expected: ExpectedMemory
    observed: int | None = None
    printed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerdictView:
    """What the watch makes of an engine: whether it holds, why, and from which evidence."""

    holds: bool
    reason: str
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine. `plan` is the plan's digest."""

    id: str
    deployment: str
    generation: int
    state: State
    container_id: str | None
    pid: int | None
    plan: str
    runtime: str
    image: str
    method: str
    draft_tokens: int
    context: int
    parallel: int
    socket: str | None
    port: int | None
    since: float
    in_flight: int
    memory: EngineMemory | None = None
    verdicts: Mapping[str, VerdictView] = field(default_factory=dict)
    """`started`, `ready`, `live`, `degraded`; empty until it was first looked at."""


@dataclass(frozen=True, slots=True)
class MeasuredView:
    """What this host has learned of one combination. `starts` and `memory` (bytes at the peak beyond what was
    expected; negative: less, which counts once caches were filled) are of starts with the present driver, as are
    `load_s` (the slowest of late ones) and `tokens_s` (of one request alone); None where nothing is known yet.
    `seen` is the newest day (ISO)."""

    model: str
    variant: str
    runtime: str
    version: str | None
    arch: str
    method: str
    drafter: str | None
    starts: int
    memory: int | None
    load_s: float | None
    tokens_s: float | None
    seen: str | None
    other_drivers: tuple[str, ...] = ()
    """Drivers of which there are observations that do not count now."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long step is. `fraction` is 0..1; it and `eta_s` are None when nobody can know, as of a start that
    takes longer than usual (`usual_s`). It has `granted_s` seconds, and more for as long as it is seen to get on."""

    phase: State
    detail: str
    elapsed_s: float
    fraction: float | None = None
    eta_s: float | None = None
    usual_s: float | None = None
    granted_s: float | None = None

    @property
    def late(self) -> bool:
        """Whether it takes longer than usual."""
        return self.usual_s is not None and self.elapsed_s > self.usual_s


@dataclass(frozen=True, slots=True)
class LeftRung:
    """A rung that was given up: what it was, with which failure, how often it failed, and when (Unix seconds)."""

    text: str
    code: str
    failures: int
    at: float


@dataclass(frozen=True, slots=True)
class RungView:
    """The lower rung that a deployment stands on, because better ones kept failing. `change` is the rung's code
    (`fewer_slots`, `eager`, `less_batch`; `plan` for another method or runtime), `left` are the rungs above, oldest
    first, `up_in_s` seconds until the best plan is tried again by itself."""

    change: str
    text: str
    method: str
    since: float
    left: tuple[LeftRung, ...]
    up_in_s: float


@dataclass(frozen=True, slots=True)
class DemandView:
    """How a model's engine comes and goes. `last_used_s` is since the last request that was seen (None: none was),
    `kept` why it would not be unloaded now to make room, `ttl_s` after how long without a request it is unloaded
    (None: only when another needs its room), `unload_in_s` when that is."""

    last_used_s: float | None
    evictable: bool
    kept: Why | None
    ttl_s: float | None
    unload_in_s: float | None
    pinned: bool
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoomView:
    """What would happen if a model were started now: `action` is `ready` (there is room), `evict` (those named are
    unloaded), `wait` (what is in the way passes) or `refuse`; `kept` who is in the way, and why each stays. Bytes
    by device."""

    deployment: str
    action: str
    reason: str
    needed_bytes: Mapping[str, int]
    free_bytes: Mapping[str, int]
    evict: tuple[str, ...]
    kept: Mapping[str, Why]


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """One deployment. `engine` is the one that serves, or the one that is coming up."""

    deployment: str
    desired: Desired
    desired_by: str | None
    state: State
    reason: Why | None
    host: str
    engine: EngineView | None
    engines: tuple[EngineView, ...]
    in_flight: int
    waiting: int
    plan: str | None
    drifted: bool
    progress: Progress | None
    next_attempt_s: float | None
    restarts: int
    paused_by: str | None = None
    """Who told Outrider to keep its hands off it, or off everything."""
    rung: RungView | None = None
    """None on the first rung: the plan as it is."""
    failures_left: int | None = None
    """With how many more failures it is not started again by itself; None while something simpler is left to try,
    or nothing has failed."""
    demand: DemandView | None = None
    """For one that is there on demand, or that is loaded."""


@dataclass(frozen=True, slots=True)
class WeightsFacts:
    """What weights say of themselves. `context` is the longest that the model was trained for; `mtp_head` whether it
    can draft with a head of its own: `none`, `here`, or `missing` where it declares one and has no weights for it.

    Of a drafter `method`, `draft_tokens` (the longest that it was trained for) and `pairs`: for each variant of the
    model that is here, None or the reason why it does not belong to it. `unclear` says why a model's memory cannot
    be told from its files.
    """

    architecture: str | None
    quantisation: str | None
    context: int | None
    layers: int | None
    mtp_head: str
    chat_template: bool
    vision_bytes: int | None = None
    method: str | None = None
    draft_tokens: int | None = None
    pairs: Mapping[str, str | None] = field(default_factory=dict)
    unclear: str | None = None


@dataclass(frozen=True, slots=True)
class WeightsView:
    """The weights of one variant or drafter. `state` is `here`, `missing` or `problem`; `revision` the commit that
    was settled, else what the definition says; `origin` is `hub`, `cache` (a Hugging Face cache), `store`,
    `added`, `yours`; `checked_at` Unix seconds when every byte was last read, `checked_ok` what came of it."""

    name: str
    kind: str
    format: str
    state: str
    repository: str | None = None
    revision: str | None = None
    path: str | None = None
    bytes: int | None = None
    origin: str | None = None
    checked_at: float | None = None
    checked_ok: bool | None = None
    problem: str | None = None
    facts: WeightsFacts | None = None
    """What the files say of themselves; None where they are not here, or are bad."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model of the configuration or catalogue; `files_ok` is False when no variant of it is here, or one is bad."""

    name: str
    aliases: tuple[str, ...]
    variants: tuple[str, ...]
    drafters: tuple[str, ...]
    origin: str
    """`catalogue`, or the configuration file that defines it."""
    weight_bytes: int | None
    files_ok: bool
    problem: str | None = None
    weights: tuple[WeightsView, ...] = ()


@dataclass(frozen=True, slots=True)
class PinView:
    """Which digest an image's name means on this host, who said so and when (Unix seconds)."""

    reference: str
    digest: str
    author: str
    at: float


@dataclass(frozen=True, slots=True)
class ImageNeedsView:
    """What an image needs of a host (see `orchestrator.catalogue.types.ImageEntry`); None is not known."""

    vendor: str | None
    arch: tuple[str, ...]
    machine: tuple[str, ...]
    driver: str | None
    cuda: str | None
    kernel: str | None
    compressed_bytes: int | None
    size_bytes: int | None
    source: str | None


@dataclass(frozen=True, slots=True)
class ImageView:
    """One image under one name. `id`, `digest` and `size` (bytes) are None for one of the catalogue that is not here.

    `used_by` are the deployments that run it or are to; `catalogue` its names there.
    """

    reference: str
    id: str | None
    digest: str | None
    size: int | None
    pinned: PinView | None
    used_by: tuple[str, ...]
    catalogue: tuple[str, ...]
    built_here: bool
    needs: ImageNeedsView | None


@dataclass(frozen=True, slots=True)
class PauseView:
    """What Outrider keeps its hands off because a person said so: a deployment, or everything (None); since `at`
    (Unix seconds)."""

    deployment: str | None
    author: str
    at: float


class JobState(StrEnum):
    """A long API call's state."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class JobView:
    """One long API call: `done_bytes` of `total_bytes` where bytes are what moves; `result` is what came of it,
    for those that have more to say than that they are done."""

    id: str
    kind: str
    subject: str
    state: JobState
    detail: str
    started_at: float
    done_bytes: int | None = None
    total_bytes: int | None = None
    error: Why | None = None
    result: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the journal. Order is (host, boot id, sequence)."""

    sequence: int
    at: float
    host: str
    boot_id: str
    kind: str
    code: str
    text: str
    deployment: str | None = None
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Issue:
    """Something that a person should look at, for as long as it holds; `subject` is `host`, a deployment, an image."""

    code: str
    subject: str
    text: str
    hint: str | None
    since: float
    evidence: Mapping[str, object] = field(default_factory=dict)
    deployment: str | None = None
    """Whose story it belongs to, where it is about one."""


@dataclass(frozen=True, slots=True)
class Health:
    """The daemon's own health. `podman` and `gateway` are None until first heard of."""

    ok: bool
    version: str
    host: str
    boot_id: str
    owner: str
    uptime_s: float
    podman: bool | None
    gateway: bool | None
    loops: Mapping[str, float]
    """Seconds since each loop last went round."""
    problems: tuple[Why, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a configuration diff: `kind` is added, removed or changed."""

    subject: str
    kind: str
    detail: str
    action: str
    """What applying it does: `none`, `start`, `stop`, `apply` (a new plan where it launches something else),
    `restart_daemon` (kept as it is until the daemon starts again)."""


@dataclass(frozen=True, slots=True)
class ReloadResult:
    """What a reload did, or with `dry_run` would do."""

    applied: bool
    changes: tuple[Change, ...]
    warnings: tuple[str, ...] = ()
    """What is allowed and cannot be meant, each with the next step."""


@dataclass(frozen=True, slots=True)
class PrunedThing:
    """One thing that takes space on a disk of Outrider's, and what becomes of it.

    `action` is `remove` or `keep`; `reason` is a stable code, `text` the same in words; `used_by` says what
    needs it. `outcome` is None where nothing was done, else `removed`, `gone` (before it was its turn), or
    `failed` with `error`.
    """

    id: str
    kind: str
    name: str
    bytes: int | None
    action: str
    reason: str
    text: str
    used_by: tuple[str, ...] = ()
    outcome: str | None = None
    error: Why | None = None

    def ended(self, outcome: str, error: Why | None = None) -> PrunedThing:
        """The same, done with."""
        return replace(self, outcome=outcome, error=error)


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What a prune did, or with `dry_run` would do. `problems` kept some things from being looked at."""

    dry_run: bool
    reclaimable_bytes: int
    freed_bytes: int
    things: tuple[PrunedThing, ...]
    problems: tuple[Why, ...] = ()

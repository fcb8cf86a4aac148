"""What the control API may ask of the daemon: one protocol, so that each can be tested without the other.

Every method is a coroutine (or an async iterator) that never blocks the loop.
Errors are `OutriderError`s; the API maps them once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Protocol

from containers.spec import LogLine
from hosts.facts import HostFacts
from orchestrator.housekeeping.unused import Wish
from orchestrator.telemetry import TelemetryView
from orchestrator.telling.story import Story
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
    PauseView,
    PinView,
    PruneResult,
    ReloadResult,
    RoomView,
)
from orchestrator.weights.request import PullPreview


class Facade(Protocol):
    """The daemon as the API sees it."""

    async def health(self) -> Health: ...
    async def host(self) -> HostFacts: ...
    async def telemetry(self, *, since: int = 0, limit: int | None = None) -> Sequence[TelemetryView]:
        """Samples after a sequence, oldest first; of more than `limit` the newest."""

    async def issues(self) -> Sequence[Issue]:
        """What a person should look at now, oldest first."""

    async def images(self) -> Sequence[ImageView]:
        """Images that are here for engines, and those of the catalogue that are not."""

    async def pull_image(self, reference: str, *, author: str) -> JobView:
        """Begin a pull, or join the one of this image that is under way; a name of the catalogue will do."""

    async def pin_image(self, reference: str, digest: str | None, *, author: str) -> PinView:
        """Say which digest a name means here; None takes what the registry says now."""

    async def unpin_image(self, reference: str, *, author: str) -> None:
        """Raises NotFound where there is no pin."""

    async def remove_image(self, reference: str, *, force: bool, author: str) -> ImageView:
        """What was removed. Raises NotFound; Refused while it is used or, without `force`, pinned."""

    async def models(self) -> Sequence[ModelView]: ...
    async def add_model(self, request: Mapping[str, Any]) -> JobView:
        """Start adding a model; `request` is validated here (see `orchestrator.model_store.AddModel`)."""

    async def remove_model(self, name: str, *, weights: bool) -> None:
        """Forget a model; with `weights`, remove what no other model uses."""

    async def pull_model(self, request: Mapping[str, Any]) -> JobView:
        """Start fetching weights; `request` is validated here (see `orchestrator.weights.request.PullRequest`)."""

    async def preview_pull(self, request: Mapping[str, Any]) -> PullPreview:
        """What that would fetch, and whether there is room for it. Writes nothing."""

    async def verify_model(self, name: str) -> JobView:
        """Start reading a model's weights again; the job's result says of each file whether it is right."""

    async def plan(self, model: str, *, what_if: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """`Planned.to_dict()` for this host as it is now; with a `what_if` also `changes`: (before, after) by field."""

    async def deployments(self) -> Sequence[DeploymentView]: ...
    async def deployment(self, name: str) -> DeploymentView:
        """By public name or alias. Raises NotFound."""

    async def set_desired(self, name: str, desired: Desired, *, author: str, force: bool = False) -> DeploymentView:
        """Idempotent. Raises NotFound for an unknown model; what keeps it from running is the view's reason.

        Raises DeviceRefused while the GPU or driver it needs is broken; SuspectedHostCrash for a start after the
        host went down in this model's load, which `force` starts all the same; UsageError for a forced stop.
        """

    async def restart(self, name: str, *, author: str) -> DeploymentView:
        """Stop and start with the same plan."""

    async def apply(self, name: str, *, author: str) -> DeploymentView:
        """Make a new plan and move to it (make before break where it fits). A plan with the same digest: nothing."""

    async def drain(self, name: str, *, author: str) -> DeploymentView:
        """Admit no new requests, over a restart of the daemon too. Those in flight go on and the engine stays;
        `set_desired` running admits again."""

    async def why(self, name: str, *, since_s: float | None = None) -> Story:
        """What happened to a deployment, from which evidence, what was done, what comes next: of the last `since_s`
        seconds, else since a person last said what they want. Raises NotFound."""

    async def pauses(self) -> Sequence[PauseView]:
        """What Outrider keeps its hands off, oldest first."""

    async def pause(self, name: str | None, *, author: str) -> Sequence[PauseView]:
        """Do nothing by itself to a deployment, or (None) to any, over restarts of the daemon too. What a person
        asks for is done as ever. Raises NotFound."""

    async def resume(self, name: str | None, *, author: str) -> Sequence[PauseView]:
        """Act by itself again. Raises NotFound, and Refused for one deployment while everything is paused."""

    async def room(self, name: str) -> RoomView:
        """What would have to be unloaded if this model were started now; changes nothing.

        Raises NotFound, and what planning raises.
        """

    async def engines(self) -> Sequence[EngineView]: ...
    async def jobs(self) -> Sequence[JobView]: ...
    async def job(self, job_id: str) -> JobView: ...
    async def cancel_job(self, job_id: str) -> JobView: ...
    def events(self, *, since: int = 0, follow: bool = False, deployment: str | None = None) -> AsyncIterator[Event]:
        """Journal entries with sequence > since, oldest first; with follow, then for ever."""

    def logs(self, name: str, *, tail: int | None = 100, follow: bool = False) -> AsyncIterator[LogLine]:
        """Lines of the serving (or last) engine's log. Raises NotFound."""

    async def measured(self) -> Sequence[MeasuredView]:
        """What this host has learned from running, by combination."""

    async def forget_measured(self, model: str | None) -> int:
        """Forget what was learned of a model (by its public name), or everything; how many combinations it was."""

    async def reload(self, *, dry_run: bool) -> ReloadResult:
        """Raises ConfigError and changes nothing when a file is bad."""

    async def prune(self, wish: Wish, *, dry_run: bool, only: Collection[str] | None = None) -> PruneResult:
        """What superfluous images, weights, caches and logs go, or would; with `only`, no others than these ids.

        One at a time. What fails is in the result, and keeps nothing else from going.
        """

    def routing_tables(self) -> AsyncIterator[Mapping[str, Any]]:
        """The gateway's routing table: the present one at once, then each new one."""

    async def gateway_report(self, report: Mapping[str, Any]) -> None:
        """What the gateway saw since its last report."""

    async def shutdown(self, *, engines: bool) -> None:
        """End the daemon after answering; with `engines`, stop all engines first and leave `desired` as it is."""

    async def metrics(self) -> Mapping[str, Any]:
        """Counters for /metrics that no view holds."""

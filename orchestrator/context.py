"""What the deployments of a host share, and why one of them is given a new plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.admission import Admission
from orchestrator.automation import Automation
from orchestrator.clock import Clock
from orchestrator.config import DemandSettings, GuardSettings
from orchestrator.decision import Decision
from orchestrator.demand.groups import Group
from orchestrator.deployment import Deployment
from orchestrator.device_policy import Lost
from orchestrator.device_wait import DeviceWait
from orchestrator.errors import OutriderError
from orchestrator.events import Journal
from orchestrator.gateway_link import GatewayLink
from orchestrator.images import Images
from orchestrator.issues import Issues
from orchestrator.loading_marks import LoadingMarks
from orchestrator.paths import Paths
from orchestrator.plan import Plan
from orchestrator.planning import Planning
from orchestrator.restarting.ledger import Ledger
from orchestrator.routing import RoutingTable
from orchestrator.runner import Runner
from orchestrator.store import Store
from orchestrator.timing import Timing
from orchestrator.turns import Turns
from orchestrator.views import DemandView, State, Why


class Devices(Protocol):
    """What a deployment asks about the host's GPUs (`orchestrator.device_gate`)."""

    def bar(self, deployment: Deployment) -> Why | None:
        """Why it must not be started now; None when nothing is in the way."""

    def after_loss(self, plan: Plan) -> Decision[Lost]:
        """Whether a plan whose GPU is lost may be made anew for those that are left."""

    def taken(self, plan: Plan) -> frozenset[str]:
        """The PCI addresses of the GPUs that a plan takes."""

    def named(self, pci: str) -> str:
        """A GPU as a person knows it."""


class Room(Protocol):
    """What a deployment asks of the memory guard (`orchestrator.guard`)."""

    def room_for(self, plan: Plan) -> bool:
        """Whether an engine that was stopped for memory may come back."""

    def configure(self, settings: GuardSettings) -> None:
        """Take up other settings."""


class Awake(Protocol):
    """What those who watch by the clock ask (`orchestrator.pause_watch`)."""

    def awake_since(self) -> float:
        """Monotonic seconds since which the daemon has been looking without a pause: silence counts from here."""


class NeverPaused:
    """A daemon of which nobody watches whether it was stopped."""

    def awake_since(self) -> float:
        return float("-inf")


class Demands(Protocol):
    """What a deployment asks of whoever has models started and unloaded by requests (`orchestrator.demand.desk`)."""

    def configure(self, settings: DemandSettings, groups: Sequence[Group]) -> None:
        """Take up other settings."""

    def uncallable(self, d: Deployment) -> Why | None:
        """Why no request brings it up now; None when one does."""

    def noticed(self) -> None:
        """A deployment changed: what waits for room looks again."""

    def room_for(
        self, d: Deployment, plan: Plan, seen: Callable[[State, str], None]
    ) -> AbstractAsyncContextManager[None]:
        """Wait for the room that a start needs, and keep it within. Raises `DoesNotFit`."""

    def kept_for(self, d: Deployment, plan: Plan) -> AbstractContextManager[None]:
        """Keep within for an engine of this plan what the one before it leaves."""

    def kept(self, d: Deployment, devices: Sequence[str]) -> int:
        """Bytes of these devices that are kept for starts of others."""

    def explained(self, d: Deployment, error: OutriderError) -> OutriderError:
        """Why it could not be planned, with those that do not make way for it."""

    def view(self, d: Deployment) -> DemandView | None:
        """What is shown of it."""


class NoDemands:
    """Where nothing is there on demand: everybody has room."""

    def configure(self, settings: DemandSettings, groups: Sequence[Group]) -> None: ...

    def uncallable(self, d: Deployment) -> Why | None:
        return None

    def noticed(self) -> None: ...

    def room_for(
        self, d: Deployment, plan: Plan, seen: Callable[[State, str], None]
    ) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def kept_for(self, d: Deployment, plan: Plan) -> AbstractContextManager[None]:
        return nullcontext()

    def kept(self, d: Deployment, devices: Sequence[str]) -> int:
        return 0

    def explained(self, d: Deployment, error: OutriderError) -> OutriderError:
        return error

    def view(self, d: Deployment) -> DemandView | None:
        return None


@dataclass(frozen=True, slots=True)
class Context:
    """What every deployment of a host shares."""

    paths: Paths
    clock: Clock
    timing: Timing
    store: Store
    journal: Journal
    issues: Issues
    routing: RoutingTable
    gateway: GatewayLink
    admission: Admission
    planning: Planning
    runner: Runner
    marks: LoadingMarks
    guard: Room
    images: Images
    devices: Devices
    needs: DeviceWait
    turns: Turns
    automation: Automation = field(default_factory=Automation)
    ledger: Ledger = field(default_factory=Ledger)
    """The crash ledger; without a database it is remembered in memory alone."""
    pauses: Awake = field(default_factory=NeverPaused)
    demand: Demands = field(default_factory=NoDemands)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a new plan is made. `by` is who or what asked; with `automatic` the switch may be refused as too costly."""

    reason: str
    by: str
    automatic: bool = False
    evidence: Mapping[str, object] = field(default_factory=dict)

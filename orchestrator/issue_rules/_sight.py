"""What the rules look at, and what they find. Values only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.health.pace import Pace
from orchestrator.views import DeploymentView, Desired, Health, PauseView, State

HOST = "host"
"""The subject of issues about the machine."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The daemon at one moment. `at` is Unix seconds; `failures` how often in a row each deployment failed; `unwritten`
    journal entries wait for the disk; `stuck` are loops that show no life."""

    at: float
    health: Health
    deployments: tuple[DeploymentView, ...] = ()
    failures: Mapping[str, int] = field(default_factory=dict)
    parked: frozenset[str] = frozenset()
    """Deployments that are not tried again without a person."""
    open: frozenset[tuple[str, str]] = frozenset()
    """Code and subject of the issues that are open."""
    pauses: tuple[PauseView, ...] = ()
    gateway_quiet_s: float | None = None
    """Seconds since the gateway's last report; None when it never reported."""
    paces: Mapping[str, Pace] = field(default_factory=dict)
    """How fast each engine is, beside what is usual, by its id."""
    unwritten: int = 0
    stuck: tuple[str, ...] = ()

    def wanted(self) -> Iterator[DeploymentView]:
        """The deployments that are meant to be there."""
        return (view for view in self.deployments if view.desired is not Desired.STOPPED)

    def down(self) -> Iterator[DeploymentView]:
        """Those of them that have failed."""
        return (view for view in self.wanted() if view.state is State.FAILED)


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that holds now. `deployment` is whose story it belongs to."""

    subject: str
    text: str
    hint: str
    evidence: Mapping[str, object] = field(default_factory=dict)
    deployment: str | None = None

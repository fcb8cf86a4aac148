"""What a new daemon does with the containers it finds under its label. Pure.

The labels are the truth about what runs. A running container with a readable plan
and its key at hand is adopted as it is, never restarted; one whose supervisor
(conmon) died is taken down, because Podman can no longer see it end; whatever a cut-off
create or start left behind is removed (a created container cannot always be started:
the OCI runtime may hold its id already).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.decision import Decision


class Adoption(StrEnum):
    """What to do with one container."""

    ADOPT = "adopt"
    """It runs and had proven itself: it serves on."""
    PROVE = "prove"
    """It runs, and nobody saw it ready: go on where the last daemon stopped."""
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Found:
    """One container as found, with what the database and the run folder know of it."""

    state: str
    alive: bool
    conmon_alive: bool
    plan_readable: bool
    key_present: bool
    defined: bool
    """Whether its deployment is defined."""
    stopped: bool
    """Whether a person asked for it to be stopped. That nothing is known of it (the database was lost) is
    no such wish: what runs is left running."""
    proven: bool
    superseded: bool
    """Whether a newer engine of the same deployment is running."""


def decide(found: Found) -> Decision[Adoption]:
    """Adopt, go on proving, or remove; the reason says which fact decided."""
    evidence = {"state": found.state, "alive": found.alive}
    if found.state != "running" or not found.alive:
        return Decision(Adoption.REMOVE, "not_running", evidence)
    if not found.conmon_alive:
        return Decision(Adoption.REMOVE, "conmon_dead", evidence)
    if not found.plan_readable:
        return Decision(Adoption.REMOVE, "plan_unreadable", evidence)
    if not found.key_present:
        return Decision(Adoption.REMOVE, "key_lost", evidence)
    if not found.defined:
        return Decision(Adoption.REMOVE, "not_defined", evidence)
    if found.stopped:
        return Decision(Adoption.REMOVE, "desired_stopped", evidence)
    if found.superseded and not found.proven:
        return Decision(Adoption.REMOVE, "superseded", evidence)
    if found.proven:
        return Decision(Adoption.ADOPT, "running_and_proven", evidence)
    return Decision(Adoption.PROVE, "running_unproven", evidence)

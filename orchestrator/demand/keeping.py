"""What keeps a loaded model where it is, and what it is worth to keep it.

Pure. A model that is to run always is never unloaded by itself; one that is there on demand is, unless something
speaks against it now. Some of these reasons pass (requests in flight, a load that has only just ended), others only
a person takes away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.views import Why

ASKED_AGAIN = 300.0
"""Seconds of idleness after which a model is taken to be half as likely to be asked for as one in use. A prior:
the idle times after which peers unload lie between 5 minutes (Ollama) and never (llama-swap)."""
UNKNOWN_LOAD = 60.0
"""Seconds that a load is taken to cost when none was seen on this host: more than most take from a warm cache,
so that what is known to come back quickly goes first."""

PASSING = frozenset({"loading", "in_use", "just_loaded", "leaving"})
"""Reasons that go by themselves: it is worth waiting for their end."""


@dataclass(frozen=True, slots=True)
class Resident:
    """One model with engines. Times in seconds, None where nobody knows; `sizes` are bytes by device."""

    name: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    on_demand: bool = True
    pinned: bool = False
    paused_by: str | None = None
    loading: bool = False
    leaving: bool = False
    wedged: bool = False
    """All that is left of it is an engine that nothing can end: it holds its memory, and nobody can say how long."""
    in_flight: int = 0
    waiting: int = 0
    resident_s: float | None = None
    """Since it was ready."""
    idle_s: float | None = None
    """Since its last request, or since it was ready."""
    load_s: float | None = None
    """What it takes to bring it back."""
    priority: int = 0


def kept(resident: Resident, residence: float) -> Why | None:
    """Why it may not be unloaded now; None when it may. `residence` is how long a model stays at least."""
    name = resident.name
    if resident.wedged:
        return Why("wedged", f"an engine of {name} does not go", f"`outrider why {name}` names what holds it")
    if not resident.on_demand:
        return Why("runs_always", f"{name} is to run always", f"`outrider start --on-demand {name}` lets it make way")
    if resident.pinned:
        return Why("pinned", f"{name} is pinned", f"`pinned = false` in the definition of {name} lets it make way")
    if resident.paused_by is not None:
        return Why("paused", f"{name} is paused by {resident.paused_by}", f"`outrider resume {name}`")
    if resident.leaving:
        return Why("leaving", f"{name} is being unloaded")
    if resident.loading:
        return Why("loading", f"{name} is being loaded")
    if resident.in_flight or resident.waiting:
        many = resident.in_flight + resident.waiting
        return Why("in_use", f"{name} is answering {many} request{'' if many == 1 else 's'}")
    left = stays(resident, residence)
    if left > 0:
        return Why("just_loaded", f"{name} was loaded just now and stays for {left:.1f} s more at least")
    return None


def stays(resident: Resident, residence: float) -> float:
    """Seconds of its least residence that are left: what was loaded for one request is not at once evicted for the
    next, or two models that take turns would only ever be loaded."""
    return 0.0 if resident.resident_s is None else max(0.0, residence - resident.resident_s)


def worth(resident: Resident) -> float:
    """Expected seconds of loading that its eviction costs: those of its load, times how likely it is asked for soon."""
    load = UNKNOWN_LOAD if resident.load_s is None else resident.load_s
    idle = 0.0 if resident.idle_s is None else resident.idle_s
    return load / (1.0 + idle / ASKED_AGAIN)

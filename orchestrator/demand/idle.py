"""When a model that is there on demand has been idle for long enough to be unloaded.

Pure. A model without a time to live is only unloaded when another needs its room.
"""

from __future__ import annotations

from enum import StrEnum

from orchestrator.decision import Decision
from orchestrator.demand.keeping import Resident, kept


class Idling(StrEnum):
    """What becomes of an idle model."""

    KEEP = "keep"
    UNLOAD = "unload"


def decide(resident: Resident, *, ttl: float | None, heard: bool | None) -> Decision[Idling]:
    """`ttl` is its time to live without requests, in seconds; None is for ever. `heard` is whether the gateway
    reports (None: there never was one): a gateway that has fallen silent may be serving requests that nobody
    sees, so nothing is unloaded on its silence."""
    if ttl is None:
        return Decision(Idling.KEEP, "no_ttl")
    why = kept(resident, 0.0)
    if why is not None and why.code != "paused":
        return Decision(Idling.KEEP, why.code)
    if heard is False:
        return Decision(Idling.KEEP, "gateway_silent")
    idle = resident.idle_s
    if idle is None or idle < ttl:
        return Decision(Idling.KEEP, "not_idle_long_enough", {"left_s": None if idle is None else round(ttl - idle, 3)})
    evidence = {"idle_s": round(idle, 3), "ttl_s": round(ttl, 3)}
    if why is not None:
        return Decision(Idling.KEEP, "paused", evidence)  # said, not done
    return Decision(Idling.UNLOAD, "idle", evidence)

"""What people and clients are told about room: what is waited for, who is in the way, and what would help. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from orchestrator.decision import Decision
from orchestrator.demand.keeping import PASSING, Resident, kept
from orchestrator.demand.room import RoomStep
from orchestrator.errors import DoesNotFit
from orchestrator.views import Why


def listed(value: object) -> list[object]:
    """A list of evidence; empty for anything else."""
    return list(value) if isinstance(value, list | tuple) else []


def stays(decision: Decision[RoomStep]) -> dict[str, Why]:
    """Who stays in the way, and why, by name."""
    found = decision.evidence.get("kept")
    if not isinstance(found, Mapping):
        return {}
    return {str(name): Why(w["code"], w["text"], w.get("hint")) for name, w in found.items()}


def lasting(residents: Iterable[Resident]) -> tuple[Why, ...]:
    """What keeps models loaded until a person says otherwise, one reason a model."""
    found = (kept(resident, 0.0) for resident in residents)
    return tuple(why for why in found if why is not None and why.code not in PASSING)


def beside(error: DoesNotFit, reasons: Sequence[Why]) -> DoesNotFit:
    """The same, naming who keeps memory that does not come free by itself."""
    if not reasons:
        return error
    more = DoesNotFit(
        f"{error.detail}; beside it {'; '.join(why.text for why in reasons)}",
        hint=_next((*_hints(reasons), error.hint)),
        evidence=error.evidence,
    )
    more.retryable = error.retryable
    return more


def no_room(model: str, decision: Decision[RoomStep]) -> DoesNotFit:
    """Why it cannot come while things are as they are, and who is in the way."""
    reasons = list(stays(decision).values())
    groups = listed(decision.evidence.get("groups"))
    taken = decision.reason == "group_taken"
    what = f"the group {' and '.join(map(str, groups))} is taken" if taken else _bytes(decision)
    seen = f"`outrider ps` shows what is loaded; `outrider start --dry-run {model}` what would make way"
    error = DoesNotFit(
        f"there is no room for {model}: {what}" + "".join(f"; {why.text}" for why in reasons),
        hint=_next((*_hints(reasons), seen)),
        evidence=decision.evidence,
    )
    error.retryable = True  # it may come when something else has gone
    return error


def waiting(model: str, decision: Decision[RoomStep]) -> str:
    """What a start waits for."""
    if decision.action is RoomStep.EVICT:
        return f"making room: {', '.join(map(str, listed(decision.evidence['evict'])))} is unloaded for {model}"
    if decision.reason == "queued":
        return f"waiting for room: {decision.evidence['after']} is before it"
    return f"waiting for room: {'; '.join(why.text for why in stays(decision).values())}"


def _hints(reasons: Iterable[Why]) -> tuple[str, ...]:
    return tuple(why.hint for why in reasons if why.hint is not None)


def _next(hints: Iterable[str | None]) -> str:
    return "; ".join(hint for hint in hints if hint)


def _bytes(decision: Decision[RoomStep]) -> str:
    needed, free = decision.evidence["needed_bytes"], decision.evidence["free_bytes"]
    assert isinstance(needed, Mapping)
    assert isinstance(free, Mapping)
    short = [
        f"it needs {size / 2**30:.2f} GiB and {free[d] / 2**30:.2f} are left on {d}"
        for d, size in needed.items()
        if d in free and size > free[d]
    ]
    return "; ".join(short)

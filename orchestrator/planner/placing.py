"""On which of a kind of devices, and on how many: as few as hold a candidate at a usual size. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.models import Runtime, Shape
from orchestrator.plan import Plan, Reason, Rejected
from orchestrator.planner.candidates import Candidate, evenly
from orchestrator.planner.fitting import Fitted
from orchestrator.planner.places import TOGETHER, Group, Places
from orchestrator.planner.sizes import worth
from orchestrator.planner.wishes import Preferences

Built = tuple[Fitted, Plan]
One = Callable[[Candidate, bool], Built | Rejected]
"""Builds a candidate on its devices; True where nobody will read why it cannot be built."""
TOO_BIG = "too_big"
_HELPED = frozenset({TOO_BIG, "too_many_slots", "context_limit"})
"""What more devices can help against: some limits are those of little memory."""
ROOMY = 32768
"""A context below this is cramped: agents' prompts are longer. Identical GPUs that are free are taken to it then."""
_SHARES_HEADS = frozenset({Runtime.VLLM, Runtime.SGLANG})


def place(candidate: Candidate, places: Places, wish: Preferences, one: One) -> list[Built] | Rejected:
    """The candidate as built by `one` on as few devices as hold it; where that is cramped, on more as well.

    The rejection is that of the fewest devices: what more of them would not help against is told once.
    """
    first: Rejected | None = None
    found: list[Built] = []
    for number in TOGETHER if wish.tensor_parallel is None else (wish.tensor_parallel,):
        unshared = _unshared(candidate, number)
        if unshared is not None:
            first = first or unshared
            continue
        best = _on(candidate, places.choices(candidate.devices, number), one, brief=first is not None)
        if isinstance(best, tuple):
            found.append(_told(best, first, wish.tensor_parallel))
            if not cramped(best[0], wish):
                break
            continue
        first = first or best
        if first is not None and first.code not in _HELPED and wish.tensor_parallel is None:
            break
    if found:
        return found
    return first or candidate.reject("too_few_gpus", f"there are no {wish.tensor_parallel} GPUs of this kind")


def _on(candidate: Candidate, choices: Sequence[Group], one: One, *, brief: bool) -> Built | Rejected | None:
    """On the better of equally many devices, the first of equals; None where there are not so many.

    The last choice has the most memory free: what does not fit there fits nowhere.
    """
    if not choices:
        return None
    roomiest = one(replace(candidate, devices=choices[-1]), brief)
    if isinstance(roomiest, Rejected):
        return roomiest
    others = [one(replace(candidate, devices=choice), brief) for choice in choices[:-1]]
    fitting = [*(built for built in others if not isinstance(built, Rejected)), roomiest]
    return max(fitting, key=lambda built: worth(built[0].context, built[0].parallel))


def cramped(fitted: Fitted, wish: Preferences) -> bool:
    """Whether more memory would give a usual context that this lacks."""
    longest = None if fitted.candidate.shape is None else fitted.candidate.shape.max_context
    return wish.context is None and fitted.context < min(ROOMY, longest or ROOMY)


def _unshared(candidate: Candidate, number: int) -> Rejected | None:
    """Why so many devices cannot share the model."""
    if number == 1 or candidate.image.runtime not in _SHARES_HEADS:
        return None
    if candidate.shape is not None and not evenly(candidate.shape, number):
        return candidate.reject("heads_not_shared", _uneven(candidate.shape, "", number), "vLLM 0.33.0 config/model.py")
    own = candidate.drafter_shape
    # vLLM can leave the drafter whole on one device (`Candidate.draft_ranks`)
    if own is not None and candidate.image.runtime is Runtime.SGLANG and not evenly(own, number):
        return candidate.reject("heads_not_shared", _uneven(own, "the drafter's ", number), "as vLLM; SGLang cannot")
    return None


def _uneven(shape: Shape, whose: str, number: int) -> str:
    heads = f"{shape.heads} attention heads" if shape.heads else "attention heads"
    return f"{whose}{heads} ({shape.kv_heads} of keys) cannot be shared by {number} GPUs evenly"


def _told(built: Built, refused: Rejected | None, wished: int | None) -> Built:
    """With the reason why one device was not enough."""
    fitted, plan = built
    number = fitted.candidate.tensor_parallel
    if number == 1:
        return built
    why = "for fewer would leave it less context" if refused is None else f"for fewer do not hold it: {refused.text}"
    if wished is not None:
        why = "as was asked for"
    return fitted, replace(plan, reasons=(*plan.reasons, Reason("several_gpus", f"{number} GPUs share it, {why}")))

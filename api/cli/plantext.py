"""A plan for people: a short first screen (what, memory, why, what else and why not), and all of it on request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from api.cli.output import print_table, say, size
from orchestrator.plan import ExpectedMemory, Plan, Planned, Reason, Rejected
from orchestrator.telling.amounts import count

OTHERS = 5
"""Alternatives, and things turned down, on the first screen."""
_FIRST = (
    "ranked", "memory_unknown", "image_assumed", "little_context", "gain", "speed_measured", "evidence",
    "several_gpus", "memory_measured", "crossover", "state_16_bit", "draft_clamped", "weights_missing",
    "drafter_missing", "cpu_only", "shape_unknown", "context_risky",
)  # fmt: skip
"""Reasons that everybody reads, in this order; the others are with `--all`."""
_KINDS = (
    ("weights", "weights"), ("kv", "KV cache"), ("state", "recurrent state"), ("drafter", "drafter"),
    ("compute", "compute"), ("graphs", "CUDA graphs"), ("overhead", "the process itself"),
)  # fmt: skip


def print_planned(planned: Planned, changes: Mapping[str, tuple[object, object]], *, everything: bool) -> None:
    """What would be launched and why; then what else could be, and what could not."""
    chosen = planned.plan
    if chosen is None:
        say("no plan: everything was turned down")
    else:
        _print_plan(chosen, everything=everything)
    if changes and chosen is None:
        say("")
        say(_without(changes))
    elif changes:
        say("")
        say(f"changed   {'; '.join(_change(name, *pair) for name, pair in changes.items())}")
    if len(planned.ladder) > 1:
        say("")
        say(f"if it keeps failing: {'; then '.join(rung.text for rung in planned.ladder[1:])}")
    _print_others(planned.alternatives, everything=everything)
    _print_rejected(planned.rejected, everything=everything or chosen is None)


def _print_plan(plan: Plan, *, everything: bool) -> None:
    engine = " ".join(part for part in (plan.runtime, plan.runtime_version) if part)
    say(f"model     {plan.model}, variant {plan.variant}")
    say(f"engine    {engine} in {plan.image}")
    say(f"method    {_method(plan)} ({plan.evidence})")
    say(f"size      {plan.context} tokens a sequence, {plan.parallel} at once")
    say(f"devices   {', '.join(plan.devices) or 'none: the CPU'}")
    say(f"digest    {plan.digest}")
    if everything:
        say(f"argv      {' '.join(plan.argv)}")
    say("")
    _print_memory(plan.expected_memory)
    say("")
    for reason in plan.reasons if everything else _first(plan.reasons):
        source = f" ({reason.source})" if everything and reason.source else ""
        say(f"why       {f'[{reason.code}] ' if everything else ''}{reason.text}{source}")


def _print_memory(memory: ExpectedMemory) -> None:
    rows = [(label, size(count)) for name, label in _KINDS if (count := getattr(memory, name))]
    if memory.correction:
        sign = "-" if memory.correction < 0 else "+"
        rows.append(("as measured here", f"{sign}{size(abs(memory.correction))}"))
    low = f" (from {size(memory.low)})" if memory.low is not None and memory.margin else ""
    rows.append(("expected", f"{size(memory.likely)}{low}"))
    of = "" if memory.budget is None else f" of {size(memory.budget)}"
    each = "" if memory.devices == 1 else f" on each of {memory.devices} devices"
    rows.append(("kept for it", f"{size(memory.total)}{of}{each}"))
    if memory.host:
        rows.append(("in system memory", size(memory.host)))
    width = max(len(label) for label, _ in rows)
    for number, (label, text) in enumerate(rows):
        say(f"{'memory' if number == 0 else '':<9} {label:<{width}}  {text}")


def _print_others(plans: Sequence[Plan], *, everything: bool) -> None:
    if not plans:
        return
    shown = plans if everything else plans[:OTHERS]
    say("")
    say(f"also possible{_more(plans, shown)}")
    print_table(
        ("RUNTIME", "VARIANT", "METHOD", "CONTEXT", "AT ONCE", "MEMORY", "WHY"),
        [
            (p.runtime, p.variant, _method(p), str(p.context), str(p.parallel), size(p.expected_memory.total),
             f"{p.evidence}; {_ranked(p.reasons)}")
            for p in shown
        ],
        empty="",
    )  # fmt: skip


def _print_rejected(rejected: Sequence[Rejected], *, everything: bool) -> None:
    if not rejected:
        return
    shown = rejected if everything else rejected[:OTHERS]
    say("")
    say(f"turned down{_more(rejected, shown)}")
    print_table(
        ("RUNTIME", "VARIANT", "METHOD", "WHY"),
        [
            (r.runtime, r.variant, f"{r.method}{f' by {r.drafter}' if r.drafter else ''}",
             f"[{r.code}] {_why(r, everything=everything)}")
            for r in shown
        ],
        empty="",
    )  # fmt: skip


def _why(rejected: Rejected, *, everything: bool) -> str:
    """The sentence; on the first screen memory without its parts, and no sources."""
    if everything:
        return f"{rejected.text}{f' ({rejected.source})' if rejected.source else ''}"
    memory = rejected.expected_memory
    if memory is None or memory.budget is None:
        return rejected.text
    return f"needs {size(memory.total)} of {size(memory.budget)}; {rejected.text.rpartition('; ')[2]}"


def _more(all_of_them: Sequence[object], shown: Sequence[object]) -> str:
    left = len(all_of_them) - len(shown)
    return f" ({left} more with --all)" if left else ""


def _method(plan: Plan) -> str:
    drafter = f" by {plan.drafter}" if plan.drafter else ""
    drafts = f", {count(plan.draft_tokens, 'token')} a draft" if plan.draft_tokens else ""
    return f"{plan.method}{drafter}{drafts}"


def _first(reasons: Iterable[Reason]) -> list[Reason]:
    known = [reason for reason in reasons if reason.code in _FIRST]
    return sorted(known, key=lambda reason: _FIRST.index(reason.code))


def _ranked(reasons: Iterable[Reason]) -> str:
    return next((reason.text for reason in reasons if reason.code == "ranked"), "")


def _without(changes: Mapping[str, tuple[object, object]]) -> str:
    """Where a what-if leaves nothing: what there is without it."""
    was = {name: before for name, (before, _) in changes.items()}
    what = f"{was.get('runtime')} {was.get('variant')} with {was.get('method')}, {was.get('context')} tokens"
    return f"without --what-if: {what} x {was.get('parallel')}"


def _change(name: str, before: object, after: object) -> str:
    was, now = (size(v) if name == "expected_memory" and isinstance(v, int) else _word(v) for v in (before, after))
    return f"{name.replace('_', ' ')} {was} -> {now}"


def _word(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)

"""What differs between two answers of the planner: what a what-if changed. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.plan import Planned

COMPARED = (
    "variant", "runtime", "runtime_version", "image", "method", "draft_tokens", "drafter", "context", "parallel",
    "devices", "evidence",
)  # fmt: skip


def changes(before: Planned, after: Planned) -> Mapping[str, tuple[object, object]]:
    """By field of the plan: what it was and what it is. Without a plan on one side every field is None there."""
    found: dict[str, tuple[object, object]] = {}
    for name in COMPARED:
        was, now = (None if p.plan is None else getattr(p.plan, name) for p in (before, after))
        if was != now:
            found[name] = (_plain(was), _plain(now))
    was, now = (None if p.plan is None else p.plan.expected_memory.total for p in (before, after))
    if was != now:
        found["expected_memory"] = (was, now)
    return found


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value

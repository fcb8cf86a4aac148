"""What was seen, in words: the evidence of a journal entry as short statements, each number beside its limit. Pure.

An entry's evidence is `name: value`. What is said of a name follows from its ending, so that a new entry needs no
entry here: `_s` and `seconds` are durations, `_bytes` sizes, `_fraction` and `_share` shares of one. A limit stands
beside its number under the same name with `_limit` (`silent_s` and `silent_s_limit`), as `{"value": 63, "limit":
60}`, or as `limit_s` beside `after_s` or `seconds`; the statement then reads "silent 63 s (limit 60 s)".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.telling.amounts import count, duration, number, size

LIMIT = "_limit"
_TIMES = ("after_s", "seconds")
"""Durations that `limit_s` in the same entry is the limit of."""
LONGEST = 200
"""Characters of one statement: an engine's last words may be long."""
WORDS_OF_LOG = 2
"""Lines of an engine's log that are quoted; `outrider logs` has the rest."""

_INSIDE = frozenset(
    {
        "action",
        "after",
        "before",
        "by",
        "cause",
        "code",
        "container",
        "container_id",
        "engine",
        "engines",
        "fault",
        "generation",
        "hint",
        "model",
        "owner",
        "plan",
        "plan_before",
        "subject",
        "why",
    }
)
"""Names that lead to something rather than say something, or that the sentence says already. `--json` has them."""
_LABELS = {
    "pid": "process",
    "exit_code": "exit code",
    "in_flight": "requests in flight",
    "pci": "GPU",
    "gpu": "GPU",
    "ready_for_s": "had served for",
    "ran_for_s": "had served for",
    "expected_bytes": "memory expected",
    "needed": "needed",
    "failures": "failures",
    "again_in_s": "pause before the next try",
    "free": "free",
    "seconds": "for",
    "failed_in_a_row": "wrong in a row",
    "says_speculating": "the engine says that it speculates",
}
_NOTHING: tuple[object, ...] = (None, "", [], {}, ())
_ONLY_IF_TRUE = frozenset({"parked"})


@dataclass(frozen=True, slots=True)
class Seen:
    """One thing that was seen: its name and value as the journal has them, the limit if there is one, and the words."""

    name: str
    value: object
    limit: object | None
    text: str


def seen(evidence: Mapping[str, object]) -> tuple[Seen, ...]:
    """The statements of an entry's evidence, in its order. Unknown (None) and empty ones say nothing."""
    return tuple(_statements(evidence))


def _statements(evidence: Mapping[str, object]) -> Iterator[Seen]:
    timed = next((name for name in _TIMES if name in evidence and "limit_s" in evidence), None)
    for name, value in evidence.items():
        if name == "limit_s" and timed is not None:
            continue
        if name in _INSIDE or value in _NOTHING or (name in _ONLY_IF_TRUE and not value):
            continue
        if name.endswith(LIMIT) and name[: -len(LIMIT)] in evidence:
            continue
        limit = evidence.get("limit_s") if name == timed else evidence.get(name + LIMIT)
        shown = value
        if isinstance(value, Mapping) and "value" in value and set(value) <= {"value", "limit"}:
            shown, limit = value["value"], value.get("limit", limit)
        if name == "log":
            yield from _last_words(value)
            continue
        said = _value(name, shown)
        if said is None:
            continue
        bound = None if limit is None else _value(name, limit)
        text = f"{label(name)} {said}" + (f" (limit {bound})" if bound else "")
        yield Seen(name, shown, limit, _short(text))


def _last_words(log: object) -> Iterator[Seen]:
    lines = [str(line).strip() for line in log] if isinstance(log, list | tuple) else [str(log).strip()]
    told = [line for line in lines if line][-WORDS_OF_LOG:]
    if told:
        yield Seen("log", told, None, _short("its last words: " + " | ".join(told)))


def label(name: str) -> str:
    """A name as words."""
    known = _LABELS.get(name)
    if known is not None:
        return known
    for ending in ("_seconds", "_bytes", "_s"):
        name = name.removesuffix(ending)
    return name.replace("_", " ")


def _value(name: str, value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(name, value)
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, Mapping):
        unit = name if name.endswith(("_bytes", "_s")) else None  # `free_bytes: {GPU: bytes}`
        inner = [f"{label(str(k))} {said}" for k, v in value.items() if (said := _value(unit or str(k), v)) is not None]
        return ", ".join(inner) or None
    if isinstance(value, list | tuple | set | frozenset):
        items = [said for item in value if (said := _value(name, item)) is not None]
        more = f" and {count(len(items) - 4, 'more', 'more')}" if len(items) > 4 else ""
        return (", ".join(items[:4]) + more) or None
    return None


def _number(name: str, value: float) -> str:
    if name.endswith(("_s", "seconds")):
        return duration(value)
    if name.endswith("bytes") or name in {"needed", "free", "reserved"}:
        return size(value)
    if name.endswith(("fraction", "_share")):
        return f"{value * 100:.0f} %"
    return number(value)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …"

"""What a reload would change: the difference of two configurations, line by line.

Pure. A line says what applying it does, so that the same diff serves `reload
--dry-run`, the reload itself and the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import BaseModel

from orchestrator.models import ModelEntry
from orchestrator.views import Change

if TYPE_CHECKING:
    from orchestrator.config import Config

MODEL = "model "
"""A model's line has the subject `model NAME`; a name holds no space, so it is no setting's key."""

_AT_ONCE = ("aliases", "load_s", "priority", "preemptible", "deterministic", "on_demand", "ttl_s", "pinned")
"""Keys of a model that the daemon takes up without touching an engine."""
_POLICY = ("policy", "drop_above", "resume_below", "dwell_s", "max_switch_s")
"""Keys of its speculation that only the governor reads."""
_HEARSAY = ("source", "note", "gated")
"""Where a number comes from, and who must be asked for a file, launches nothing."""
_SECTIONS = (
    ("host", "host"),
    ("gateway", "gateway"),
    ("api", "api"),
    ("podman", "podman"),
    ("store", "store"),
    ("images", "images"),
    ("hub", "hub"),
    ("guard", "guard"),
    ("demand", "demand"),
    ("group", "group"),
    ("logs", "logs"),
    ("timing", "timing"),
    ("defaults", "engine"),
)
"""(attribute of Config, table of outrider.toml)"""


class Action(StrEnum):
    """What applying a change does (`views.Change.action`)."""

    NONE = "none"
    STOP = "stop"
    APPLY = "apply"
    RESTART_DAEMON = "restart_daemon"


_TAKEN_UP = {
    "demand": Action.NONE,
    "engine": Action.APPLY,
    "group": Action.NONE,
    "guard": Action.NONE,
    "hub": Action.NONE,
    "images": Action.NONE,
    "logs": Action.NONE,
    "store": Action.NONE,
}
"""What a change of a table does where it does not wait for the daemon's next start. A cap on logs holds for
engines that are started from then on; none is started for its sake."""


def diff(old: Config, new: Config) -> tuple[Change, ...]:
    """Settings first, then models by name. Equal configurations give nothing; a model that
    only moved to another file has not changed."""
    changes: list[Change] = []
    for attribute, table in _SECTIONS:
        action = _TAKEN_UP.get(table, Action.RESTART_DAEMON)
        before, after = getattr(old, attribute), getattr(new, attribute)
        for key, was, now in _differences(before, after, table):
            changes.append(Change(subject=key, kind="changed", detail=f"{was} -> {now}", action=action))
    before_models, after_models = _by_name(old), _by_name(new)
    for name in sorted(before_models.keys() | after_models.keys()):
        changes.extend(_model(name, before_models.get(name), after_models.get(name)))
    changes.extend(_catalogue(old, new))
    return tuple(changes)


def _catalogue(old: Config, new: Config) -> Iterator[Change]:
    """What `catalog.d` says otherwise: it counts for plans that are made from now on."""
    before, after = _entries(old), _entries(new)
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was != now:
            kind = "added" if was is None else "removed" if now is None else "changed"
            detail = "drops what ships" if now == DROPPED else "counts for plans from now on"
            yield Change(f"catalogue {name}", kind, detail, Action.NONE)


DROPPED = "dropped"


def _entries(config: Config) -> dict[str, object]:
    """The layer's entries by kind and name; `DROPPED` for what it disables."""
    layer = config.catalogue
    found: dict[str, object] = dict.fromkeys(layer.dropped, DROPPED)
    for kind in ("model", "image", "combination", "restriction", "runtime", "handled"):
        found |= {f"{kind} {getattr(e, 'name', None) or getattr(e, 'id', '')}": e for e in getattr(layer, kind)}
    return found


def model_of(change: Change) -> str | None:
    """The model a line is about; None for a setting."""
    return change.subject.removeprefix(MODEL) if change.subject.startswith(MODEL) else None


def _by_name(config: Config) -> dict[str, ModelEntry]:
    return {entry.name: entry for entry in config.models}


def _model(name: str, old: ModelEntry | None, new: ModelEntry | None) -> Iterator[Change]:
    subject = f"{MODEL}{name}"
    if old is None:
        variants = ", ".join(v.name for v in new.variants) if new is not None else ""
        yield Change(subject, "added", f"variants {variants}; start it with `outrider start {name}`", Action.NONE)
    elif new is None:
        yield Change(subject, "removed", "its engine stops; the weights stay", Action.STOP)
    else:
        for key, was, now in _differences(old, new, ""):
            yield Change(subject, "changed", f"{key}: {was} -> {now}", _action(key))


def _action(key: str) -> Action:
    first, _, rest = key.partition(".")
    if first in _AT_ONCE or key.rpartition(".")[2] in _HEARSAY:
        return Action.NONE
    if first == "speculation" and rest in _POLICY:
        return Action.NONE
    return Action.APPLY


def _differences(old: object, new: object, key: str) -> Iterator[tuple[str, str, str]]:
    """(dotted key, old, new) of each leaf that differs; named items are matched by name."""
    if old == new:
        return
    if isinstance(old, BaseModel) and isinstance(new, BaseModel) and type(old) is type(new):
        for field in type(old).model_fields:
            inner = f"{key}.{field}" if key else field
            yield from _differences(getattr(old, field), getattr(new, field), inner)
        return
    before, after = _named(old), _named(new)
    if before is not None and after is not None and list(before) == list(after):
        for name in before:
            yield from _differences(before[name], after[name], f"{key}[{name}]")
    elif before is not None and after is not None and set(before) != set(after):
        for name in [*before, *(n for n in after if n not in before)]:
            one, other = before.get(name), after.get(name)
            if one is None or other is None:
                yield f"{key}[{name}]", _shown(one, "absent"), _shown(other, "absent")
            else:
                yield from _differences(one, other, f"{key}[{name}]")
    else:
        yield key, _shown(old), _shown(new)


def _named(value: object) -> Mapping[str, BaseModel] | None:
    """A list of named tables as a mapping; None for anything else (an empty list is one)."""
    if not isinstance(value, tuple) or not all(isinstance(v, BaseModel) and hasattr(v, "name") for v in value):
        return None
    return {v.name: v for v in value}


def _shown(value: object, none: str = "unset") -> str:
    if value is None:
        return none
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, BaseModel):
        return str(getattr(value, "name", "present"))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_shown(v) for v in value)}]"
    return str(value)

"""What reading a recipe gives: commands, what is changed and why, a deployment or a refusal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.errors import UsageError
from orchestrator.model_toml import dumps
from orchestrator.models import ModelEntry
from orchestrator.plan import Reason

MOST_BYTES = 256 << 10
"""A recipe is a page or two; what is larger is something else."""
HIDDEN = "***"
"""Stands for a secret, which is neither carried over nor printed."""


class ImportUnreadable(UsageError):
    """The text cannot be read; `evidence` has the line where that is known."""

    code = "import_unreadable"

    def __init__(self, detail: str, *, line: int | None = None, hint: str | None = None) -> None:
        where = "" if line is None else f"line {line}: "
        super().__init__(f"{where}{detail}", hint=hint, evidence={"line": line})


class Kind(StrEnum):
    """Forms of a recipe."""

    AUTO = "auto"
    SHELL = "shell"
    COMPOSE = "compose"
    QUADLET = "quadlet"
    MODELFILE = "modelfile"


class Outcome(StrEnum):
    """What came of a command: a deployment, a refusal, or a step that needs no doing here."""

    DEPLOYMENT = "deployment"
    REFUSED = "refused"
    EXPLAINED = "explained"


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is different here: `was` is how it stood there (None: it was not said), `becomes` what it is
    here (None: nothing), `source` who says so."""

    code: str
    was: str | None
    becomes: str | None
    why: str
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a text: its words, its environment, where it stands and how it reads (secrets hidden).

    `unknown` are things whose value nobody can know without running something: `$(...)`, an unset variable.
    """

    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    line: int = 1
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """What came of one command. `entry` is there for a deployment, `reason` for all else."""

    outcome: Outcome
    what: str
    line: int
    text: str
    entry: ModelEntry | None = None
    reason: Reason | None = None
    changes: tuple[Change, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "outcome": self.outcome.value,
            "what": self.what,
            "line": self.line,
            "text": self.text,
            "model": None if self.entry is None else self.entry.model_dump(mode="json", exclude_defaults=True),
            "toml": None if self.entry is None else dumps(self.entry),
            "reason": None if self.reason is None else _fields(self.reason),
            "changes": [_fields(change) for change in self.changes],
        }


@dataclass(frozen=True, slots=True)
class Imported:
    """The whole text's answer, in its order."""

    items: tuple[Item, ...]

    @property
    def deployments(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.outcome is Outcome.DEPLOYMENT)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {"items": [item.to_dict() for item in self.items], "deployments": len(self.deployments)}


def _fields(value: Change | Reason) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}

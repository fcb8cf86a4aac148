"""The shape of every decision: an action, a stable reason code, and the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

Action = TypeVar("Action", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Decision(Generic[Action]):
    """What to do, why, and on what evidence (small JSON-able facts)."""

    action: Action
    reason: str
    evidence: Mapping[str, object] = field(default_factory=dict)

"""The rows of plans.csv, read; README.md says what the columns mean."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

from hosts.facts import HostFacts
from orchestrator import profiles

HERE = Path(__file__).parent
PLANS = HERE / "plans.csv"


@dataclass(frozen=True)
class Row:
    """One model on one host, and what must be planned."""

    id: str
    model: str
    facts: str
    concurrency: int
    wish: dict[str, str]
    runtime: tuple[str, ...]
    weights: str
    method: tuple[str, ...]
    draft: tuple[int, int] | None
    """The shortest and longest draft, where the method drafts."""
    verdict: tuple[str, ...]
    source: str

    @property
    def planned(self) -> bool:
        """Whether a plan must come out."""
        return bool(self.runtime)


def several(text: str) -> tuple[str, ...]:
    """`a|b` as its parts, empty as none."""
    return tuple(text.split("|")) if text else ()


def read() -> list[Row]:
    """All rows, in their order."""
    with PLANS.open(encoding="utf-8", newline="") as file:
        return [_row(line) for line in csv.DictReader(file)]


def _row(line: dict[str, str]) -> Row:
    wish = dict(pair.split("=", 1) for pair in line["wish"].split(";") if pair)
    draft = (int(line["draft_min"]), int(line["draft_max"])) if line["draft_min"] else None
    return Row(
        line["id"], line["model"], line["facts"], int(line["concurrency"]), wish, several(line["runtime"]),
        line["weights"], several(line["method"]), draft, several(line["verdict"]), line["source"],
    )  # fmt: skip


def facts(name: str) -> HostFacts:
    """The host of a row."""
    file = HERE / "facts" / f"{name}.json"
    if file.exists():
        return HostFacts.from_dict(json.loads(file.read_text(encoding="utf-8")))
    return profiles.load(name)

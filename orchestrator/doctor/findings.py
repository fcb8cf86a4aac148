"""What the rules say, and how their answers become one report. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.doctor.machine import Machine


class Severity(StrEnum):
    """A problem keeps something from working; a warning makes it slow, fragile, or will break it later."""

    PROBLEM = "problem"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Fault:
    """What a rule found: a sentence, the numbers and files behind it, commands that mend it.

    `severity` and `code` where they differ from the rule's own. Each line of `fix` can be typed as it stands.
    """

    finding: str
    evidence: Mapping[str, object]
    fix: tuple[str, ...]
    severity: Severity | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A module of `rules/`. `needs` names the sources without which it cannot say anything."""

    code: str
    severity: Severity
    source: str
    needs: tuple[str, ...]
    supersedes: frozenset[str]
    check: Callable[[Machine], Iterable[Fault]]


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault with its code, how bad it is, and the source that taught the rule."""

    code: str
    severity: Severity
    finding: str
    evidence: Mapping[str, object]
    fix: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A rule that could not be asked, and why."""

    code: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """Findings, the worst first, and which rules were asked."""

    findings: tuple[Finding, ...] = ()
    checked: tuple[str, ...] = ()
    not_checked: tuple[NotChecked, ...] = field(default=())

    @property
    def healthy(self) -> bool:
        """No finding is a problem."""
        return all(finding.severity is not Severity.PROBLEM for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The document of `outrider doctor --json`."""
        return {
            "findings": [{**dataclasses.asdict(f), "severity": str(f.severity)} for f in self.findings],
            "checked": list(self.checked),
            "not_checked": [dataclasses.asdict(skipped) for skipped in self.not_checked],
        }


def judge(machine: Machine, rules: Sequence[Rule]) -> Report:
    """Ask every rule whose sources were seen."""
    findings: list[Finding] = []
    checked: list[str] = []
    skipped: list[NotChecked] = []
    for rule in rules:
        unseen = next((name for name in rule.needs if name in machine.unseen), None)
        if unseen is not None:
            skipped.append(NotChecked(rule.code, f"{unseen}: {machine.unseen[unseen]}"))
            continue
        try:
            found = list(_findings(rule, machine))
        except Exception as error:  # a defect of one rule is no reason to keep what the others found
            skipped.append(NotChecked(rule.code, f"the rule failed: {type(error).__name__}: {error}"))
            continue
        checked.append(rule.code)
        findings += found
    findings.sort(key=lambda finding: (finding.severity is not Severity.PROBLEM, finding.code, finding.finding))
    return Report(tuple(findings), tuple(checked), tuple(skipped))


def _findings(rule: Rule, machine: Machine) -> Iterator[Finding]:
    for fault in rule.check(machine):
        yield Finding(
            code=fault.code or rule.code,
            severity=fault.severity or rule.severity,
            finding=fault.finding,
            evidence=dict(fault.evidence),
            fix=fault.fix,
            source=rule.source,
        )

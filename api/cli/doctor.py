"""`outrider doctor`: what is wrong with this machine, and what to type. Needs no daemon."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.options import Json, common
from api.cli.output import note, print_json, say
from orchestrator.errors import NotFound

if TYPE_CHECKING:
    from orchestrator.doctor.findings import Finding, Report, Rule

PROBLEMS = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    ctx: typer.Context,
    rule: Annotated[
        list[str] | None, typer.Option("--rule", metavar="CODE", help="Ask this rule only; may be repeated.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Say which rules there are, and ask none.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with this machine and how to mend it. 1 when there is a problem; warnings alone are 0."""
    rules = _chosen(rule)
    if listing:
        _list(rules, as_json=as_json)
        return
    from orchestrator.doctor.asking import by_a_person
    from orchestrator.doctor.collect import collect
    from orchestrator.doctor.findings import judge

    only = {source for chosen in rules for source in chosen.needs} if rule else None
    report = judge(collect(by_a_person(common(ctx).paths), only), rules)
    if as_json:
        print_json(report.to_dict())
    else:
        _print(report)
    if not report.healthy:
        raise typer.Exit(PROBLEMS)


def _chosen(codes: Sequence[str] | None) -> Sequence[Rule]:
    from orchestrator.doctor import rules

    try:
        return rules.chosen(codes)
    except KeyError as error:
        raise NotFound(f"there is no rule {error.args[0]!r}", hint="`outrider doctor --list` names them") from error


def _list(rules: Sequence[Rule], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [{"code": r.code, "severity": str(r.severity), "needs": list(r.needs), "source": r.source} for r in rules]
        )
        return
    width = max(len(r.code) for r in rules)
    for r in rules:
        say(f"{r.code:<{width}}  {r.severity:<7}  {r.source}")


def _print(report: Report) -> None:
    for finding in report.findings:
        _print_finding(finding)
    problems = sum(finding.severity == "problem" for finding in report.findings)
    warnings = len(report.findings) - problems
    counts = [f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((problems, "problem"), (warnings, "warning")) if n]
    say(f"{len(report.checked)} rules: {', '.join(counts) or 'nothing is wrong'}")
    for skipped in report.not_checked:
        note(f"not checked: {skipped.code} ({skipped.why})")


def _print_finding(finding: Finding) -> None:
    say(f"{finding.severity} [{finding.code}] {finding.finding}")
    for line in _evidence(finding.evidence):
        say(f"  {line}")
    for command in finding.fix:
        say(f"  $ {command}")
    say(f"  why: {finding.source}")
    say("")


def _evidence(evidence: Mapping[str, object]) -> list[str]:
    return [f"{key}: {_short(value)}" for key, value in evidence.items() if value not in (None, [], {}, ())]


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)

"""`outrider doctor`: what is wrong with this machine, and what to type; the bundle of `outrider probe --report`.

Neither needs a daemon.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import Json, common
from api.cli.output import note, print_json, say
from orchestrator.errors import NotFound, UsageError

if TYPE_CHECKING:
    from hosts.facts import HostFacts
    from orchestrator.doctor.findings import Finding, Report, Rule
    from orchestrator.paths import Paths

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
    """Say what is wrong with this machine and how to mend it. Exit code 1 when there is a problem, 0 for warnings."""
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
    if report.findings and os.geteuid() != 0:
        note("commands that change the system are for root: put `sudo` before them")
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


def write_report(paths: Paths, file: Path | None, *, as_json: bool) -> None:
    """Write the bundle. Raises `UsageError` when the file cannot be written."""
    import datetime as dt

    from orchestrator.clock import SystemClock
    from orchestrator.doctor import bundle, rules
    from orchestrator.doctor.asking import by_a_person
    from orchestrator.doctor.collect import collect
    from orchestrator.doctor.findings import judge

    if file is None:
        now = dt.datetime.fromtimestamp(SystemClock().wall(), tz=dt.UTC)
        file = Path(f"outrider-report-{now:%Y%m%dT%H%M%SZ}.json")
    question = by_a_person(paths)
    machine = collect(question)
    report = judge(machine, rules.load())
    document = bundle.gather(question, machine, report, lambda: _plans(paths, machine.facts))
    try:
        written = bundle.write(document, file)
    except OSError as error:
        raise UsageError(
            f"{file}: {error.strerror or error}", hint="`outrider probe --report /tmp/report.json`"
        ) from error
    note(f"wrote {file} ({written // 1024 + 1} KiB): {len(report.findings)} findings, facts, versions, kernel lines")
    note("names, addresses, serial numbers and secrets were taken out; look at it yourself before you send it")
    if as_json:
        print_json({"report": str(file), "bytes": written, "findings": len(report.findings)})


def _plans(paths: Paths, facts: HostFacts) -> Iterator[Mapping[str, Any]]:
    """What would be launched for each model here, in a few words. A model that cannot be planned says why."""
    from orchestrator import catalogue, planner
    from orchestrator.clock import SystemClock
    from orchestrator.config import load
    from orchestrator.errors import OutriderError
    from orchestrator.model_files import FileReader

    try:
        config = load(paths)
    except OutriderError as error:
        yield {"error": error.code}
        return
    known = config.laid_over(catalogue.shipped())
    for entry in known.models:
        try:
            planned = planner.plan(
                entry,
                facts,
                known,
                FileReader().inspect(entry, paths.store),
                defaults=planner.Preferences.of_host(config.defaults),
                store=str(paths.store),
                today=SystemClock().today(),
            )
        except OutriderError as error:
            yield {"model": entry.name, "error": error.code}
            continue
        plan = planned.plan
        if plan is None:
            yield {"model": entry.name, "rejected": sorted({r.code for r in planned.rejected})}
        else:
            yield {
                "model": plan.model,
                "variant": plan.variant,
                "runtime": plan.runtime,
                "image": plan.image,
                "method": str(plan.method),
                "context": plan.context,
                "expected_memory": plan.expected_memory.total,
            }

"""`outrider probe` and `outrider plan`: what needs no daemon."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.options import Json, Model, common
from api.cli.output import note, print_json, say
from orchestrator.errors import NotFound, UsageError

if TYPE_CHECKING:
    from hosts.facts import HostFacts
    from orchestrator.catalogue import Catalogue
    from orchestrator.config import Config
    from orchestrator.plan import Planned

REFUSED = 4


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(probe)
    app.command()(plan)


def probe(
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="With --report: where it goes.", show_default=False)
    ] = None,
    *,
    report: Annotated[
        bool, typer.Option("--report", help="Write what a bug report needs to a file: facts, findings, logs.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what this machine is: CPU, memory, GPUs. Also what could not be found out."""
    from api.cli.views import host_lines
    from hosts.probe import probe as look

    if report:
        from api.cli.doctor import write_report

        write_report(common(ctx).paths, file, as_json=as_json)
        return
    if file is not None:
        raise UsageError("a file is written with --report only", hint=f"`outrider probe --report {file}`")
    document = look().to_dict()
    if as_json:
        print_json(document)
        return
    for line in host_lines(document):
        say(line)
    for problem in document["problems"]:
        say(f"problem   [{problem['code']}] {problem['detail']}")
        if problem["hint"]:
            say(f"          hint: {problem['hint']}")


def plan(
    ctx: typer.Context,
    model: Model,
    *,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="NAME", help="Plan for this shipped host instead of this machine."),
    ] = None,
    facts: Annotated[
        Path | None, typer.Option("--facts", metavar="FILE", help="Plan for the host of this file (`probe --json`).")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", metavar="K=V,...", help="As if the model said so, such as context=8192,method=none."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show the command line, every reason with its source, and all alternatives.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what would be launched for a model, and why. Also what was turned down; starts nothing."""
    from api.cli.plantext import print_planned
    from orchestrator import planner
    from orchestrator.clock import SystemClock
    from orchestrator.config import load
    from orchestrator.measured import NOTHING
    from orchestrator.measuring import offline
    from orchestrator.model_files import FileReader

    paths = common(ctx).paths
    wishes = pairs(what_if or [])
    config = load(paths)
    catalogue = _catalogue(config)
    host = host_facts(profile, facts)
    entry = catalogue.find(model)
    files = FileReader().inspect(entry, paths.store)
    known, unread = (NOTHING, None) if profile or facts else offline.measured(paths.measurements, host)
    if unread is not None:
        note(f"without what this host has measured: {unread}")
    defaults, today = planner.Preferences.of_host(config.defaults), SystemClock().today()

    def answer(given: Mapping[str, str] | None) -> Planned:
        store = str(paths.store)
        return planner.plan(
            entry, host, catalogue, files, what_if=given, defaults=defaults, store=store, today=today, measured=known
        )  # fmt: skip

    planned = answer(wishes)
    changes = planner.changes(answer(None), planned) if wishes else {}
    if as_json:
        print_json({**planned.to_dict(), **({"changes": changes} if wishes else {})})
    else:
        print_planned(planned, changes, everything=everything)
    if planned.plan is None:
        raise typer.Exit(REFUSED)


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """`--what-if a=1,b=2 --what-if c=3` as a mapping. Raises `UsageError` for what is no pair."""
    found: dict[str, str] = {}
    for pair in (part for text in texts for part in text.split(",") if part.strip()):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(f"--what-if: {pair!r} is no KEY=VALUE", hint="such as --what-if context=8192,method=none")
        if key.strip() in found:
            raise UsageError(f"--what-if: {key.strip()!r} is given twice", hint="give each key once")
        found[key.strip()] = value.strip()
    return found


def host_facts(profile: str | None, file: Path | None) -> HostFacts:
    """A shipped host's facts, those of a file, or this machine's. Raises `UsageError` and `NotFound`."""
    from hosts.facts import FactsError, HostFacts
    from hosts.probe import probe as look

    if profile is not None and file is not None:
        raise UsageError("--profile and --facts both name a host", hint="give one of them")
    if profile is not None:
        from orchestrator.profiles import load as shipped

        return shipped(profile)
    if file is None:
        return look()
    try:
        data = json.loads(file.read_bytes())
        if not isinstance(data, Mapping):
            raise FactsError("expected a table")
        return HostFacts.from_dict(data)
    except OSError as error:
        raise NotFound(
            f"--facts {file}: {error.strerror}", hint="name a file that `outrider probe --json` made"
        ) from error
    except ValueError as error:
        raise UsageError(f"--facts {file}: {error}", hint="`outrider probe --json` shows the form") from error


def _catalogue(config: Config) -> Catalogue:
    from orchestrator.catalogue import shipped

    return config.laid_over(shipped())

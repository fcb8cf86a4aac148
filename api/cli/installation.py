"""`outrider install` and `outrider uninstall`: this machine's service, made and taken away."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import Json
from api.cli.output import amount, note, print_json, say
from orchestrator.errors import Refused

if TYPE_CHECKING:
    from api.install.doing import Doing, Step

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; do nothing.")]
Prefix = Annotated[
    Path | None,
    typer.Option("--prefix", metavar="DIR", help="Put the files below this folder instead, as a packager does."),
]
PrefixOf = Annotated[
    Path | None,
    typer.Option("--prefix", metavar="DIR", help="What `install --prefix` put below this folder instead."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(install)
    app.command()(uninstall)


def install(
    *,
    dry_run: DryRun = False,
    prefix: Prefix = None,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start the service, too.")] = True,
    as_json: Json = False,
) -> None:
    """Make Outrider a service of this machine.

    Application, user, folders, units. Again: repair or upgrade. An existing configuration is never changed.
    """
    from importlib.metadata import version

    from api.install.application import present
    from api.install.installing import Wish
    from api.install.installing import install as work
    from api.install.preflight import root

    if prefix is None:
        root("install")
    doing = _doing(prefix, dry_run, as_json)
    left = work(doing, present(version("outrider")), Wish(start))
    _answer(doing, as_json, {"next": left})
    if not as_json:
        say("nothing is done yet" if dry_run else "Outrider is installed." if doing.changed else "All is in place.")
        for line in left:
            say(f"  {line}")


def uninstall(
    *,
    dry_run: DryRun = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Weights, configuration, user and images built here go as well.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before weights are removed.")] = False,
    prefix: PrefixOf = None,
    as_json: Json = False,
) -> None:
    """Stop the service and remove what `install` made.

    Weights and configuration stay.
    """
    from api.install.preflight import root
    from api.install.removing import uninstall as work

    if prefix is None:
        root("uninstall")
    if purge and not dry_run and not yes:
        _ask(prefix)
    doing = _doing(prefix, dry_run, as_json)
    left = work(doing, purge=purge)
    _answer(doing, as_json, {"left": left})
    if not as_json:
        say("nothing is done yet" if dry_run else "Outrider is uninstalled.")
        if left:
            say("left:" if not dry_run else "would be left:")
        for line in left:
            say(f"  {line}")


def _doing(prefix: Path | None, dry: bool, as_json: bool) -> Doing:
    from api.install import layout
    from api.install.doing import Doing
    from api.install.manifest import Manifest

    where = None if prefix is None else prefix.absolute()
    if where is not None and not dry:
        where.mkdir(parents=True, exist_ok=True)
    manifest = Manifest.read(layout.under(where, layout.MANIFEST), dry=dry)
    return Doing(manifest, where, dry, lambda step: _tell(step, dry, as_json))


def _tell(step: Step, dry: bool, as_json: bool) -> None:
    if step.state == "unchanged":
        return
    verb = {"made": "make", "changed": "change", "removed": "remove"}.get(step.state, step.state)
    shown = f"would {verb}" if dry and verb != step.state else step.state
    line = f"{shown:<12} {step.what} {step.subject}{f' ({step.detail})' if step.detail else ''}"
    (note if as_json else say)(line)


def _answer(doing: Doing, as_json: bool, more: dict[str, Any]) -> None:
    same = sum(step.state == "unchanged" for step in doing.steps)
    if not as_json:
        if same:
            say("1 thing was in place already" if same == 1 else f"{same} things were in place already")
        return
    print_json(
        {
            "dry_run": doing.dry,
            "prefix": None if doing.prefix is None else str(doing.prefix),
            "changed": doing.changed,
            "steps": [step.to_dict() for step in doing.steps],
            **more,
        }
    )


def _ask(prefix: Path | None) -> None:
    """Weights are many hours of somebody's line: they go when a person says so."""
    from api.install import layout
    from api.install.preflight import sizes

    folders = [str(layout.under(prefix, path)) for path in (layout.CONFIG, layout.STATE)]
    if not sys.stdin.isatty():
        raise Refused(
            f"--purge removes {' and '.join(folders)} ({amount(sizes(*folders))}) and was not confirmed",
            hint="give --yes as well, or call it in a terminal; --dry-run shows what would go",
        )
    if not typer.confirm(f"Remove {' and '.join(folders)} ({amount(sizes(*folders))}) for good?", err=True):
        raise Refused("not confirmed; nothing was done")

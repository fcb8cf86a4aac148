"""`outrider config check|show|schema` and `outrider reload`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from api.cli.options import Json, common
from api.cli.output import note, print_json, print_table, say

config_app = typer.Typer(no_args_is_help=True, help="Look at the configuration; needs no daemon.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(config_app, name="config")
    app.command()(reload)


@config_app.command()
def check(ctx: typer.Context, as_json: Json = False) -> None:
    """Read all files and explain every error with file, key and a hint."""
    from dataclasses import asdict

    from orchestrator.catalogue import shipped
    from orchestrator.catalogue.reading import files_in
    from orchestrator.config import ConfigProblems, exposure, load, model_files
    from orchestrator.config_cautions import cautions
    from orchestrator.errors import exit_code

    paths = common(ctx).paths
    try:
        config = load(paths)
    except ConfigProblems as error:
        if not as_json:
            raise
        print_json({"ok": False, "problems": [asdict(p) for p in error.problems]})
        raise typer.Exit(exit_code(error)) from error
    if (warning := exposure(config)) is not None:
        note(f"warning: {warning}")
    known = config.laid_over(shipped())
    odd = cautions(config, str(paths.config_file), known.model, [m.name for m in known.models])
    for one in odd:
        note(f"warning: {one}; {one.hint}")
    files = [str(f) for f in (paths.config_file, *model_files(paths), *files_in(paths.catalog_d, [])) if f.exists()]
    if as_json:
        print_json(
            {
                "ok": True,
                "problems": [],
                "files": files,
                "models": [m.name for m in config.models],
                "warnings": [asdict(one) for one in odd],
            }
        )
        return
    for file in files:
        say(file)
    if not files:
        say(f"{paths.config_dir} holds no configuration: defaults")
    say(f"ok: {len(config.models)} model{'' if len(config.models) == 1 else 's'}")


@config_app.command()
def show(ctx: typer.Context, as_json: Json = False) -> None:
    """Print the configuration as it is read, defaults filled in, and the folders in use."""
    from orchestrator.config import load

    paths = common(ctx).paths
    document = load(paths).model_dump(mode="json")
    folders = {"config": paths.config_dir, "state": paths.state_dir, "run": paths.run_dir, "models": paths.store}
    document["folders"] = {name: str(folder) for name, folder in folders.items()}
    if as_json:
        print_json(document)
        return
    for section, values in document.items():
        if isinstance(values, dict) and section not in ("origins", "catalogue"):
            say(f"[{'engine' if section == 'defaults' else section}]")
            for key, value in values.items():
                say(f"{key} = {_toml(value)}")
            say("")
    for model in document["models"]:
        say(f"model {model['name']}  ({document['origins'][model['name']]})")
    for kind in ("origins", "dropped"):
        for name, file in document["catalogue"][kind].items():
            say(f"catalogue: {'no ' if kind == 'dropped' else ''}{name}  ({file})")


@config_app.command()
def schema() -> None:
    """Print the JSON schema of the files."""
    from orchestrator.config_schema import schema as published

    print_json(published())


def reload(
    ctx: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    as_json: Json = False,
) -> None:
    """Take up a changed configuration. A bad file keeps the old one."""
    from api.cli.client import Client

    with Client(common(ctx).paths) as client:
        result = client.call("POST", "/reload", body={"dry_run": dry_run}, timeout=60)
    if as_json:
        print_json(result)
        return
    for warning in result.get("warnings", ()):
        note(f"warning: {warning}")
    print_changes(result["changes"])
    if result["changes"]:
        say("applied" if result["applied"] else "not applied (dry run)")


def print_changes(changes: Sequence[Mapping[str, Any]]) -> None:
    """A configuration diff as a table."""
    print_table(
        ("WHAT", "CHANGE", "DETAIL", "APPLYING"),
        [(c["subject"], c["kind"], c["detail"], _ACTIONS.get(c["action"], c["action"])) for c in changes],
        empty="nothing changed",
    )


_ACTIONS = {
    "none": "touches no engine",
    "start": "starts an engine",
    "stop": "stops its engine",
    "apply": "makes a new plan",
    "restart_daemon": "at the next start of daemon and gateway",
}


def _toml(value: object) -> str:
    if value is None:
        return "(unset)"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)

"""`outrider measured ls|rm`: what this host has learned from running engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from api.cli.options import Json, common, models_named
from api.cli.output import amount, duration, print_json, print_table, say
from orchestrator.errors import UsageError

measured_app = typer.Typer(no_args_is_help=True, help="What this host has learned from running: list it, forget it.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(measured_app, name="measured")


@measured_app.command()
def ls(ctx: typer.Context, as_json: Json = False) -> None:
    """List what plans count on: memory beyond what was expected, time to be ready, speed of one request."""
    from api.cli.client import Client

    with Client(common(ctx).paths) as client:
        found = client.get("/measurements")
    if as_json:
        print_json(found)
        return
    print_table(
        ("MODEL", "VARIANT", "RUNTIME", "ON", "METHOD", "STARTS", "MEMORY", "READY AFTER", "TOKENS/S", "SEEN"),
        [_row(view) for view in found],
        empty="nothing was learned yet: `outrider start MODEL` starts an engine",
    )


def _row(view: Mapping[str, Any]) -> tuple[str, ...]:
    memory = view["memory"]
    sign = "" if memory is None else "+" if memory >= 0 else "-"
    others = ", ".join(view["other_drivers"])
    drafter = f" ({view['drafter']})" if view["drafter"] else ""
    return (
        view["model"],
        view["variant"],
        f"{view['runtime']} {view['version'] or ''}".strip(),
        view["arch"],
        f"{view['method']}{drafter}",
        str(view["starts"]),
        "-" if memory is None else f"{sign}{amount(abs(memory))}",
        "-" if view["load_s"] is None else duration(view["load_s"]),
        "-" if view["tokens_s"] is None else f"{view['tokens_s']:.1f}",
        view["seen"] or f"with driver {others}",
    )


@measured_app.command()
def rm(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Its public name.", autocompletion=models_named, show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Of all models.")] = False,
    as_json: Json = False,
) -> None:
    """Forget what was learned, as after a change of the machine. Engines go on."""
    from api.cli.client import Client

    if (model is None) != everything:
        raise UsageError("of which model?", hint="give its name, or --all")
    with Client(common(ctx).paths) as client:
        found = client.call("DELETE", "/measurements", params={} if model is None else {"model": model})
    if as_json:
        print_json(found)
    else:
        count = found["forgotten"]
        say(f"forgot {count} combination{'' if count == 1 else 's'}" if count else "nothing of it was known")

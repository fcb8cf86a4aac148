"""`outrider pause|resume [MODEL]`: whether Outrider may act by itself."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from api.cli.options import Json, at, common, models_named
from api.cli.output import clock_time, print_json, say

Which = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", help="Only this one; else everything.", autocompletion=models_named, show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for function in (pause, resume):
        app.command()(function)


def pause(ctx: typer.Context, model: Which = None, as_json: Json = False) -> None:
    """Have Outrider do nothing by itself: no restart, no switch, no unloading.

    For one model, or for all. It goes on looking, does what you ask for, and `outrider why` says what it would have
    done. The pause outlives the daemon; `outrider resume` ends it.
    """
    _ask(ctx, "PUT", model, as_json)


def resume(ctx: typer.Context, model: Which = None, as_json: Json = False) -> None:
    """Let Outrider act by itself again; without a model, on everything."""
    _ask(ctx, "DELETE", model, as_json)


def _ask(ctx: typer.Context, method: str, model: str | None, as_json: bool) -> None:
    from api.cli.client import Client

    path = "/pauses" if model is None else at("deployments", model, "pause")
    with Client(common(ctx).paths) as client:
        paused: list[dict[str, Any]] = client.call(method, path)
    if as_json:
        print_json(paused)
        return
    for one in paused:
        say(f"{one['deployment'] or 'everything'} is paused, by {one['author']} since {clock_time(one['at'])}")
    if not paused:
        say("nothing is paused: Outrider acts by itself")

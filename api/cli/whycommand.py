"""`outrider why MODEL`: the story of a deployment."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from api.cli.options import Json, Model, at, common
from api.cli.output import print_json, say
from orchestrator.errors import UsageError

_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(why)


def span(text: str) -> float:
    """`30m`, `2h`, `7d` in seconds. Raises `UsageError`."""
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(f"--since {text}: is no span of time", hint="for example 30m, 2h, 7d")
    return float(found[1]) * _UNITS[found[2]]


def why(
    ctx: typer.Context,
    model: Model,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="SPAN", help="So far back (30m, 2h, 7d); else since its last start or stop."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what happened to a model, from which evidence, and what was done.

    Then what comes next by itself, and what you can do.
    """
    from api.cli.client import Client
    from orchestrator.telling.text import lines

    params = {} if since is None else {"since_s": str(span(since))}
    with Client(common(ctx).paths) as client:
        story = client.get(at("deployments", model, "why"), params=params)
    if as_json:
        print_json(story)
        return
    for line in lines(story):
        say(line)

"""`outrider prune`: remove what nothing needs, after showing it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from api.cli.options import Json, common
from api.cli.output import amount, note, print_json, print_table, say, ticker
from orchestrator.errors import Refused

LIMIT = 600.0
"""Seconds for all of it: a prune walks the store, and removes files that may be large."""
_SHOWN_USERS = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(prune)


def prune(
    ctx: typer.Context,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go and what uses the rest.")] = False,
    images: Annotated[bool, typer.Option("--images", help="Images, and what pulls left.")] = False,
    weights: Annotated[bool, typer.Option("--weights", help="Weights, and what pulls left.")] = False,
    caches: Annotated[bool, typer.Option("--caches", help="Compile caches, and what building images keeps.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what nothing uses now, but a model or the catalogue may want again.")
    ] = False,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="DAYS", min=0.0, help="Only what has not changed for so long.")
    ] = 0.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove what Outrider brought and nothing needs.

    Images, weights, caches and logs, unless some are named; it asks before. Engines and what they use are never
    touched, nor is anything of others.
    """
    from api.cli.client import Client

    groups = [name for name, chosen in (("images", images), ("weights", weights), ("caches", caches)) if chosen]
    wish: dict[str, Any] = {"groups": groups, "everything": everything, "older_than_days": older_than}
    with Client(common(ctx).paths) as client:
        with ticker("looking at what is here"):
            found = client.call("POST", "/prune", body={**wish, "dry_run": True}, timeout=LIMIT)
        going = [thing for thing in found["things"] if thing["action"] == "remove"]
        if not as_json:
            print_found(found, going)
        if not dry_run and going:
            if not yes:
                _ask(found, going, as_json=as_json)
            body = {**wish, "dry_run": False, "only": [thing["id"] for thing in going]}
            with ticker(f"removing {len(going)}"):
                found = client.call("POST", "/prune", body=body, timeout=LIMIT)
    if as_json:
        print_json({**found, "dry_run": dry_run})
    elif not dry_run and going:
        print_done(found)
    if any(thing["outcome"] == "failed" for thing in found["things"]):
        raise typer.Exit(1)


def print_found(found: Mapping[str, Any], going: Sequence[Mapping[str, Any]]) -> None:
    """Two tables: what goes, and what stays because something needs it."""
    if going:
        say("These can go:")
    print_table(
        ("KIND", "NAME", "SIZE", "WHY"),
        [(thing["kind"], thing["name"], amount(thing["bytes"]), thing["text"]) for thing in going],
        empty="nothing that could go",
    )
    if going:
        say(f"{amount(found['reclaimable_bytes'])} in all; images share layers, so it may be less")
    staying = [thing for thing in found["things"] if thing["reason"] in ("in_use", "wanted", "too_young")]
    if staying:
        say("\nThese stay:" if going else "These stay:")
        print_table(
            ("KIND", "NAME", "SIZE", "WHY"),
            [(thing["kind"], thing["name"], amount(thing["bytes"]), _why(thing)) for thing in staying],
            empty="",
        )
    for problem in found["problems"]:
        note(f"warning: {problem['text']}")


def print_done(found: Mapping[str, Any]) -> None:
    """What came of it."""
    removed = [thing for thing in found["things"] if thing["outcome"] == "removed"]
    say(f"removed {len(removed)}, {amount(found['freed_bytes'])}")
    for thing in found["things"]:
        if thing["outcome"] == "failed":
            error = thing["error"]
            note(f"error[{error['code']}]: {thing['kind']} {thing['name']}: {error['text']}")


def _why(thing: Mapping[str, Any]) -> str:
    users = list(thing["used_by"])
    more = f" and {len(users) - _SHOWN_USERS} more" if len(users) > _SHOWN_USERS else ""
    return f"{thing['text']}: {', '.join(users[:_SHOWN_USERS])}{more}" if users else str(thing["text"])


def _ask(found: Mapping[str, Any], going: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """A yes from a person. Nobody to ask is a no: a script has to say --yes."""
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused(
            "nothing is removed without a yes, and there is nobody to ask",
            hint="the same command with --yes removes it, with --dry-run it is only shown",
            evidence={"things": len(going), "bytes": found["reclaimable_bytes"]},
        )
    typer.confirm(f"Remove these {len(going)}?", abort=True)

"""`outrider catalog list|show|check`: what ships and what the owner's files make of it; needs no daemon."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import Json, common
from api.cli.output import amount, note, print_json, print_table, say
from orchestrator.errors import UsageError
from orchestrator.models import Runtime
from orchestrator.plan import Evidence, Method
from orchestrator.telling.amounts import count

if TYPE_CHECKING:
    from orchestrator.catalogue import Catalogue

FAILED = 1
catalog_app = typer.Typer(no_args_is_help=True, help="Look at models, images and what is known of them.")


class Kind(StrEnum):
    """What can be listed."""

    MODELS = "models"
    IMAGES = "images"
    COMBINATIONS = "combinations"
    RESTRICTIONS = "restrictions"
    RUNTIMES = "runtimes"
    HANDLED = "handled"


Profile = Annotated[str | None, typer.Option("--profile", metavar="NAME", help="Only what concerns this shipped host.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(catalog_app, name="catalog")


@catalog_app.command("list")
def list_(
    ctx: typer.Context,
    kind: Annotated[Kind | None, typer.Argument(metavar="KIND", help="One kind of entry.", show_default=False)] = None,
    *,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="About this model.")] = None,
    runtime: Annotated[Runtime | None, typer.Option("--runtime", help="About this runtime.")] = None,
    arch: Annotated[
        str | None, typer.Option("--arch", metavar="ARCH", help="About this architecture: sm_86, gfx1151, cpu.")
    ] = None,
    method: Annotated[Method | None, typer.Option("--method", help="About this way of drafting.")] = None,
    evidence: Annotated[Evidence | None, typer.Option("--evidence", help="Combinations with this verdict.")] = None,
    expired: Annotated[bool, typer.Option("--expired", help="Those whose day has passed.")] = False,
    as_json: Json = False,
) -> None:
    """List models and images, or what is known to work and not to, the owner's entries among them."""
    from orchestrator.catalogue.showing import Filter, listed
    from orchestrator.clock import SystemClock

    catalogue = _catalogue(ctx)
    found = None if model is None else catalogue.find(model)
    wanted = Filter(None if found is None else found.name, runtime, arch, method, evidence, expired)
    kinds: tuple[Kind, ...] = (Kind.MODELS, Kind.IMAGES)
    if kind is not None:
        kinds = (kind,)
    elif evidence is not None or expired:
        kinds = (Kind.COMBINATIONS, *((Kind.RESTRICTIONS,) if evidence is None else ()))
    elif as_json or wanted != Filter():
        kinds = tuple(Kind)
    document = listed(catalogue, kinds, wanted, SystemClock().today())
    if as_json:
        print_json(document)
        return
    for position, (name, entries) in enumerate(document.items()):
        if not entries and kind is None:
            continue
        if position:
            say("")
        headings, row = _TABLES[Kind(name)]
        print_table(headings, [row(e) for e in entries], empty=f"no {name}")


def _words(values: Any) -> str:
    return " ".join(str(v) for v in values) or "-"


_NAMED = (
    "model", "variant", "image", "arch", "backend", "method", "methods", "drafter", "versions", "quantisation", "kv",
)  # fmt: skip


def _about(e: Mapping[str, Any]) -> str:
    """What a combination or restriction names, besides its runtime."""
    words = []
    for key in _NAMED:
        value = e.get(key)
        if value and value != "*":
            words.append(",".join(value) if isinstance(value, list) else str(value))
    return " ".join(words)


_TABLES: Mapping[Kind, tuple[tuple[str, ...], Any]] = {
    Kind.MODELS: (
        ("MODEL", "VARIANTS", "DRAFTERS", "FROM"),
        lambda e: (
            e["name"],
            ", ".join(v["name"] for v in e["variants"]),
            ", ".join(f"{d['name']} ({d['method']})" for d in e["drafters"]) or "-",
            e["origin"] or "-",
        ),
    ),
    Kind.IMAGES: (
        ("IMAGE", "RUNTIME", "VERSION", "FOR", "REFERENCE"),
        lambda e: (
            e["name"],
            e["runtime"],
            e.get("version") or (f">= {e['at_least']}" if e.get("at_least") else "-"),
            _words([e.get("vendor") or "cpu", *e["arch"]]),
            e["reference"],
        ),
    ),
    Kind.COMBINATIONS: (
        ("COMBINATION", "VERDICT", "DATE", "RUNTIME", "ABOUT", "GAIN", "FROM"),
        lambda e: (
            e["id"],
            "expired" if e.get("expired") else e["evidence"],
            e["date"],
            e["runtime"],
            _about(e),
            f"{e['gain']:g}x" if e.get("gain") else "-",
            e["origin"],
        ),
    ),
    Kind.RESTRICTIONS: (
        ("RESTRICTION", "EFFECT", "RUNTIME", "ABOUT", "TEXT"),
        lambda e: (e["id"], e["effect"], e["runtime"], _about(e) or "-", e["text"]),
    ),
    Kind.RUNTIMES: (("RUNTIME", "WHY", "INSTEAD"), lambda e: (e["name"], e["why"], e["instead"])),
    Kind.HANDLED: (
        ("KNOWN", "RUNTIME", "TEXT"),
        lambda e: (e["id"], e.get("runtime") or "-", e["text"]),
    ),
}


def _names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completion: the names of everything."""
    from orchestrator.catalogue import shipped
    from orchestrator.catalogue.reading import FIELDS, name_of

    catalogue = shipped()
    names = (name_of(e) for field in FIELDS.values() for e in getattr(catalogue, field))
    return [name for name in names if name.startswith(incomplete)]


@catalog_app.command()
def show(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A model, image, combination, restriction or runtime.",
            autocompletion=_names,
            show_default=False,
        ),
    ],
    *,
    profile: Profile = None,
    here: Annotated[bool, typer.Option("--here", help="Only what concerns this machine.")] = False,
    as_json: Json = False,
) -> None:
    """Show one thing, and all that is known of it."""
    from orchestrator.catalogue.showing import about
    from orchestrator.clock import SystemClock

    if here and profile is not None:
        raise UsageError("--here and --profile both name a host", hint="give one of them")
    document = about(_catalogue(ctx), name, SystemClock().today(), _arches(profile, here))
    if as_json:
        print_json(document)
        return
    (_show_model if document["kind"] == "model" else _show_entry)(document)


def _arches(profile: str | None, here: bool) -> Mapping[str, str | None] | None:
    """The architectures of the host that was named, with their vendors; None for any."""
    if profile is None and not here:
        return None
    if profile is not None:
        from orchestrator.profiles import load

        facts = load(profile)
    else:
        from hosts.probe import probe

        facts = probe()
    found = {a.arch or "unknown": a.vendor for a in facts.accelerators}
    return found or {"cpu": None}


def _show_model(document: Mapping[str, Any]) -> None:
    aliases = f" ({', '.join(document['aliases'])})" if document["aliases"] else ""
    say(f"{document['name']}{aliases}, from {document['origin'] or 'nowhere'}")
    print_table(
        ("VARIANT", "FORMAT", "QUANTISATION", "WEIGHTS", "WHERE"),
        [
            (v["name"], v["format"], v["quantisation"], amount(v.get("weight_bytes")), _where(v))
            for v in document["variants"]
        ],
        empty="no variants",
    )
    for thing in (*document["variants"], *document["drafters"]):
        if "method" in thing:
            size = amount(thing.get("weight_bytes"))
            say(f"drafter {thing['name']}: {thing['method']}, {size}, {_where(thing)}")
        if thing.get("gated"):
            say(f"  {thing['name']} is gated: its publisher must be asked for it")
        if thing.get("note"):
            say(f"  {thing['name']}: {thing['note']}")
    for c in document["combinations"]:
        say(_combination(c))
    for r in document["restrictions"]:
        say(f"[{r['id']}] {r['effect']}, {r['runtime']}: {r['text']} ({r['source']})")


def _where(thing: Mapping[str, Any]) -> str:
    revision = f" at {thing['revision']}" if thing.get("revision") else ""
    return f"{thing.get('path') or thing.get('repository') or '-'}{revision}"


def _combination(c: Mapping[str, Any]) -> str:
    verdict = f"untried (proof expired {c['expires']})" if c.get("expired") else c["evidence"]
    until = f", until {c['expires']}" if c.get("expires") and not c.get("expired") else ""
    parts = [f"{verdict} {c['date']}{until}: {c['runtime']} {c['method']} on {c['arch']}, variant {c['variant']}"]
    if c.get("versions"):
        parts.append(f"version {c['versions']}")
    if c.get("gain"):
        parts.append(f"{c['gain']:g}x at one request")
    if c.get("crossover"):
        parts.append(f"used up at {c['crossover']}")
    if c.get("measured"):
        parts.append("tok/s " + ", ".join(f"{rate:g} at {requests}" for requests, rate in c["measured"]))
    said = f": {c['note']}" if c.get("note") else ""
    return f"[{c['id']}] {', '.join(parts)}{said} ({c['source']})"


def _show_entry(document: Mapping[str, Any]) -> None:
    for key, value in document.items():
        if key in ("combinations", "restrictions"):
            continue
        if value in ([], {}, "", "*", None):
            continue
        say(f"{key:<17} {_cell(value)}")
    for c in document.get("combinations", ()):
        say(_combination(c))
    for r in document.get("restrictions", ()):
        say(f"[{r['id']}] {r['effect']}: {r['text']}")


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_cell(v)}" for k, v in value.items() if v not in (None, {}, []))
    if isinstance(value, list):
        return ", ".join(f"{v[0]}: {v[1]:g}" if isinstance(v, list) else str(v) for v in value)
    return str(value)


@catalog_app.command()
def check(
    ctx: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILES]...", help="Catalogue files to look at as well.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look for what is wrong or doubtful in what ships, in catalog.d and in these files. 1 where something is wrong."""
    from dataclasses import asdict

    from orchestrator.catalogue import files as shipped_files
    from orchestrator.catalogue import shipped
    from orchestrator.catalogue.checking import check as look
    from orchestrator.catalogue.reading import files_in, read
    from orchestrator.clock import SystemClock
    from orchestrator.config import load
    from orchestrator.config_problems import ConfigProblems, Problem

    paths = common(ctx).paths
    problems: list[Problem] = []
    own = tuple(dict.fromkeys((*files_in(paths.catalog_d, problems), *(f.absolute() for f in files or ()))))
    layer = read(own, problems)
    catalogue = shipped()
    try:
        config = load(paths)
    except ConfigProblems as error:
        problems += [p for p in error.problems if p not in problems]
    else:
        catalogue = config.model_copy(update={"catalogue": layer}).laid_over(catalogue)
    findings = () if problems else look(catalogue, layer, shipped(), SystemClock().today())
    if as_json:
        print_json(
            {
                "ok": not problems,
                "problems": [asdict(p) for p in problems],
                "warnings": [asdict(f) for f in findings],
                "files": [str(f) for f in (*shipped_files(), *own)],
            }
        )
    else:
        for p in problems:
            note(f"error: {p}")
            note(f"hint: {p.hint}")
        for f in findings:
            say(f"warning [{f.code}] {f.entry}: {f.text}; {f.hint}")
        if not problems:
            say(
                f"ok: {len(shipped_files())} files that ship, {len(own)} of your own, {count(len(findings), 'warning')}"
            )
    if problems:
        raise typer.Exit(FAILED)


def _catalogue(ctx: typer.Context) -> Catalogue:
    from orchestrator.catalogue import shipped
    from orchestrator.config import load

    return load(common(ctx).paths).laid_over(shipped())

"""`outrider import`: the recipes of others, as a deployment or an explained refusal. Needs no daemon."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.offline import REFUSED, host_facts
from api.cli.options import LOAD, Json, common
from api.cli.output import note, print_json, say
from orchestrator.errors import Conflict, NotFound, UsageError

if TYPE_CHECKING:
    from orchestrator.config import Config
    from orchestrator.importing import Here, Imported, Item, Kind
    from orchestrator.models import ModelEntry
    from orchestrator.paths import Paths

_WIDEST = 100
_UNSAID = "not said"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_)


def import_(
    ctx: typer.Context,
    recipe: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|-] [-- COMMAND...]", help="A file, - for input, or a command.", show_default=False
        ),
    ] = None,
    *,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="auto, shell, compose, quadlet or modelfile.")
    ] = "auto",
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The public name to give the model.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="Judge for this shipped host, not this machine.")
    ] = None,
    facts: Annotated[
        Path | None, typer.Option("--facts", metavar="FILE", help="Judge for the host of this file (`probe --json`).")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write/--dry-run", help="Write what is a deployment into models.d; never over a file.")
    ] = False,
    takeover: Annotated[
        str | None,
        typer.Option("--takeover", metavar="UNIT", help="Stop this systemd unit and run its model instead."),
    ] = None,
    within: Annotated[
        float, typer.Option("--within", metavar="SECONDS", help="With --takeover: until ready, else the unit again.")
    ] = LOAD,
    keep_enabled: Annotated[
        bool, typer.Option("--keep-enabled", help="With --takeover: let the unit come up with the machine as before.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read a vllm, llama-server, SGLang, docker or podman command, a compose file or a Quadlet unit.

    With --takeover the command is that of a systemd unit. Nothing is touched without --write; with it, the unit
    is stopped, its model started, and the unit started again if the model is not ready in time.
    """
    from orchestrator.catalogue import shipped
    from orchestrator.config import load
    from orchestrator.importing import Here

    paths = common(ctx).paths
    config = load(paths)
    catalogue = config.laid_over(shipped())
    here = Here(catalogue, host_facts(profile, facts), name)
    if name is not None and not name.strip():
        raise UsageError("--name is empty", hint="give the model a name")
    if takeover is not None:
        _only_the_unit(recipe, kind, profile, facts)
        from api.cli.takeover import Asked, take_over

        asked = Asked(write=write, within=within, disable=not keep_enabled, as_json=as_json)
        take_over(common(ctx), takeover, here, config, asked)
        return
    imported = _read(recipe or [], here, _kind(kind))
    found = imported.deployments
    if name is not None and len(found) > 1:
        raise UsageError(f"--name {name}: {len(found)} deployments were read", hint="import one at a time")
    entries = [item.entry for item in found if item.entry is not None]
    written = written_to(alone(entries, config.models), paths) if write else []
    planned = [None if item.entry is None else planned_here(item.entry, here, config, paths) for item in imported.items]
    document: dict[str, Any] = {**imported.to_dict(), "written": [str(file) for file in written]}
    for shown, said in zip(document["items"], planned, strict=True):
        shown["here"] = said
    if as_json:
        print_json(document)
    else:
        for item, said in zip(imported.items, planned, strict=True):
            show(item, said)
        _say_what_next(imported, written, write=write)
    if not found:
        raise typer.Exit(REFUSED)


def _say_what_next(imported: Imported, written: Sequence[Path], *, write: bool) -> None:
    for file in written:
        note(f"wrote {file}: `outrider reload` takes it up, `outrider plan` says what would be launched")
    if not imported.items:
        note("no command was found in it")
    if imported.deployments and not write:
        note("nothing was written: --write does, then `outrider plan` says what would be launched")


def _only_the_unit(recipe: list[str] | None, kind: str, profile: str | None, facts: Path | None) -> None:
    if recipe or profile is not None or facts is not None or kind != "auto":
        raise UsageError("--takeover reads the unit itself", hint="leave FILE, --kind, --profile and --facts out")


def _kind(text: str) -> Kind:
    from orchestrator.importing import Kind

    try:
        return Kind(text)
    except ValueError:
        raise UsageError(f"--kind: {text!r} is unknown", hint=f"one of {', '.join(Kind)}") from None


def _read(words: list[str], here: Here, kind: Kind) -> Imported:
    from orchestrator.importing import ImportUnreadable, read
    from orchestrator.importing.reading import of_words
    from orchestrator.importing.values import MOST_BYTES

    if len(words) > 1:
        return of_words(words, here)
    if not words and sys.stdin.isatty():
        raise UsageError("what is to be read?", hint="name a file, - for standard input, or `-- COMMAND...`")
    try:
        if not words or words[0] == "-":
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        elif any(c in words[0] for c in " \n\0") and not _exists(words[0]):
            return read(words[0], here, kind)
        else:
            with Path(words[0]).open("rb") as stream:
                data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise NotFound(f"{words[0]}: {error.strerror}", hint="name a file that can be read") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ImportUnreadable("the text is not UTF-8", hint="give a text file") from error
    return read(text, here, kind)


def _exists(text: str) -> bool:
    """Whether a text names a file; a command is too long for a name, or says what no name can."""
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def alone(entries: Sequence[ModelEntry], configured: Sequence[ModelEntry]) -> list[ModelEntry]:
    """The entries without aliases that another model has: a configuration in which two have one is refused whole."""
    taken = {name: model.name for model in configured for name in (model.name, *model.aliases)}
    found = []
    for entry in entries:
        theirs = {alias for alias in entry.aliases if taken.get(alias, entry.name) != entry.name}
        for alias in sorted(theirs):
            note(f"{entry.name}: the alias {alias} is left out, {taken[alias]} has it already")
        kept = tuple(alias for alias in entry.aliases if alias not in theirs)
        if (owner := taken.get(entry.name, entry.name)) != entry.name:
            raise Conflict(
                f"{entry.name} is the name of {owner} already", hint="give the model another name with --name"
            )
        found.append(entry.model_copy(update={"aliases": kept}))
        taken |= dict.fromkeys((entry.name, *kept), entry.name)
    return found


def written_to(entries: list[ModelEntry], paths: Paths) -> list[Path]:
    """New files in models.d, all or none. Raises `Conflict` where one would replace something."""
    from orchestrator import model_toml
    from orchestrator.model_store import name_is_free

    folder = paths.models_d
    files = [model_toml.file_of(folder, entry.name) for entry in entries]
    if len(set(files)) < len(files):
        raise UsageError("two deployments have the same name", hint="import one at a time, with --name")
    for entry, file in zip(entries, files, strict=True):
        name_is_free(entry.name, folder)
        if file.exists():
            raise Conflict(f"{file} is there already", hint="give the model another name with --name, or remove it")
    for entry, file in zip(entries, files, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError as error:
            raise Conflict(f"{file} is there already", hint="give the model another name with --name") from error
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(model_toml.dumps(entry))
    return files


def planned_here(entry: ModelEntry, here: Here, config: Config, paths: Paths) -> dict[str, Any] | None:
    """What `outrider plan` would say of the deployment on this host: a plan in a word, or why there is none."""
    from orchestrator import planner
    from orchestrator.clock import SystemClock
    from orchestrator.model_files import FileReader

    if here.facts is None:
        return None
    found = planner.plan(
        entry,
        here.facts,
        here.catalogue,
        FileReader().inspect(entry, paths.store),
        defaults=planner.Preferences.of_host(config.defaults),
        store=str(paths.store),
        today=SystemClock().today(),
    )
    if found.plan is None:
        nearest = next(iter(found.rejected), None)
        code, text = ("no_image", "nothing runs it here") if nearest is None else (nearest.code, nearest.text)
        return {"fits": False, "code": code, "text": text, "evidence": None, "weights_here": None}
    plan = found.plan
    text = f"{plan.runtime} with {plan.method}, {plan.context} tokens x {plan.parallel}, {plan.evidence}"
    here_too = not any(reason.code == "weights_missing" for reason in plan.reasons)
    return {"fits": True, "code": None, "text": text, "evidence": plan.evidence.value, "weights_here": here_too}


def show(item: Item, here: Mapping[str, Any] | None) -> None:
    from orchestrator.model_toml import dumps

    head = item.text if len(item.text) <= _WIDEST else f"{item.text[: _WIDEST - 3]}..."
    say(f"{item.outcome.value} (line {item.line}, {item.what}): {head}")
    if item.reason is not None:
        source = f" ({item.reason.source})" if item.reason.source else ""
        say(f"  [{item.reason.code}] {item.reason.text}{source}")
    if item.entry is not None:
        for line in dumps(item.entry).splitlines():
            if line and not line.startswith("#"):
                say(f"  {line}")
    for change in item.changes:
        source = f" ({change.source})" if change.source else ""
        was, becomes = change.was or _UNSAID, change.becomes or "left out"
        what = f"[{change.was}]" if change.code == "known_limit" and change.becomes is None else f"{was} -> {becomes}"
        say(f"  {change.code}: {what}: {change.why}{source}")
    if here is not None:
        say(
            f"  here: {here['text']}"
            if here["fits"]
            else f"  here: cannot be launched: [{here['code']}] {here['text']}"
        )
    say("")

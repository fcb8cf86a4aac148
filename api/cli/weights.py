"""`outrider model pull|verify|ls|show`: weights from the hub, and what is here of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from api.cli.library import follow_job
from api.cli.options import Common, Json, Model, at, common
from api.cli.output import amount, clock_time, note, print_json, print_table, say, ticker
from orchestrator.errors import DigestMismatch, NotFound, UsageError
from orchestrator.telling.amounts import count

HUB = 180.0
"""Seconds for an answer that itself waits for the hub's, with its retries."""
_REPOSITORY = re.compile(r"(?P<repository>[^@\s/]+/[^@\s/]+?)(@(?P<revision>\S+))?")


def register(app: typer.Typer) -> None:
    """Add the commands to `outrider model`."""
    app.command("ls")(ls)
    app.command("pull")(pull)
    app.command("verify")(verify)
    app.command("show")(show)


def pull(
    ctx: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A model's name, or ORG/REPO[:TAG][@REV] with --name.", show_default=False
        ),
    ],
    *,
    variant: Annotated[str | None, typer.Option("--variant", metavar="V", help="Which of its variants.")] = None,
    drafter: Annotated[
        list[str] | None, typer.Option("--drafter", metavar="D", help="A drafter to fetch with it; repeatable.")
    ] = None,
    all_drafters: Annotated[bool, typer.Option("--all-drafters", help="All drafters of that variant.")] = False,
    revision: Annotated[
        str | None,
        typer.Option("--revision", metavar="REV", help="Take this branch, tag or commit, and keep to what it is now."),
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", metavar="PATTERN", help="Which GGUF file of ORG/REPO, by name or pattern.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The new model's public name.")] = None,
    alias: Annotated[list[str] | None, typer.Option("--alias", metavar="NAME", help="Another name for it.")] = None,
    context: Annotated[int | None, typer.Option("--context", min=1, help="Tokens a sequence, of a new model.")] = None,
    parallel: Annotated[
        int | None, typer.Option("--parallel", min=1, help="Sequences at once, of a new model.")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads, of a new model.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show files, bytes and room; fetch nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Show progress until it is there.")] = True,
    as_json: Json = False,
) -> None:
    """Fetch a model's weights from the hub, with the drafter that would be used here.

    What was cut off is gone on with. The commit is settled at the first pull and kept until --revision names another.
    """
    sizes = {"context": context, "parallel": parallel, "threads": threads}
    if name is None and file is None:
        if alias or any(sizes.values()):
            raise UsageError("--alias and sizes are for a new model", hint="give it a name with --name")
        request: dict[str, Any] = {
            "model": model,
            "variant": variant,
            "drafters": drafter,
            "all_drafters": all_drafters or None,
            "revision": revision,
        }
    else:
        request = {**_repository(model, revision), "file": file, "name": name, "aliases": alias, **sizes}
        request |= {"variant": variant, "drafters": drafter, "all_drafters": all_drafters or None}
        if name is None:
            raise UsageError("a new model needs a name", hint="--name NAME")
    if dry_run:
        _preview(common(ctx), request, as_json=as_json)
    else:
        pull_as_asked(common(ctx), request, wait=wait, as_json=as_json)


def _repository(text: str, revision: str | None) -> dict[str, Any]:
    found = _REPOSITORY.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no repository", hint="such as ORG/REPO, ORG/REPO:Q4_K_M or ORG/REPO@main")
    if revision is not None and found["revision"] is not None:
        raise UsageError("the revision is said twice", hint="leave @REV or --revision out")
    return {"repository": found["repository"], "revision": revision or found["revision"]}


def _said(request: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in request.items() if value is not None and value != []}


def pull_as_asked(options: Common, request: Mapping[str, Any], *, wait: bool, as_json: bool) -> None:
    """Start a pull, and with `wait` follow it to its end."""
    from api.cli.client import Client

    with Client(options.paths) as client:
        job = client.call("POST", "/pulls", body=_said(request), timeout=60)
        if wait:
            with ticker(f"{job['subject']}: pulling") as shown:
                job = follow_job(client, job, shown)
    if as_json:
        print_json(job)
    elif wait:
        say(f"pulled {job['subject']}: {job['detail']}")
    else:
        say(f"pulling {job['subject']}: job {job['id']}; `outrider model pull {job['subject']}` shows how far it is")


def pull_missing(options: Common, model: str) -> None:
    """Fetch what `outrider start` would miss; quick, and without the hub, when nothing is missing."""
    from api.cli.client import Client

    with Client(options.paths) as client:
        found = next((m for m in client.get("/models") if model == m["name"] or model in m["aliases"]), None)
        if found is not None and (found["files_ok"] or not any(w["repository"] for w in found["weights"])):
            return
        job = client.call("POST", "/pulls", body={"model": model}, timeout=60)
        with ticker(f"{job['subject']}: pulling") as shown:
            job = follow_job(client, job, shown)
        note(f"{job['subject']}: {job['detail']}")


def _preview(options: Common, request: Mapping[str, Any], *, as_json: bool) -> None:
    from api.cli.client import Client

    with Client(options.paths) as client:
        found = client.call("POST", "/pulls/preview", body=_said(request), timeout=HUB)
    if as_json:
        print_json(found)
        return
    rows = [
        (part["what"], file["path"], amount(file["size"]), _state(file), part["commit"][:12])
        for part in found["parts"]
        for file in part["files"]
    ]
    print_table(("FOR", "FILE", "SIZE", "STATE", "COMMIT"), rows, empty="nothing belongs to it")
    say(
        f"{amount(found['total_bytes'])} in all, {amount(found['have_bytes'])} of it here, "
        f"{amount(found['fetch_bytes'])} to fetch; {amount(found['free_bytes'])} free"
    )
    if not found["fits"]:
        note(f"it would be refused: {found['problem']}")
        if found["hint"]:
            note(f"hint: {found['hint']}")


def _state(file: Mapping[str, Any]) -> str:
    return f"fetch (has {amount(file['partial'])})" if file["partial"] else str(file["state"])


def verify(ctx: typer.Context, model: Model, as_json: Json = False) -> None:
    """Read a model's weights again and compare them with what was recorded. Exit code 1 when one differs."""
    from api.cli.client import Client

    with Client(common(ctx).paths) as client:
        job = client.call("POST", at("models", model, "verify"), timeout=60)
        with ticker(f"{job['subject']}: reading") as shown:
            job = follow_job(client, job, shown)
    found = job.get("result") or {"ok": False, "files": []}
    bad = [file for file in found["files"] if file["ok"] is False]
    if as_json:
        print_json({"model": job["subject"], **found})
        if bad:
            raise typer.Exit(1)
        return
    marks = {True: "ok", False: "BAD", None: "?"}
    rows = [(marks[f["ok"]], amount(f["size"]), f["path"], f["detail"]) for f in found["files"]]
    print_table(("", "SIZE", "FILE", "DETAIL"), rows, empty=job["detail"])
    if bad:
        raise DigestMismatch(
            f"{len(bad)} of {len(found['files'])} files of {job['subject']} are not as they were",
            hint=f"`outrider model pull {job['subject']}` fetches those of the hub again",
        )


def ls(
    ctx: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Also weights that are not here.")] = False,
    as_json: Json = False,
) -> None:
    """List weights: which are here, of which commit, how large, when they were checked, and where they lie."""
    from api.cli.client import Client

    with Client(common(ctx).paths) as client:
        found = client.get("/models")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            model["name"],
            w["name"] if w["kind"] == "variant" else f"{w['name']} (drafter)",
            w["state"],
            amount(w["bytes"]),
            (w["revision"] or "-")[:12],
            w["origin"] or "-",
            _checked(w),
            w["path"] or w["problem"] or f"`outrider model pull {model['name']}`",
        )
        for model in found
        for w in model["weights"]
        if every or w["state"] != "missing"
    ]
    heads = ("MODEL", "WEIGHTS", "STATE", "SIZE", "COMMIT", "FROM", "CHECKED", "WHERE")
    print_table(heads, rows, empty="no weights are here: `outrider model ls --all` lists what could be fetched")


def show(ctx: typer.Context, model: Model, as_json: Json = False) -> None:
    """Say what a model's files say: quantisation, context, MTP head, and which drafters belong to it."""
    from api.cli.client import Client

    with Client(common(ctx).paths) as client:
        found = next((m for m in client.get("/models") if model in (m["name"], *m["aliases"])), None)
    if found is None:
        raise NotFound(f"there is no model {model!r}", hint="`outrider models` lists what there is")
    if as_json:
        print_json(found)
        return
    also = f", also {', '.join(found['aliases'])}" if found["aliases"] else ""
    say(f"{found['name']}{also}, from {found['origin']}")
    for weights in found["weights"]:
        what = f"{weights['format']}, {amount(weights['bytes'])}, {weights['state']}"
        say(f"  {weights['kind']} {weights['name']}: {what}")
        for line in fact_lines(weights):
            say(f"    {line}")


def fact_lines(weights: Mapping[str, Any]) -> list[str]:
    """What one file, or folder, says of itself, a line a thing."""
    facts = weights.get("facts")
    if facts is None:
        return [weights["problem"]] if weights["problem"] else []
    parts = [facts["architecture"] or "unknown architecture", facts["quantisation"] or "unknown quantisation"]
    if facts["layers"] is not None:
        parts.append(f"{facts['layers']} layers")
    if facts["context"] is not None:
        parts.append(f"trained for {facts['context']} tokens")
    lines = [", ".join(parts)]
    if facts["unclear"]:
        lines.append(f"its memory cannot be told: {facts['unclear']}")
    if facts["method"] is not None:
        longest = "" if facts["draft_tokens"] is None else f" of up to {count(facts['draft_tokens'], 'token')}"
        lines.append(f"drafts{longest} with {facts['method']}")
    if facts["mtp_head"] != "none":
        here = "yes" if facts["mtp_head"] == "here" else "declared, but its weights are not there"
        lines.append(f"MTP head: {here}")
    if facts["vision_bytes"]:
        lines.append(f"vision: {amount(facts['vision_bytes'])}")
    if weights["kind"] == "variant" and facts["method"] is None and not facts["chat_template"]:
        lines.append("no chat template")
    for variant, why in sorted(facts["pairs"].items()):
        lines.append(f"belongs to {variant}" if why is None else f"does not belong to {variant}: {why}")
    return lines


def _checked(weights: Mapping[str, Any]) -> str:
    if weights["checked_ok"] is False:
        return "BAD"
    at_ = weights["checked_at"]
    return clock_time(at_) if at_ is not None else "yes" if weights["checked_ok"] else "-"

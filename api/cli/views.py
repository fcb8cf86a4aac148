"""`outrider ps|status|events|logs|models`: what the daemon shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import Json, Model, at, common
from api.cli.output import after, amount, clock_time, duration, print_json, print_table, say, size

if TYPE_CHECKING:
    from api.cli.client import Client

PAGE = 5000
"""Journal entries asked for at once."""
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Go on as new ones come, until Ctrl-C.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for function in (ps, status, issues, events, logs, models):
        app.command()(function)


def ps(ctx: typer.Context, as_json: Json = False) -> None:
    """List deployments: what was asked for, what runs, and why not."""
    from api.cli.client import Client

    with Client(common(ctx).paths) as client:
        found = client.get("/deployments")
    if as_json:
        print_json(found)
        return
    print_deployments(found)


def print_deployments(found: list[Mapping[str, Any]]) -> None:
    """The table of `ps`."""
    print_table(
        ("MODEL", "STATE", "DESIRED", "GEN", "RUNTIME", "METHOD", "IN FLIGHT", "WAITING", "SINCE", "WHY"),
        [_deployment_row(d) for d in found],
        empty="nothing is deployed: `outrider models` lists what could be, `outrider start MODEL` starts one",
    )


def _deployment_row(view: Mapping[str, Any]) -> tuple[str, ...]:
    engine = view.get("engine") or {}
    draft = f" x{engine['draft_tokens']}" if engine.get("draft_tokens") else ""
    why = (view.get("reason") or {}).get("text") or (view.get("progress") or {}).get("detail") or ""
    if not why and view.get("rung"):
        last = view["rung"]["left"][-1]
        why = f"on a lower rung: {view['rung']['text']} ({last['failures']} x {last['code']} before)"
    why = why or _demand(view)
    if view.get("next_attempt_s") is not None:
        why = f"{why} (tried again {after(view['next_attempt_s'])})"
    return (
        view["deployment"],
        f"{view['state']}{' (drifted)' if view.get('drifted') else ''}{' (paused)' if view.get('paused_by') else ''}",
        view["desired"],
        str(engine.get("generation", "-")),
        engine.get("runtime", "-"),
        f"{engine['method']}{draft}" if engine else "-",
        str(view["in_flight"]),
        str(view["waiting"]),
        clock_time(engine["since"]) if engine else "-",
        why,
    )


def _demand(view: Mapping[str, Any]) -> str:
    """When it was used last, and when or whether it goes."""
    demand = view.get("demand")
    if not demand or view["desired"] != "on_demand":
        return ""
    used = demand["last_used_s"]
    words = [] if used is None else [f"last used {duration(used)} ago"]
    if demand["unload_in_s"] is not None:
        words.append(f"unloaded in {duration(demand['unload_in_s'])}")
    if view.get("engine"):
        kept = demand["kept"]
        words.append("makes room when another needs it" if kept is None else f"stays: {kept['text']}")
    return ", ".join(words)


def status(ctx: typer.Context, as_json: Json = False) -> None:
    """Say how the daemon, this host and the deployments are."""
    from api.cli.client import Client

    with Client(common(ctx).paths) as client:
        health = client.get("/health")
        host = client.get("/host")
        deployments = client.get("/deployments")
        pauses = client.get("/pauses")
    if as_json:
        print_json({"health": health, "host": host, "deployments": deployments, "pauses": pauses})
        return
    say(f"daemon    {_verdict(health['ok'])}, version {health['version']}, up {duration(health['uptime_s'])}")
    say(f"podman    {_verdict(health['podman'])}")
    say(f"gateway   {_verdict(health['gateway'])}")
    for pause in pauses:
        name = pause["deployment"]
        end = f"`outrider resume{f' {name}' if name else ''}` ends it"
        say(f"paused    {name or 'everything'}, by {pause['author']} since {clock_time(pause['at'])}: {end}")
    for line in host_lines(host):
        say(line)
    for problem in (*health["problems"], *host["problems"]):
        say(f"problem   [{problem['code']}] {problem.get('text') or problem.get('detail')}")
        if problem.get("hint"):
            say(f"          hint: {problem['hint']}")
    say("")
    print_deployments(deployments)


def issues(ctx: typer.Context, as_json: Json = False) -> None:
    """List what a person should look at. Each goes from the list when it no longer holds."""
    from api.cli.client import Client
    from orchestrator.telling.evidence import seen

    with Client(common(ctx).paths) as client:
        found = client.get("/issues")
    if as_json:
        print_json(found)
        return
    for issue in found:
        say(f"{clock_time(issue['since'])}  [{issue['code']}] {issue['subject']}: {issue['text']}")
        numbers = [one.text for one in seen(issue["evidence"]) if one.limit is not None]
        if numbers:
            say(f"          seen: {'; '.join(numbers)}")
        if issue["hint"]:
            say(f"          hint: {issue['hint']}")
        if issue.get("deployment"):
            say(f"          `outrider why {issue['deployment']}` tells the story")
    if not found:
        say("no issues")


def _unwell(gpu: Mapping[str, Any]) -> str:
    """How a GPU is, if not well."""
    details = gpu.get("details") or {}
    health = details.get("health", "ok")
    old = f", last read {duration(details['age_s'])} ago" if details.get("stale") else ""
    return old if health == "ok" else f"{old}, {str(health).upper()} (`outrider issues`)"


def host_lines(host: Mapping[str, Any]) -> list[str]:
    """A host in a few lines: of `status` and of `probe`."""
    cpu, memory = host["cpu"], host["memory"]
    lines = [
        f"host      {host['host']}, {host['os'] or 'unknown system'}, kernel {host['kernel'] or 'unknown'}",
        f"cpu       {cpu['model'] or 'unknown'} ({cpu['arch']}), {cpu['threads']} threads",
        f"memory    {size(memory['total'])}, {size(memory['available'])} available",
    ]
    for gpu in host["accelerators"]:
        kind = "unified" if gpu["unified"] else "own"
        lines.append(
            f"gpu       {gpu['name'] or gpu['vendor']} ({gpu['arch'] or 'unknown architecture'}, {gpu['pci']}), "
            f"{size(gpu['memory_total'])} {kind} memory, {size(gpu['memory_free'])} free{_unwell(gpu)}"
        )
    if not host["accelerators"]:
        lines.append("gpu       none")
    if versions := version_words(host):
        lines.append(f"versions  {', '.join(versions)}")
    return lines


def version_words(host: Mapping[str, Any]) -> list[str]:
    """What GPUs run on, in short: drivers, firmware, BIOS, ROCm, and an APU's memory ceiling."""
    platform: Mapping[str, Any] = host.get("platform") or {}
    words = []
    for gpu in host["accelerators"]:
        cuda = f" (CUDA {gpu['cuda']})" if gpu.get("cuda") else ""
        if gpu.get("driver") and gpu["driver"] != host.get("kernel"):
            words.append(f"{gpu['vendor']} driver {gpu['driver']}{cuda}")
        mes = (gpu.get("details") or {}).get("mes_version")
        if mes is not None:
            words.append(f"MES firmware {mes:#x}")
    if platform.get("linux_firmware"):
        words.append(f"linux-firmware {platform['linux_firmware']}")
    if platform.get("rocm"):
        words.append(f"ROCm {platform['rocm']}")
    if platform.get("ttm_pages_limit"):
        words.append(f"GPU memory ceiling {size(platform['ttm_pages_limit'] * 4096)} ({platform['ttm_module']})")
    bios = " ".join(str(platform[key]) for key in ("bios_version", "bios_date") if platform.get(key))
    if bios:
        words.append(f"BIOS {bios}")
    return list(dict.fromkeys(words))


def _verdict(ok: bool | None) -> str:
    return "not heard of yet" if ok is None else "ok" if ok else "NOT ok"


def events(
    ctx: typer.Context,
    follow: Follow = False,
    since: Annotated[
        int | None, typer.Option("--since", metavar="SEQUENCE", min=0, help="Only entries after this one.")
    ] = None,
    deployment: Annotated[
        str | None, typer.Option("--deployment", metavar="MODEL", help="Only entries about this deployment.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the journal. With --follow --json each entry is a JSON document on a line of its own."""
    from api.cli.client import Client

    params: dict[str, str | int] = {} if since is None else {"since": since}
    if deployment is not None:
        params["deployment"] = deployment
    with Client(common(ctx).paths) as client:
        if follow:
            for message in client.stream("/events", params={**params, "follow": "true"}):
                say(json.dumps(message.data) if as_json else event_line(message.data))
            return
        found = all_events(client, params)
    if as_json:
        print_json(found)
        return
    for event in found:
        say(event_line(event))


def all_events(client: Client, params: Mapping[str, str | int]) -> list[Mapping[str, Any]]:
    """Every journal entry after `since`, page by page."""
    found: list[Mapping[str, Any]] = []
    since = params.get("since", 0)
    while True:
        page = client.get("/events", params={**params, "since": since, "limit": PAGE})
        found += page
        if len(page) < PAGE:
            return found
        since = page[-1]["sequence"]


def last_sequence(client: Client) -> int:
    """The newest journal entry's sequence; 0 for an empty journal."""
    found = all_events(client, {})
    return int(found[-1]["sequence"]) if found else 0


def event_line(event: Mapping[str, Any]) -> str:
    """A journal entry in one line."""
    about = event.get("deployment") or ""
    about = f"{about}: " if about and not event["text"].startswith(about) else ""
    return f"{clock_time(event['at'])}  {event['sequence']:>5}  {event['code']:<24}  {about}{event['text']}"


def logs(
    ctx: typer.Context,
    model: Model,
    follow: Follow = False,
    tail: Annotated[int, typer.Option("--tail", metavar="N", min=0, help="So many of the last lines.")] = 100,
    as_json: Json = False,
) -> None:
    """Show the log of a model's engine. It is the one that serves, or the last one."""
    from api.cli.client import Client

    with Client(common(ctx).paths) as client:
        if follow:
            for message in client.stream(at("deployments", model, "logs"), params={"tail": tail, "follow": "true"}):
                say(json.dumps(message.data) if as_json else message.data["text"])
            return
        lines = client.get(at("deployments", model, "logs"), params={"tail": tail})
    if as_json:
        print_json(lines)
        return
    for line in lines:
        say(line["text"])


def models(ctx: typer.Context, as_json: Json = False) -> None:
    """List the models that this host knows. Those of the configuration, and of the catalogue."""
    from api.cli.client import Client

    with Client(common(ctx).paths) as client:
        found = client.get("/models")
    if as_json:
        print_json(found)
        return
    print_table(
        ("MODEL", "ALIASES", "VARIANTS", "DRAFTERS", "WEIGHTS", "FILES", "FROM", "WHY"),
        [
            (
                m["name"],
                ", ".join(m["aliases"]) or "-",
                ", ".join(m["variants"]),
                ", ".join(m["drafters"]) or "-",
                amount(m["weight_bytes"]),
                "ok" if m["files_ok"] else "missing",
                m["origin"],
                m["problem"] or "",
            )
            for m in found
        ],
        empty="no models: add one with `outrider model add`",
    )

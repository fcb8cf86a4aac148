"""`outrider top`: one screen of what the GPUs and engines of this host do now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from api.cli.options import Json, common
from api.cli.output import clock_time, note, print_json, print_table, say, size


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(top)


def top(ctx: typer.Context, as_json: Json = False) -> None:
    """Show what GPUs and engines do now: memory, load, power. Also who else is on the GPUs."""
    from api.cli.client import Client

    with Client(common(ctx).paths) as client:
        samples = client.get("/telemetry", params={"limit": 1})
        host = client.get("/host")
        deployments = client.get("/deployments")
    sample = samples[-1] if samples else None
    if as_json:
        print_json({"sample": sample, "host": host, "deployments": deployments})
        return
    if sample is None:
        note("the daemon has not looked yet: try again in a few seconds")
        return
    _print(sample, host, deployments)


def _print(sample: Mapping[str, Any], host: Mapping[str, Any], deployments: Sequence[Mapping[str, Any]]) -> None:
    now = sample.get("host") or {}
    waits = (
        "" if now.get("memory_full") is None else f", tasks waited for memory {now['memory_full']:.1f} % of the time"
    )
    say(
        f"{host['host']} at {clock_time(sample['at'])}: "
        f"{size(now.get('memory_available'))} of {size(now.get('memory_total'))} available{waits}"
    )
    if sample["problems"]:
        say(f"not read this time: {', '.join(sample['problems'])}")
    say("")
    names = {gpu["pci"]: gpu["name"] or gpu["vendor"] for gpu in host["accelerators"]}
    print_table(
        ("GPU", "NAME", "USED", "OF", "FREE", "OTHERS", "BUSY", "CLOCK", "POWER", "TEMP", "HELD BACK BY"),
        [_gpu(one, names.get(one["pci"], "-")) for one in sample["accelerators"]],
        empty="no GPU",
    )
    say("")
    states = {engine["id"]: (d, engine) for d in deployments for engine in d["engines"]}
    print_table(
        ("MODEL", "GEN", "STATE", "GPU MEMORY", "HOST MEMORY", "IN FLIGHT", "WAITING"),
        [_engine(one, *states.get(one["id"], ({}, {}))) for one in sample["engines"]],
        empty="no engine runs",
    )
    if sample["others"]:
        say("")
        print_table(
            ("ALSO ON GPU", "PID", "NAME", "MEMORY", "KIND", "CONTAINER"),
            [
                (
                    o["pci"],
                    str(o["pid"]),
                    o["name"] or "-",
                    size(o["memory"]),
                    "desktop" if o["desktop"] else o["kind"],
                    (o["container"] or "-")[:12],
                )
                for o in sample["others"]
            ],
            empty="",
        )


def _gpu(one: Mapping[str, Any], name: str) -> tuple[str, ...]:
    power, limit = one["power_w"], one["power_limit_w"]
    held = one["throttled_by"]
    return (
        one["pci"],
        name,
        size(one["memory_used"]),
        size(one["memory_total"]),
        size(one["memory_free"]),
        size(one["others"]),
        _with(one["utilisation"], "%"),
        _with(one["clock_mhz"], "MHz"),
        "-" if power is None else f"{power:.0f} W" if limit is None else f"{power:.0f} of {limit:.0f} W",
        _with(one["temperature_c"], "C"),
        "-" if held is None else ", ".join(held).replace("_", " ") or "nothing",
    )


def _engine(one: Mapping[str, Any], view: Mapping[str, Any], engine: Mapping[str, Any]) -> tuple[str, ...]:
    gpu = sum(one["gpu_memory"].values()) if one["gpu_memory"] else None
    return (
        one["deployment"],
        str(one["generation"]),
        engine.get("state", "gone"),
        size(gpu),
        size(one["memory"]),
        str(engine.get("in_flight", "-")),
        str(view.get("waiting", "-")),
    )


def _with(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f} {unit}"

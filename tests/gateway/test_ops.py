"""The second listener: metrics that Prometheus can read, health, readiness; and what is told to the daemon."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.client import ask
from tests.gateway.stack import Stack, chat
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_metrics_are_what_happened(stack: Stack) -> None:
    await stack.serve('quo"ted')
    await stack.ask(chat('quo"ted', stream=True))
    await stack.ask(chat('quo"ted', fake={"die": True}))
    response = await stack.ops("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.body.decode())
        for sample in family.samples
    }
    model = ("model", 'quo"ted')

    def value(name: str, *labels: tuple[str, str]) -> float:
        return samples[(f"outrider_gateway_{name}", *sorted(labels))]

    assert value("up") == 1
    assert value("daemon_connected") == 1
    assert value("requests_total", model, ("outcome", "completed")) == 1
    assert value("requests_total", model, ("outcome", "failed")) == 1
    assert value("arrivals_total", model) == 2
    assert value("in_flight", model) == 0
    assert value("ready", model) == 1
    assert value("ttfb_seconds_count", model) == 1
    assert value("ttfb_seconds_bucket", model, ("le", "+Inf")) == 1
    engine = (("engine", 'quo"ted-0'), ("generation", "3"), ("plan", "ab" * 6), ("method", "dflash"))
    assert value("engine_events_total", *engine) == 4
    assert value("engine_errors_total", *engine) == 1
    assert value("resident_memory_bytes") > 10_000_000


async def test_readiness_is_per_model(stack: Stack) -> None:
    await stack.serve("awake", aliases=["org/awake"])
    stack.model("asleep", hold=True, state="loading", reason="it loads")
    await stack.publish()
    assert (await stack.ops("/ready/awake")).status == 200
    assert (await stack.ops("/ready/org/awake")).json()["ready"] is True
    asleep = await stack.ops("/ready/asleep")
    assert asleep.status == 503
    assert asleep.json() == {"model": "asleep", "ready": False, "state": "loading", "reason": "it loads"}
    assert (await stack.ops("/ready/nobody")).status == 503


async def test_health_says_where_the_table_is_from(stack: Stack) -> None:
    await stack.publish()
    assert await stack.health() == {"status": "ok", "daemon": True, "table": "daemon", "revision": stack.revision}


async def test_clients_and_operators_do_not_meet(stack: Stack) -> None:
    assert (await stack.ops("/v1/models")).status == 404
    assert (await ask(stack.gateway.ops, {}, "/metrics")).status == 405
    for path in ("/metrics", "/healthz", "/ready/x"):
        assert (await stack.ask(None, path)).status == 404


async def test_the_daemon_is_told_what_is_seen(stack: Stack) -> None:
    await stack.serve("reported")
    await stack.ask(chat("reported", stream=True))

    def told() -> bool:
        return bool(stack.daemon.reports[-1]["models"].get("reported", {}).get("completed"))

    await until(told, 5)
    first = stack.daemon.reports[-1]
    assert first["models"]["reported"] == {
        "arrivals": 1,
        "waiting": 0,
        "in_flight": 0,
        "completed": 1,
        "failed": 0,
        "rejected": 0,
        "cancelled": 0,
        "broken_off": 0,
        "asked_again": 0,
    }
    engine = first["engines"]["reported-0"]
    seen = {"in_flight", "bytes", "events", "requests", "prompt_bytes", "errors", "ttfb_s", "firsts", "flights"}
    assert set(engine) == seen | {"last_byte_s_ago", "last_data_s_ago"}
    assert (engine["events"], engine["requests"], engine["errors"]) == (4, 1, 0)
    count = len(stack.daemon.reports)
    await until(lambda: len(stack.daemon.reports) > count + 2, 5)
    later = stack.daemon.reports[-1]
    assert later["gateway_id"] == first["gateway_id"]
    assert later["uptime_s"] > first["uptime_s"]

"""/metrics: Prometheus text, made from the daemon's views at each scrape.

What no view holds comes from `Facade.metrics()`, a mapping of which every part may be absent::

    events           {"<kind>/<code>": count}            journal entries since the daemon started
    requests         {model: {arrivals, completed, failed, rejected, cancelled}}
    rates            {model: arrivals a second}
    engines          {engine id: {bytes, events, requests, errors, ttfb_s, last_byte_s_ago}}
    memory_expected  {deployment: {"weights": bytes, "kv": ..., "total": ..., "budget": ...}}
    switches         {deployment: {outcome: count}}
    <name>           number                              a gauge `outrider_<name>`

`requests` and `engines` have the names of the gateway's report; counts are as the daemon added
them up over all gateways since it started. Other mappings are left alone.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.control import telemetry_metrics
from hosts.facts import HostFacts
from orchestrator.errors import OutriderError
from orchestrator.facade import Facade
from orchestrator.views import DeploymentView, Desired, EngineView, Health, Issue, State

log = logging.getLogger("outrider.api")

MEDIA_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SOURCE_TIME = 5.0
"""Seconds for each source; Prometheus gives up on a scrape after 10."""
T = TypeVar("T")
_OUTCOMES = ("completed", "failed", "rejected", "cancelled")
_ENGINE_COUNTERS = ("bytes", "events", "requests", "errors")
_ENGINE_GAUGES = (("ttfb_s", "ttfb_seconds"), ("last_byte_s_ago", "last_byte_age_seconds"))
_NAME = re.compile(r"[a-z][a-z0-9_]*")


async def render(facade: Facade, version: str) -> bytes:
    """The exposition. A source that fails or is too slow is left out and named in `outrider_scrape_errors`."""
    failed: list[str] = []

    async def ask(name: str, call: Callable[[], Awaitable[T]]) -> T | None:
        try:
            async with asyncio.timeout(SOURCE_TIME):
                return await call()
        except (OutriderError, TimeoutError) as error:
            log.warning("metrics: %s is missing: %s", name, str(error) or "too slow")
            failed.append(name)
            return None

    health, host, issues, deployments, counters, telemetry = await asyncio.gather(
        ask("health", facade.health),
        ask("host", facade.host),
        ask("issues", facade.issues),
        ask("deployments", facade.deployments),
        ask("metrics", facade.metrics),
        ask("telemetry", lambda: facade.telemetry(limit=1)),
    )
    families = [
        _gauge(
            "outrider_build_info", "What runs.", ("version", "python"), [((version, platform.python_version()), 1.0)]
        ),
        *(() if health is None else _health(health)),
        *(() if host is None else _host(host)),
        *(() if issues is None else _issues(issues)),
        *(() if deployments is None else _deployments(deployments)),
        *(() if counters is None else _counters(counters)),
        *(() if telemetry is None else telemetry_metrics.families(telemetry)),
        _gauge(
            "outrider_scrape_errors", "Sources that are missing from this scrape.", ("source",), _ones(sorted(failed))
        ),
    ]
    registry = CollectorRegistry()
    registry.register(_Families(families))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Families(Collector):
    """Families that are already there."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


Samples = Iterable[tuple[tuple[str, ...], Any]]


def _gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        if _is_number(value):
            family.add_metric(values, value)
    return family


def _counter(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        if _is_number(value):
            family.add_metric(values, value)
    return family


def _is_number(value: object) -> bool:
    """Unknown is None, and an unknown value is no sample."""
    return isinstance(value, int | float)


def _issues(issues: Sequence[Issue]) -> Iterator[Metric]:
    yield _gauge(
        "outrider_issue",
        "1 while a person should look at it.",
        ("code", "subject"),
        [((i.code, i.subject), 1.0) for i in issues],
    )


def _ones(names: Iterable[str]) -> Samples:
    return [((name,), 1.0) for name in names]


def _health(health: Health) -> Iterator[Metric]:
    yield _gauge("outrider_ok", "Whether the daemon finds itself well.", (), [((), health.ok)])
    yield _gauge("outrider_uptime_seconds", "Seconds since the daemon started.", (), [((), health.uptime_s)])
    yield _gauge("outrider_podman_up", "Whether Podman answers.", (), [((), health.podman)])
    yield _gauge("outrider_gateway_up", "Whether the gateway is connected.", (), [((), health.gateway)])
    yield _gauge(
        "outrider_loop_age_seconds",
        "Seconds since each of the daemon's loops last went round.",
        ("loop",),
        [((name,), age) for name, age in health.loops.items()],
    )
    yield _gauge(
        "outrider_problem",
        "Problems that the daemon sees, by code.",
        ("code",),
        _ones(sorted({why.code for why in health.problems})),
    )


def _host(host: HostFacts) -> Iterator[Metric]:
    memory = (("total", host.memory.total), ("available", host.memory.available))
    yield _gauge(
        "outrider_host_memory_bytes", "System memory.", ("kind",), [((kind,), value) for kind, value in memory]
    )
    yield _gauge(
        "outrider_accelerator_info",
        "What accelerators there are.",
        ("pci", "vendor", "arch", "device"),
        [((a.pci, a.vendor, a.arch or "", a.name or ""), 1.0) for a in host.accelerators],
    )
    yield _gauge(
        "outrider_accelerator_memory_bytes",
        "Memory that engines may draw on.",
        ("pci", "kind"),
        [
            ((a.pci, kind), value)
            for a in host.accelerators
            for kind, value in (("total", a.memory_total), ("free", a.memory_free))
        ],
    )
    ages = [(a.pci, a.details.get("age_s")) for a in host.accelerators]
    yield _gauge(
        "outrider_accelerator_age_seconds",
        "How long ago the accelerator answered last: what is shown of it is as old.",
        ("pci",),
        [((pci,), age) for pci, age in ages if isinstance(age, int | float)],
    )


def _deployments(found: Sequence[DeploymentView]) -> Iterator[Metric]:
    yield _gauge(
        "outrider_deployment_state",
        "1 for the state that a deployment is in, 0 for the others.",
        ("deployment", "state"),
        [((d.deployment, str(s)), d.state is s) for d in found for s in State],
    )
    yield _gauge(
        "outrider_deployment_desired",
        "1 for what is asked of a deployment, 0 for the rest.",
        ("deployment", "desired"),
        [((d.deployment, str(s)), d.desired is s) for d in found for s in Desired],
    )

    def each(name: str, text: str, value: Callable[[DeploymentView], float]) -> Metric:
        return _gauge(name, text, ("deployment",), [((d.deployment,), value(d)) for d in found])

    yield each("outrider_deployment_in_flight", "Requests that engines work on.", lambda d: d.in_flight)
    yield each("outrider_deployment_waiting", "Requests that wait for an engine.", lambda d: d.waiting)
    yield each("outrider_deployment_drifted", "Whether the configuration asks for another plan.", lambda d: d.drifted)
    yield each(
        "outrider_deployment_paused",
        "Whether Outrider was told to do nothing by itself.",
        lambda d: d.paused_by is not None,
    )
    yield _counter(
        "outrider_deployment_restarts",
        "Restarts after failures.",
        ("deployment",),
        [((d.deployment,), d.restarts) for d in found],
    )
    engines = [engine for d in found for engine in d.engines]
    yield _gauge(
        "outrider_engine_info",
        "Engines, with what they run.",
        ("engine", "deployment", "generation", "state", "runtime", "method", "plan"),
        [(_engine_labels(e), 1.0) for e in engines],
    )

    def per_engine(name: str, text: str, value: Callable[[EngineView], float]) -> Metric:
        return _gauge(name, text, ("engine", "deployment"), [((e.id, e.deployment), value(e)) for e in engines])

    yield per_engine("outrider_engine_in_flight", "Requests that an engine works on.", lambda e: e.in_flight)
    yield per_engine("outrider_engine_draft_tokens", "Tokens drafted ahead; 0 without speculation.", _draft_tokens)


def _engine_labels(e: EngineView) -> tuple[str, ...]:
    return (e.id, e.deployment, str(e.generation), str(e.state), e.runtime, e.method, e.plan)


def _draft_tokens(e: EngineView) -> int:
    return e.draft_tokens


def _counters(data: Mapping[str, Any]) -> Iterator[Metric]:
    yield _gauge(
        "outrider_memory_expected_bytes",
        "What the plan in use expects to take, by kind.",
        ("deployment", "kind"),
        _nested(data, "memory_expected"),
    )
    yield _counter(
        "outrider_switches", "Changes of method or draft length.", ("deployment", "outcome"), _nested(data, "switches")
    )
    yield _counter(
        "outrider_events",
        "Journal entries since the daemon started.",
        ("kind", "code"),
        [(_kind_and_code(name), value) for name, value in data.get("events", {}).items()],
    )
    yield _gauge(
        "outrider_request_rate",
        "Requests that came, a second.",
        ("model",),
        [((name,), value) for name, value in data.get("rates", {}).items()],
    )
    models: Mapping[str, Mapping[str, Any]] = data.get("requests", {})
    yield _counter(
        "outrider_requests",
        "Requests that ended, by outcome.",
        ("model", "outcome"),
        [((name, outcome), counts.get(outcome)) for name, counts in models.items() for outcome in _OUTCOMES],
    )
    yield _counter(
        "outrider_request_arrivals",
        "Requests that came.",
        ("model",),
        [((name,), counts.get("arrivals")) for name, counts in models.items()],
    )
    engines: Mapping[str, Mapping[str, Any]] = data.get("engines", {})
    for key in _ENGINE_COUNTERS:
        yield _counter(
            f"outrider_engine_{key}",
            f"What the gateway saw of each engine: {key}.",
            ("engine",),
            [((name,), counts.get(key)) for name, counts in engines.items()],
        )
    for key, name in _ENGINE_GAUGES:
        yield _gauge(
            f"outrider_engine_{name}",
            "What the gateway saw last of each engine.",
            ("engine",),
            [((engine,), counts.get(key)) for engine, counts in engines.items()],
        )
    for name, value in data.items():
        if _is_number(value) and _NAME.fullmatch(name):
            yield _gauge(f"outrider_{name}", "Measured by the daemon.", (), [((), value)])


def _kind_and_code(name: str) -> tuple[str, str]:
    kind, _, code = name.rpartition("/")
    return kind, code


def _nested(data: Mapping[str, Any], key: str) -> Samples:
    return [((str(outer), str(inner)), v) for outer, values in data.get(key, {}).items() for inner, v in values.items()]

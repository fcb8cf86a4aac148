"""The gateway's metrics in Prometheus' text format."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from api.gateway.admission import TTFB_BUCKETS, Admission, Engine, Model

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_OUTCOMES = ("completed", "failed", "rejected", "cancelled")

Sample = tuple[dict[str, str], float]


def render(admission: Admission, *, linked: bool) -> str:
    """Everything, as one text."""
    table = admission.table
    models = admission.models()
    engines = list(admission.engines())
    now = time.monotonic()
    parts = [
        _family("up", "gauge", "1 while the gateway takes requests", [({}, 0.0 if admission.stopping else 1.0)]),
        _family("uptime_seconds", "gauge", "Seconds since the start", [({}, now - admission.started)]),
        _family("daemon_connected", "gauge", "1 while the daemon sends the table", [({}, float(linked))]),
        _family(
            "table_revision",
            "gauge",
            "Revision of the routing table in force",
            [] if table is None else [({"source": admission.source or ""}, float(table.revision))],
        ),
        _family("held_body_bytes", "gauge", "Request bodies held", [({}, float(admission.bodies.held))]),
        *_model_families(models),
        *_engine_families(engines, now),
        _family("resident_memory_bytes", "gauge", "Resident memory of the process", [({}, float(_resident()))]),
    ]
    return "".join(parts)


def _model_families(models: list[Model]) -> Iterable[str]:
    labels = [{"model": model.name} for model in models]
    yield _family(
        "requests_total",
        "counter",
        "Requests that ended, by outcome",
        [
            ({**label, "outcome": outcome}, float(getattr(model, outcome)))
            for label, model in zip(labels, models, strict=True)
            for outcome in _OUTCOMES
        ],
    )
    yield _family("arrivals_total", "counter", "Requests for a known model", _each(labels, models, "arrivals"))
    yield _family("in_flight", "gauge", "Requests at engines", _each(labels, models, "in_flight"))
    yield _family(
        "waiting",
        "gauge",
        "Requests held until an engine is ready",
        [(label, float(len(model.room))) for label, model in zip(labels, models, strict=True)],
    )
    yield _family(
        "ready",
        "gauge",
        "1 when an engine admits requests for the model",
        [(label, float(bool(model.admitting))) for label, model in zip(labels, models, strict=True)],
    )
    yield _histogram(models)


def _engine_families(engines: list[Engine], now: float) -> Iterable[str]:
    labels = [
        {
            "engine": engine.id,
            "generation": str(engine.route.generation),
            "plan": engine.route.plan[:12],
            "method": engine.route.method,
        }
        for engine in engines
    ]
    yield _family("engine_in_flight", "gauge", "Requests at the engine", _each(labels, engines, "in_flight"))
    yield _family("engine_requests_total", "counter", "Requests sent", _each(labels, engines, "requests"))
    yield _family("engine_errors_total", "counter", "Requests the engine lost", _each(labels, engines, "errors"))
    yield _family("engine_bytes_total", "counter", "Response bytes delivered", _each(labels, engines, "bytes"))
    yield _family(
        "engine_events_total",
        "counter",
        "Server-sent events delivered: a sign of life, not a count of tokens",
        _each(labels, engines, "events"),
    )
    yield _family(
        "engine_last_byte_seconds",
        "gauge",
        "Seconds since the engine's last byte",
        [
            (label, now - engine.last_byte)
            for label, engine in zip(labels, engines, strict=True)
            if engine.last_byte is not None
        ],
    )
    yield _family(
        "engine_idle_connections",
        "gauge",
        "Connections kept for the next request",
        [(label, float(engine.pool.idle)) for label, engine in zip(labels, engines, strict=True)],
    )


def _each(labels: list[dict[str, str]], things: Iterable[object], field: str) -> list[Sample]:
    return [(label, float(getattr(thing, field))) for label, thing in zip(labels, things, strict=True)]


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> str:
    full = f"outrider_gateway_{name}"
    lines = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    lines += [f"{full}{_labels(labels)} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _histogram(models: list[Model]) -> str:
    full = "outrider_gateway_ttfb_seconds"
    lines = [
        f"# HELP {full} Seconds from sending a request to the first byte of its answer",
        f"# TYPE {full} histogram",
    ]
    for model in models:
        total = 0
        for bound, count in zip((*(str(b) for b in TTFB_BUCKETS), "+Inf"), model.ttfb_counts, strict=True):
            total += count
            lines.append(f"{full}_bucket{_labels({'model': model.name, 'le': bound})} {total}")
        lines.append(f"{full}_sum{_labels({'model': model.name})} {_number(model.ttfb_sum)}")
        lines.append(f"{full}_count{_labels({'model': model.name})} {total}")
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _resident() -> int:
    """Bytes, from the kernel's count of this process's pages."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

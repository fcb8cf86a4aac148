"""The part of /metrics that comes from the last sample of the host: GPUs, engines, pressure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from orchestrator.telemetry import AcceleratorReading, TelemetryView

Samples = Iterable[tuple[tuple[str, ...], float | None]]
_GAUGES = (
    ("utilisation_percent", "How busy a GPU is.", "utilisation"),
    ("clock_mhz", "The clock of a GPU's cores.", "clock_mhz"),
    ("power_watts", "What a GPU draws.", "power_w"),
    ("temperature_celsius", "How warm a GPU is.", "temperature_c"),
    ("memory_used_bytes", "Memory of a GPU that somebody holds.", "memory_used"),
    ("memory_others_bytes", "Memory of a GPU that is held by no engine of this host.", "others"),
)


def families(samples: Sequence[TelemetryView]) -> Iterator[Metric]:
    """Of the newest sample; nothing before the first."""
    if not samples:
        return
    last = samples[-1]
    for name, text, field in _GAUGES:
        yield _gauge(name, text, last.accelerators, field)
    yield _family(
        "outrider_accelerator_throttled",
        "1 for each reason for which a GPU is slower than it could be.",
        ("pci", "by"),
        [((a.pci, by), 1.0) for a in last.accelerators for by in a.throttled_by or ()],
    )
    host = last.host
    if host is not None:
        waits = (
            ("memory_some", host.memory_some),
            ("memory_full", host.memory_full),
            ("cpu_some", host.cpu_some),
            ("io_full", host.io_full),
        )
        yield _family(
            "outrider_host_pressure_percent",
            "Share of the last ten seconds in which tasks waited.",
            ("kind",),
            [((kind,), value) for kind, value in waits],
        )
    kinds = [(e, "host", e.memory) for e in last.engines] + [(e, "host_rss", e.rss) for e in last.engines]
    on_gpus = [(e, f"gpu {pci}", size) for e in last.engines for pci, size in e.gpu_memory.items()]
    yield _family(
        "outrider_engine_memory_bytes",
        "Memory that an engine takes: of the host (its files' cache included), of it what is no file's, of each GPU.",
        ("engine", "deployment", "kind"),
        [((e.id, e.deployment, kind), value) for e, kind, value in (*kinds, *on_gpus)],
    )


def _gauge(name: str, text: str, accelerators: Sequence[AcceleratorReading], field: str) -> Metric:
    values = [((a.pci,), getattr(a, field)) for a in accelerators]
    return _family(f"outrider_accelerator_{name}", text, ("pci",), values)


def _family(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """Unknown is None, and an unknown value is no sample."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, value)
    return family

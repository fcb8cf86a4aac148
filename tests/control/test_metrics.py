"""/metrics: what Prometheus reads, from the views."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from orchestrator.errors import TimedOut
from tests.control.conftest import Served
from tests.control.memory_facade import GIB, failing

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(served: Served) -> Samples:
    answer = await served.tcp.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


async def test_views_become_samples(served: Served) -> None:
    await served.unix.put("/api/v1/deployments/smollm2/desired", json={"state": "running"})
    got = await scrape(served)
    assert value(got, "outrider_deployment_state", deployment="smollm2", state="ready") == 1
    assert value(got, "outrider_deployment_state", deployment="smollm2", state="stopped") == 0
    assert value(got, "outrider_deployment_state", deployment="huge", state="stopped") == 1
    assert value(got, "outrider_deployment_desired", deployment="smollm2", desired="running") == 1
    assert value(got, "outrider_deployment_restarts_total", deployment="smollm2") == 0
    assert value(got, "outrider_deployment_in_flight", deployment="smollm2") == 0
    engine = {"engine": "a" * 16, "deployment": "smollm2"}
    info = {"generation": "1", "state": "ready", "runtime": "llama.cpp", "method": "none", "plan": "f" * 64}
    assert value(got, "outrider_engine_info", **engine, **info) == 1
    assert value(got, "outrider_engine_in_flight", **engine) == 0
    assert value(got, "outrider_loop_age_seconds", loop="reconcile") == 0.25
    assert value(got, "outrider_podman_up") == 0
    assert value(got, "outrider_gateway_up") is None  # not heard of yet: unknown is no sample
    assert value(got, "outrider_issue", code="low_disk", subject="host") == 1
    assert value(got, "outrider_problem", code="podman_unreachable") == 1
    assert value(got, "outrider_accelerator_memory_bytes", pci="0000:01:00.0", kind="free") == 23 * GIB
    assert (value(got, "process_resident_memory_bytes") or 0) > 0
    assert [name for name, labels in got if name == "outrider_build_info" and ("version", "0.0.test") in labels]


async def test_counters_of_the_daemon_become_samples(served: Served) -> None:
    got = await scrape(served)
    assert value(got, "outrider_memory_expected_bytes", deployment="smollm2", kind="total") == 201_000_000
    assert value(got, "outrider_memory_expected_bytes", deployment="smollm2", kind="budget") is None
    assert value(got, "outrider_switches_total", deployment="smollm2", outcome="done") == 2
    assert value(got, "outrider_events_total", kind="lifecycle", code="desired_set") == 3
    assert value(got, "outrider_requests_total", model="smollm2", outcome="failed") == 1
    assert value(got, "outrider_request_arrivals_total", model="smollm2") == 10
    assert value(got, "outrider_engine_bytes_total", engine="a" * 16) == 1000
    assert value(got, "outrider_engine_ttfb_seconds", engine="a" * 16) == 0.02
    assert value(got, "outrider_request_rate", model="smollm2") == 1.5
    assert value(got, "outrider_table_revision") == 4
    assert not [name for name, _ in got if "bad" in name]


async def test_a_source_that_fails_is_named_and_the_rest_is_there(served: Served) -> None:
    served.facade.fail = failing("health", TimedOut("busy"))
    got = await scrape(served)
    assert value(got, "outrider_scrape_errors", source="health") == 1
    assert value(got, "outrider_ok") is None
    assert value(got, "outrider_deployment_state", deployment="huge", state="stopped") == 1
    served.facade.fail = lambda call: None
    assert value(await scrape(served), "outrider_scrape_errors", source="health") is None


async def test_the_last_sample_of_the_host_becomes_samples(served: Served) -> None:
    got = await scrape(served)
    gpu = {"pci": "0000:01:00.0"}
    assert value(got, "outrider_accelerator_utilisation_percent", **gpu) == 66
    assert value(got, "outrider_accelerator_clock_mhz", **gpu) == 1695
    assert value(got, "outrider_accelerator_power_watts", **gpu) == 144
    assert value(got, "outrider_accelerator_temperature_celsius", **gpu) == 66
    assert value(got, "outrider_accelerator_memory_used_bytes", **gpu) == 15 * GIB
    assert value(got, "outrider_accelerator_memory_others_bytes", **gpu) == GIB
    assert value(got, "outrider_accelerator_throttled", by="software_power_cap", **gpu) == 1
    assert value(got, "outrider_host_pressure_percent", kind="memory_full") == 0.25
    assert value(got, "outrider_host_pressure_percent", kind="io_full") is None
    engine = {"engine": "a" * 16, "deployment": "smollm2"}
    assert value(got, "outrider_engine_memory_bytes", kind="host", **engine) == 2 * GIB
    assert value(got, "outrider_engine_memory_bytes", kind="host_rss", **engine) == GIB
    assert value(got, "outrider_engine_memory_bytes", kind="gpu 0000:01:00.0", **engine) == 14 * GIB


async def test_without_a_sample_there_are_no_gauges_of_it(served: Served) -> None:
    served.facade.fail = failing("telemetry", TimedOut("busy"))
    got = await scrape(served)
    assert value(got, "outrider_scrape_errors", source="telemetry") == 1
    assert not [name for name, _ in got if name == "outrider_accelerator_power_watts"]

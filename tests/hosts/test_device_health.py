"""Verdicts on GPUs: each row of what must follow from an XID, an NVML error, a reset, a reading."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hosts.device_events import DeviceEvent
from hosts.device_health import (
    FORGET,
    HOT,
    MISSES,
    RESETS,
    STEADY,
    DeviceState,
    Health,
    answers,
    failed,
    happened,
    read,
    renewed,
    verdict,
)
from hosts.gpu_sample import GpuSample
from hosts.xids import XidClass, classify, describe

PCI = "0000:01:00.0"
GOOD = GpuSample(PCI, throttled_by=(), idle=False)


def event(kind: str, number: int | None = None, text: str = "line", at: float = 0.0) -> DeviceEvent:
    return DeviceEvent("kernel", kind, PCI, number, None, text, at)


def after(*events: DeviceEvent, state: DeviceState | None = None) -> DeviceState:
    state = state or DeviceState()
    for one in events:
        state = happened(state, one)
    return state


def readings(state: DeviceState, sample: GpuSample, count: int) -> DeviceState:
    for _ in range(count):
        state = read(state, sample)
    return state


def test_a_gpu_that_nobody_complains_about_is_well() -> None:
    assert verdict(read(DeviceState(), GOOD), 0.0).health is Health.OK


@pytest.mark.parametrize("number", [13, 31, 43, 45, 68, 109])
def test_what_a_program_did_wrong_leaves_the_gpu_well(number: int) -> None:
    assert classify(number) is XidClass.APPLICATION
    assert verdict(after(event("xid", number)), 1.0).health is Health.OK


@pytest.mark.parametrize("number", [48, 63, 64, 74, 94, 95, 119, 120, 140])
def test_an_xid_of_the_hardware_degrades_the_gpu_until_its_driver_is_loaded_anew(number: int) -> None:
    state = readings(after(event("xid", number)), GOOD, 10)
    found = verdict(state, 10.0)
    assert (found.health, found.reason, found.evidence["xid"]) == (Health.DEGRADED, "xid", number)
    assert f"XID {number}" in found.text
    assert found.hint
    assert verdict(renewed(state), 10.0).health is Health.OK
    assert verdict(state, FORGET + 1.0).health is Health.OK


def test_a_gpu_that_fell_off_the_bus_is_lost_until_it_has_answered_for_a_while() -> None:
    state = after(event("xid", 79))
    assert verdict(state, 1.0).health is Health.LOST
    state = readings(state, GOOD, STEADY - 1)
    assert verdict(state, 1.0).health is Health.LOST
    assert verdict(read(state, GOOD), 1.0).health is Health.OK


def test_a_gpu_that_asks_for_a_reboot_is_lost_however_well_it_answers() -> None:
    asks = event("xid", 154, "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    state = readings(after(event("xid", 31), asks), GOOD, 10)
    found = verdict(state, 1.0)
    assert (found.health, found.reason, found.evidence["xid"]) == (Health.LOST, "recovery_action", 154)
    over = event("xid", 154, "154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)")
    assert verdict(happened(state, over), 1.0).health is Health.OK


def test_an_xid_that_is_not_in_the_table_is_said_to_be_unknown_and_changes_nothing() -> None:
    assert classify(4711) is classify(None) is XidClass.UNKNOWN
    assert describe(4711) == "XID 4711 (which Outrider does not know)"
    assert verdict(after(event("xid", 4711)), 1.0).health is Health.OK


def test_a_lost_gpu_heals_with_the_next_reading() -> None:
    state = failed(DeviceState(), "gpu_lost", "lost", "reboot", 0.0)
    found = verdict(state, 0.0)
    assert (found.health, found.reason, found.hint) == (Health.LOST, "gpu_lost", "reboot")
    assert verdict(read(state, GOOD), 1.0).health is Health.OK


@pytest.mark.parametrize("code", ["nvml_timeout", "nvml_unknown", "nvml_crashed"])
def test_three_misses_degrade_and_one_answer_heals(code: str) -> None:
    state = DeviceState()
    for n in range(1, MISSES + 1):
        assert verdict(state, 0.0).health is Health.OK
        state = failed(state, code, "no answer", None, float(n))
    found = verdict(state, 4.0)
    assert (found.health, found.reason, found.evidence["misses"]) == (Health.DEGRADED, code, MISSES)
    assert verdict(read(state, GOOD), 5.0).health is Health.OK


def test_a_mismatch_is_a_word_of_its_own_and_worse_than_all_else() -> None:
    state = failed(after(event("xid", 79)), "driver_mismatch", "mismatch", "reboot", 1.0)
    assert verdict(state, 1.0).health is Health.DRIVER_MISMATCH
    assert verdict(readings(state, GOOD, STEADY), 2.0).health is Health.OK


@pytest.mark.parametrize("code", ["driver_not_loaded", "library_missing"])
def test_without_its_driver_a_gpu_is_lost_if_that_lasts(code: str) -> None:
    """For a moment it is an upgrade that goes on."""
    state = DeviceState()
    for _ in range(MISSES):
        assert verdict(state, 0.0).health is Health.OK
        state = failed(state, code, "no driver", None, 0.0)
    assert verdict(state, 0.0).health is Health.LOST
    assert verdict(answers(state), 0.0).health is Health.OK


@pytest.mark.parametrize("reason", ["hardware_slowdown", "software_thermal", "hardware_thermal", "power_brake"])
def test_throttling_counts_when_it_lasts_and_ends_when_its_end_lasts(reason: str) -> None:
    slow = replace(GOOD, throttled_by=(reason,))
    state = readings(DeviceState(), slow, STEADY - 1)
    assert verdict(state, 0.0).health is Health.OK
    state = read(state, slow)
    found = verdict(state, 0.0)
    assert (found.health, found.reason) == (Health.THROTTLED, reason)
    assert found.evidence["throttled_by"] == [reason]
    state = readings(state, GOOD, STEADY - 1)
    assert verdict(state, 0.0).health is Health.THROTTLED
    assert verdict(read(state, GOOD), 0.0).health is Health.OK


@pytest.mark.parametrize(
    "sample",
    [replace(GOOD, throttled_by=("software_power_cap",)), replace(GOOD, throttled_by=("hardware_thermal",), idle=True)],
)
def test_keeping_to_the_power_limit_and_idling_are_no_throttling(sample: GpuSample) -> None:
    assert verdict(readings(DeviceState(), sample, 10), 0.0).health is Health.OK


def test_a_gpu_that_says_it_is_too_hot_is_throttled_for_a_while() -> None:
    state = after(event("thermal", at=100.0))
    assert verdict(state, 101.0).reason == "thermal"
    assert verdict(state, 100.0 + HOT).health is Health.OK


@pytest.mark.parametrize("what", ["uncorrected", "remap_pending", "remap_failed", "retire_pending"])
def test_ecc_memory_that_complains_degrades(what: str) -> None:
    state = read(DeviceState(), replace(GOOD, ecc={what: 1}))
    assert verdict(state, 0.0).reason == f"ecc_{what}"
    assert verdict(read(state, replace(GOOD, ecc={what: 0})), 0.0).health is Health.OK


@pytest.mark.parametrize(
    ("kind", "health"),
    [
        ("ecc_double_bit", Health.DEGRADED),
        ("ecc_single_bit", Health.OK),
        ("gpu_unavailable", Health.LOST),
        ("recovery_action", Health.LOST),
        ("pcie_error", Health.DEGRADED),
        ("pcie_corrected", Health.OK),
        ("amdgpu_reset", Health.DEGRADED),
        ("amdgpu_reset_failed", Health.LOST),
        ("amdgpu_mes", Health.DEGRADED),
        ("amdgpu_timeout", Health.OK),
        ("amdgpu_fault", Health.OK),
        ("something_new", Health.OK),
    ],
)
def test_what_each_report_means(kind: str, health: Health) -> None:
    assert verdict(after(event(kind)), 1.0).health is health


def test_a_reset_that_succeeds_is_over_and_three_in_an_hour_are_not() -> None:
    state = DeviceState()
    for n in range(RESETS):
        assert verdict(state, n * 600.0).health is Health.OK
        state = after(event("amdgpu_mes"), event("amdgpu_reset", at=n * 600.0), state=state)
        assert verdict(state, n * 600.0).reason == "amdgpu_reset"
        state = happened(state, event("amdgpu_reset_done", at=n * 600.0))
    assert verdict(state, 1300.0).reason == "amdgpu_resets"
    assert verdict(state, 1200.0 + 3600.0).health is Health.OK


def test_a_storm_of_one_error_is_one_fault_and_does_not_grow() -> None:
    state = after(*(event("xid", 63, at=float(n)) for n in range(1000)))
    assert len(state.faults) == 1
    state = after(*(event("xid", 48, at=1.0), event("pcie_error"), event("ecc_double_bit")) * 100, state=state)
    assert len(state.faults) == 4

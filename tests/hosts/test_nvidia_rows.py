"""What must follow from each error of NVML, driven through the real pynvml over a fake library.

One test a row: from the library's return code (or XID) to the problem, the reading and the verdict on the GPU.
"""

from __future__ import annotations

import os
import queue
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import device_health, nvidia, pci
from hosts.device_events import DeviceEvent
from hosts.device_health import MISSES, STEADY, DeviceState, Health, Verdict
from hosts.facts import HostFacts, Memory
from hosts.nvidia_errors import NAMES
from hosts.nvidia_events import NvidiaEvents
from hosts.nvidia_sample import Sign, read_sample
from hosts.probe import probe
from hosts.telemetry import Sample, Telemetry
from tests.hosts.conftest import Environ
from tests.hosts.trees import GIB, Tree, write

ONE, TWO = "0000:01:00.0", "0000:02:00.0"
LIMIT = 15.0
RETRY = 0.2
MEMORY = Memory(64 * GIB, 40 * GIB)


class Machine:
    """A host with NVIDIA GPUs and a driver that plays a scene; `read` gives the next verdict on each."""

    def __init__(self, tree: Tree, folder: Path, library: Path, environ: Environ) -> None:
        self.tree = tree.machine()
        self.library = folder / "lib"
        shutil.copytree(library, self.library)
        self.scene = folder / "scene"
        self.play("COUNT=2")
        self.environ = environ(self.library, FAKE_NVML_FILE=self.scene)
        self.facts: HostFacts = probe(tree.roots, environ=self.environ)
        self.telemetry = Telemetry(tree.roots, self.environ, retry=RETRY)
        self.states = {gpu.pci: DeviceState() for gpu in self.facts.accelerators}
        self.children: set[int] = set()

    def play(self, *lines: str) -> None:
        new = self.scene.with_suffix(".new")
        write(new, "".join(f"{line}\n" for line in lines))
        new.replace(self.scene)

    def sample(self, deadline: float = LIMIT) -> Sample:
        found = self.telemetry.sample(self.facts, deadline)
        child = self.telemetry._serving.child
        if child is not None:
            self.children.add(child.pid)
        for where, state in self.states.items():
            wrong = next((p for p in found.problems if p.device in (where, None)), None)
            if where in found.gpus:
                self.states[where] = device_health.read(state, found.gpus[where])
            elif wrong is not None:
                self.states[where] = device_health.failed(state, wrong.code, wrong.detail, wrong.hint, 0.0)
        return found

    def verdict(self, where: str = ONE) -> Verdict:
        return device_health.verdict(self.states[where], 0.0)

    def until(self, health: Health, where: str = ONE) -> None:
        end = time.monotonic() + LIMIT
        while self.verdict(where).health is not health:
            assert time.monotonic() < end, self.verdict(where)
            self.sample()


@pytest.fixture
def machine(tree: Tree, tmp_path: Path, nvml: Path, environ: Environ) -> Iterator[Machine]:
    made = Machine(tree, tmp_path, nvml, environ)
    yield made
    made.telemetry.close()


# no driver


@pytest.mark.parametrize(("value", "code"), [(9, "driver_not_loaded"), (12, "library_missing")])
def test_without_a_driver_the_vendor_is_absent_and_asked_again(machine: Machine, value: int, code: str) -> None:
    machine.play(f"INIT={value}")
    machine.tree.pci(ONE, pci.NVIDIA, 0x2204)
    facts = probe(machine.tree.roots, environ=machine.environ)
    assert facts.accelerators == ()
    assert [p.code for p in facts.problems if p.vendor == "nvidia"] == [code]
    again = nvidia.probe_again(machine.tree.roots, machine.environ, MEMORY, LIMIT)
    assert again is not None
    assert [p.code for p in again.problems] == [code]
    machine.play()  # the driver is installed
    again = nvidia.probe_again(machine.tree.roots, machine.environ, MEMORY, LIMIT)
    assert again is not None
    assert [gpu.pci for gpu in again.accelerators] == [ONE]


def test_where_nothing_could_answer_no_process_is_started(tree: Tree, nvml: Path, environ: Environ) -> None:
    machine = tree.machine()
    assert nvidia.probe_again(machine.roots, environ(), MEMORY, LIMIT) is None
    assert nvidia.probe_again(machine.roots, environ(nvml), MEMORY, LIMIT) is None  # a library, and nothing it is for
    (tree.base / "dev").mkdir()
    (tree.base / "dev/dxg").touch()  # WSL2 has neither a device on the bus nor /dev/nvidiactl
    found = nvidia.probe_again(machine.roots, environ(nvml), MEMORY, LIMIT)
    assert found is not None
    assert len(found.accelerators) == 1


# a driver of two halves


def test_a_driver_that_is_upgraded_under_its_module_is_noticed_and_heals_with_the_module(machine: Machine) -> None:
    module = machine.tree.base / "sys/module/nvidia/version"
    write(module, "550.54.15\n")
    machine.sample()
    assert machine.verdict().health is Health.OK
    machine.play("INIT=18")
    machine.sample()
    assert machine.verdict().health is Health.OK  # the old library, still mapped, answers well
    os.utime(machine.library / "libnvidia-ml.so.1")  # the package is upgraded
    sample = machine.sample()
    assert [(p.code, p.device) for p in sample.problems] == [("driver_mismatch", None)]
    assert "LibRmVersionMismatch, 18" in sample.problems[0].detail
    assert {machine.verdict(where).health for where in (ONE, TWO)} == {Health.DRIVER_MISMATCH}
    assert "modprobe" in str(machine.verdict().hint)
    machine.play("COUNT=2")
    write(module, "580.95.05\n")  # the module is loaded anew
    machine.sample()
    assert {machine.verdict(where).health for where in (ONE, TWO)} == {Health.OK}
    assert len(machine.children) == 2


# a GPU that is gone


@pytest.mark.parametrize("value", [15, 16, 28])
def test_a_gpu_that_is_gone_is_lost_the_other_is_not_and_a_fresh_child_sees_it_back(
    machine: Machine, value: int
) -> None:
    machine.sample()
    machine.play("COUNT=2", f"LOST_0={value}")
    sample = machine.sample()
    assert [(p.code, p.device) for p in sample.problems] == [("gpu_lost", ONE)]
    assert NAMES[value] in sample.problems[0].detail
    assert (machine.verdict().health, machine.verdict(TWO).health) == (Health.LOST, Health.OK)
    assert set(sample.gpus) == {TWO}
    machine.play("COUNT=2")
    machine.until(Health.OK)
    assert len(machine.children) == 2


def test_a_gpu_that_gives_no_handle_is_lost_too(machine: Machine) -> None:
    machine.tree.pci(ONE, pci.NVIDIA, 0x2204).pci(TWO, pci.NVIDIA, 0x2204)
    machine.play("COUNT=2", "FAIL=GetHandleByIndex1:15")
    sample = machine.sample()
    assert [(p.code, p.device) for p in sample.problems] == [("gpu_lost", TWO)]  # by the kernel's own order
    assert (machine.verdict().health, machine.verdict(TWO).health) == (Health.OK, Health.LOST)


def test_a_driver_that_stays_broken_is_not_asked_at_every_tick(machine: Machine) -> None:
    machine.play("INIT=9")
    started = 0
    original = nvidia.start

    def counting(*arguments: object, **options: object) -> object:
        nonlocal started
        started += 1
        return original(*arguments, **options)  # type: ignore[arg-type]

    machine.telemetry._serving._retry = 60.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvidia, "start", counting)
        for _ in range(20):
            assert [p.code for p in machine.sample().problems] == ["driver_not_loaded"]
    assert started == 1


# XIDs


def test_each_xid_has_the_verdict_of_its_class(machine: Machine, tmp_path: Path) -> None:
    """All of them through one child, one after another."""
    expected = {
        **dict.fromkeys((13, 31, 43, 45, 68, 109), Health.OK),
        **dict.fromkeys((48, 63, 64, 74, 94, 95, 119, 120, 140), Health.DEGRADED),
        **dict.fromkeys((79, 154), Health.LOST),
        4711: Health.OK,
    }
    events = tmp_path / "events"
    write(events, "".join(f"8 {number} 1\n" for number in expected))
    heard: queue.Queue[DeviceEvent] = queue.Queue()
    source = NvidiaEvents(heard.put, machine.tree.roots, {**machine.environ, "FAKE_NVML_EVENTS": str(events)})
    source.start()
    try:
        for number, health in expected.items():
            event = heard.get(timeout=LIMIT)
            assert (event.number, event.pci) == (number, TWO)
            state = device_health.happened(DeviceState(), event)
            assert device_health.verdict(state, event.at).health is health
    finally:
        source.close()


# one field


@pytest.mark.parametrize("value", [3, 13])
def test_what_a_driver_does_not_have_is_null_and_asked_for_once(machine: Machine, tmp_path: Path, value: int) -> None:
    counts = tmp_path / "counts"
    missing = f"GetPowerUsage:{value},GetTemperatureV:13,GetMemoryInfo_v2:13,GetCurrentClocksEventReasons:13"
    machine.play("COUNT=2", f"COUNTS={counts}", f"FAIL={missing}")
    sample = [machine.sample() for _ in range(4)][-1]
    one = sample.gpus[ONE]
    assert (one.power_w, one.temperature_c, one.memory_reserved, one.ecc) == (None, 53.0, None, {})
    assert one.throttled_by == ("software_power_cap",)
    assert sample.problems == ()
    asked = Counter(counts.read_text().split())
    gone = ("GetPowerUsage", "GetTemperatureV", "GetMemoryInfo_v2", "GetCurrentClocksEventReasons", "GetTotalEccErrors")
    assert {call: asked[call] for call in gone} == dict.fromkeys(gone, 2)  # once a GPU
    assert asked["GetTemperature"] == asked["GetMemoryInfo"] == asked["GetUtilizationRates"] == 8


def test_what_fails_for_another_reason_is_asked_for_again(machine: Machine) -> None:
    machine.play("COUNT=2", "FAIL=GetPowerUsage:999")
    assert machine.sample().gpus[ONE].power_w is None
    machine.play("COUNT=2")
    assert machine.sample().gpus[ONE].power_w == 118.34


# no answer


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["FAIL=GetCount:10"], "nvml_timeout"),
        (["FAIL=GetCount:999"], "nvml_unknown"),
        (["HANG=GetCount"], "nvml_timeout"),
        (["CRASH=GetCount"], "nvml_crashed"),
    ],
)
def test_three_misses_in_a_row_degrade_and_one_answer_heals(machine: Machine, lines: list[str], code: str) -> None:
    machine.sample()
    machine.play("COUNT=2", *lines)
    for n in range(MISSES):
        assert machine.verdict().health is Health.OK, n
        sample = machine.sample(0.4 if "HANG" in lines[0] else LIMIT)
        assert [p.code for p in sample.problems] == [code]
    assert (machine.verdict().health, machine.verdict().reason) == (Health.DEGRADED, code)
    machine.play("COUNT=2")
    machine.until(Health.OK)


@pytest.mark.parametrize(("value", "code"), [(10, "nvml_timeout"), (999, "nvml_unknown")])
def test_one_gpu_that_does_not_answer_is_degraded_alone(machine: Machine, value: int, code: str) -> None:
    machine.play("COUNT=2", f"FAIL_0=GetMemoryInfo_v2:{value},GetMemoryInfo:{value}")
    for _ in range(MISSES):
        sample = machine.sample()
        assert [(p.code, p.device) for p in sample.problems] == [(code, ONE)]
    assert (machine.verdict().reason, machine.verdict(TWO).health) == (code, Health.OK)


# every code


@pytest.mark.parametrize("value", [*sorted(NAMES), 12345])
def test_every_return_code_is_a_problem_with_a_name_and_a_next_step(value: int) -> None:
    _, (problem,) = read_sample({"error": value, "text": "words"}, Sign((), False, None), MEMORY)
    assert NAMES.get(value, "unknown code") in problem.detail
    assert problem.code
    assert problem.hint


# throttling


def test_throttling_that_lasts_is_a_verdict(machine: Machine) -> None:
    machine.play("COUNT=2", "REASONS_0=0x40")
    for _ in range(STEADY):
        machine.sample()
    assert (machine.verdict().reason, machine.verdict(TWO).health) == ("hardware_thermal", Health.OK)


# bad input


def test_what_is_no_text_and_no_number_costs_its_field_alone(machine: Machine) -> None:
    machine.play(
        "NAME=GARBAGE", "UUID=GARBAGE", "UTIL=4294967295", "UTIL_MEMORY=101", "USED=99999999999999", "TEMP=-40",
        "POWER=0xffffffff", "PROCESSES=0:1,7:-,4294967295:5", "GRAPHICS=7:3,8:4",
    )  # fmt: skip
    gpu = probe(machine.tree.roots, environ=machine.environ).accelerators[0]
    assert (gpu.name, gpu.uuid, gpu.utilisation, gpu.power_w, gpu.temperature_c) == (None, None, None, None, None)
    assert gpu.details["unreadable"] == ["name", "uuid"]
    sample = machine.sample().gpus[ONE]
    assert (sample.utilisation, sample.memory_utilisation, sample.memory_used) == (None, None, None)
    assert sample.memory_total == 25769803776
    assert sample.processes is not None
    assert [(p.pid, p.memory, p.kind) for p in sample.processes] == [(7, None, "compute"), (8, 4, "graphics")]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"gpus": None},
        {"gpus": [None, 7, "x"]},
        {"gpus": [{"index": "x", "memory": [], "errors": 3, "processes": {}, "pci": 8, "clock_reasons": "N/A"}]},
        {"error": [1], "text": 5},
        {"gpus": [{"error": {"a": 1}}]},
        {"gpus": [{"memory": {"total": -1, "free": "x"}, "errors": {"a": [15]}, "ecc_state": [1], "graphics": [1]}]},
    ],
)
def test_an_answer_of_any_shape_is_survived(answer: dict[str, object]) -> None:
    samples, problems = read_sample(answer, Sign((), False, None), MEMORY)
    assert all(sample.memory_free is None for sample in samples.values())
    assert all(problem.code for problem in problems)
    assert nvidia.interpret(answer, Sign((), False, None), (), MEMORY) is not None

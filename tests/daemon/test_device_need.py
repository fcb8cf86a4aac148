"""Which device a model needs, and whether it is there: values in, values out."""

from __future__ import annotations

import dataclasses

import pytest

from hosts.facts import Accelerator, HostFacts
from orchestrator.catalogue import shipped
from orchestrator.device_need import Device, absent, missing, nearly, need, used_by
from orchestrator.models import ModelEntry
from orchestrator.profiles import load
from tests.daemon.world import a_plan, an_entry

IMAGES = shipped().images
APU, CUDA = load("dankclaw"), load("dankserver")
STRIX = APU.accelerators[0]
RTX = CUDA.accelerators[0]


def without(facts: HostFacts) -> HostFacts:
    """The host without accelerators."""
    return dataclasses.replace(facts, accelerators=())


def with_gpus(*gpus: Accelerator) -> HostFacts:
    return dataclasses.replace(CUDA, accelerators=gpus)


def asked(entry: ModelEntry, *last: Device, default: str | None = None) -> object:
    return need(entry, entry.image or default, IMAGES, last, "it was proven on it")


def test_what_never_ran_and_names_nothing_needs_nothing() -> None:
    assert asked(an_entry()) is None
    assert asked(an_entry(runtime="llama.cpp")) is None, "there is an image for the CPU"


@pytest.mark.parametrize(
    ("entry", "default", "vendor"),
    [
        (an_entry(image="llama-cpp-rocm"), None, "AMD"),
        (an_entry(image="vllm-cuda"), None, "NVIDIA"),
        (an_entry(), "llama-cpp-cuda", "NVIDIA"),
        (an_entry(runtime="vllm"), None, "AMD or NVIDIA"),
    ],
)
def test_the_configuration_can_name_what_only_a_gpu_runs(entry: ModelEntry, default: str | None, vendor: str) -> None:
    wanted = need(entry, entry.image or default, IMAGES, (), "")
    assert wanted is not None
    assert missing(wanted, without(APU)) == f"a GPU of {vendor}"
    there = APU if "AMD" in vendor else CUDA
    assert missing(wanted, there) is None


def test_an_image_for_the_cpu_overrules_what_was() -> None:
    assert asked(an_entry(image="embedded-cpu"), Device.of(RTX)) is None
    assert asked(an_entry(), Device.of(RTX), default="embedded-cpu") is None


def test_what_was_proven_on_a_device_needs_it() -> None:
    wanted = need(an_entry(), None, IMAGES, (Device.of(RTX),), "it was proven on it")
    assert wanted is not None
    assert missing(wanted, CUDA) is None
    assert missing(wanted, without(CUDA)) == "NVIDIA GeForce RTX 3090 at 0000:01:00.0"
    assert missing(wanted, APU) == "NVIDIA GeForce RTX 3090 at 0000:01:00.0", "another vendor's GPU is another device"
    moved = dataclasses.replace(RTX, pci="0000:41:00.0")
    assert missing(wanted, with_gpus(moved)) is None, "in another slot it is the same"
    assert missing(wanted, with_gpus(dataclasses.replace(moved, arch="sm_75"))) is not None


def test_a_device_without_names_or_that_is_lost_is_not_there() -> None:
    wanted = need(an_entry(), None, IMAGES, (Device.of(RTX),), "")
    assert wanted is not None
    unnamed = with_gpus(dataclasses.replace(RTX, devices=()))
    assert missing(wanted, unnamed) is not None
    assert "has no device node or CDI name yet" in str(nearly(wanted, unnamed))
    lost = with_gpus(dataclasses.replace(RTX, details={"health": "lost"}))
    assert missing(wanted, lost) is not None
    assert "is lost" in str(nearly(wanted, lost))
    assert nearly(wanted, without(CUDA)) is None


def test_two_devices_are_two() -> None:
    second = dataclasses.replace(RTX, pci="0000:02:00.0", devices=("nvidia.com/gpu=1",))
    plan = a_plan(devices=("nvidia.com/gpu=0", "nvidia.com/gpu=1"))
    both = with_gpus(RTX, second)
    used = used_by(plan, both)
    assert [d.pci for d in used] == ["0000:01:00.0", "0000:02:00.0"]
    wanted = need(an_entry(), None, IMAGES, used, "")
    assert wanted is not None
    assert missing(wanted, both) is None
    assert missing(wanted, with_gpus(RTX)) == "NVIDIA GeForce RTX 3090 at 0000:02:00.0"
    assert missing(wanted, with_gpus(second)) == "NVIDIA GeForce RTX 3090 at 0000:01:00.0"
    assert absent(plan, with_gpus(RTX)) == ("nvidia.com/gpu=1",)


def test_amd_gpus_that_share_a_node_are_told_apart() -> None:
    second = dataclasses.replace(STRIX, pci="0000:03:00.0", devices=("/dev/kfd", "/dev/dri/renderD129"))
    used = used_by(a_plan(devices=("/dev/kfd", "/dev/dri/renderD129")), with_gpus(STRIX, second))
    assert [d.pci for d in used] == ["0000:03:00.0"]


def test_a_plan_whose_gpu_is_not_shown_tells_its_vendor() -> None:
    assert used_by(a_plan(devices=("nvidia.com/gpu=0",)), without(CUDA)) == (Device("nvidia"),)
    assert used_by(a_plan(devices=("/dev/kfd", "/dev/dri/renderD128")), without(APU)) == (Device("amd"),)
    assert used_by(a_plan(), CUDA) == ()


def test_what_is_kept_is_read_back() -> None:
    assert Device.from_dict(Device.of(RTX).to_dict()) == Device.of(RTX)

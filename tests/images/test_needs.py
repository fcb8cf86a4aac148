"""What an image needs of a host is data: a host that does not meet it is told the numbers, an unknown fact is none."""

from __future__ import annotations

import dataclasses
import json
from importlib import resources
from typing import Any

import pytest

from hosts.facts import HostFacts
from orchestrator import catalogue, planner
from orchestrator.catalogue.types import ImageEntry
from orchestrator.image_needs import unmet

SHIPPED = catalogue.shipped()


def profile(name: str) -> HostFacts:
    text = resources.files("orchestrator.profiles").joinpath(f"{name}.json").read_text()
    return HostFacts.from_dict(json.loads(text))


def image(**more: object) -> ImageEntry:
    base = {"name": "i", "reference": "r.io/i:1", "runtime": "llama.cpp", "backend": "cuda", "source": "s"}
    return ImageEntry.model_validate({**base, "vendor": "nvidia", **more})


def host(**more: Any) -> HostFacts:
    """The RTX 3090 box with another driver, CUDA, kernel or processor."""
    facts = profile("dankserver")
    gpu = {k: v for k, v in more.items() if k in ("driver", "cuda")}
    cpu = dataclasses.replace(facts.cpu, arch=more.get("arch", facts.cpu.arch))
    gpus = tuple(dataclasses.replace(a, **gpu) for a in facts.accelerators)
    return dataclasses.replace(facts, cpu=cpu, accelerators=gpus, kernel=more.get("kernel", facts.kernel))


@pytest.mark.parametrize(
    ("needs", "facts", "code"),
    [
        ({"driver": "525.60.13"}, {"driver": "470.256.02"}, "driver_too_old"),
        ({"driver": "525.60.13"}, {"driver": "525.60.13"}, None),
        ({"driver": "525.60.13"}, {"driver": "580.95.05"}, None),
        ({"driver": "525.60.13"}, {"driver": None}, None),
        ({"driver": "525.60.13"}, {"driver": "N/A"}, None),
        ({"cuda": "12.8"}, {"cuda": "11.8"}, "driver_too_old"),
        ({"cuda": "12.8"}, {"cuda": "12.4"}, None),
        ({"cuda": "13.0"}, {"cuda": "12.9"}, "driver_too_old"),
        ({"cuda": "12.8"}, {"cuda": None}, None),
        ({"machine": ["amd64"]}, {"arch": "aarch64"}, "arch_mismatch"),
        ({"machine": ["arm64", "amd64"]}, {"arch": "aarch64"}, None),
        ({"machine": ["amd64"]}, {"arch": ""}, None),
        ({"kernel": "6.18.4"}, {"kernel": "6.12.0-1-amd64"}, "kernel_too_old"),
        ({"kernel": "6.18.4"}, {"kernel": "6.18.4-100.fc43"}, None),
        ({"kernel": "6.18.4"}, {"kernel": None}, None),
        ({}, {"driver": "1.0", "cuda": "1.0", "arch": "riscv64", "kernel": "2.6"}, None),
    ],
)
def test_a_need_and_a_host(needs: dict[str, object], facts: dict[str, Any], code: str | None) -> None:
    here = host(**facts)
    found = unmet(image(**needs), here, here.accelerators[0])
    assert (None if found is None else found.code) == code
    if found is not None:
        assert found.needed in found.text
        assert found.found in found.text, "with the numbers"


def test_without_a_device_there_is_no_driver_to_be_too_old() -> None:
    assert unmet(image(driver="525.60.13", cuda="12.8"), host(), None) is None


def test_the_planner_turns_down_what_the_driver_cannot_run() -> None:
    entry = SHIPPED.find("qwen3.6-35b-a3b")
    old = host(driver="470.256.02", cuda="11.4")
    codes = {(r.image, r.code) for r in planner.plan(entry, old, SHIPPED, {}).rejected}
    assert ("ghcr.io/ggml-org/llama.cpp:server-cuda", "driver_too_old") in codes
    new = planner.plan(entry, host(), SHIPPED, {})
    assert "driver_too_old" not in {r.code for r in new.rejected}
    silent = planner.plan(entry, host(driver=None, cuda=None), SHIPPED, {})
    assert "driver_too_old" not in {r.code for r in silent.rejected}


def test_an_image_of_the_users_own_inherits_no_needs() -> None:
    entry = SHIPPED.find("qwen3.6-35b-a3b").model_copy(update={"image": "r.io/mine:1"})
    found = planner.plan(entry, host(driver="470.256.02", cuda="11.4"), SHIPPED, {})
    assert "driver_too_old" not in {r.code for r in found.rejected}


def test_every_need_that_ships_says_who_says_so() -> None:
    for entry in SHIPPED.images:
        needs = (entry.machine, entry.driver, entry.cuda, entry.kernel, entry.compressed_bytes, entry.size_bytes)
        assert not any(needs) or entry.needs_source, entry.name

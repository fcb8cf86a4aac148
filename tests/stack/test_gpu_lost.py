"""A whole Outrider on a machine with two GPUs. One is lost, and its engine comes up on the other; a driver's call hangs
for ever, and nothing but the age of the facts changes. Fault row 29: real engines in real containers, the real NVML
binding over a small library that plays the driver.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_rig import LOCKED, ONE, TWO, Rig
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.telling.golden import told

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(180)]
SCALE = 0.05
QUICK = 2.0
"""Seconds in which the control API answers, whatever the driver does."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, 2)
    yield made
    made.close()


@pytest.fixture
def stack(make_stack: MakeStack, rig: Rig, gpu_stand_in: str, test_models: Path) -> Iterator[Stack]:
    """`m` is ready on the first GPU."""
    with make_stack(environ=rig.environ, scale=SCALE) as made:
        made.define("m", test_models / g.TARGET, method="none", image=gpu_stand_in)
        assert made.send("POST", "/api/v1/reload", {}).status_code == 200
        made.start("m")
        assert on(made, rig) == [ONE]
        yield made


def on(stack: Stack, rig: Rig) -> list[str]:
    """The GPUs that the container of what serves was given."""
    return rig.given(stack.podman("inspect", stack.deployment("m")["engine"]["container_id"]))


def gpus(stack: Stack) -> dict[str, Any]:
    return {a["pci"]: a for a in stack.get("/api/v1/host")["accelerators"]}


def names(rig: Rig) -> dict[str, str]:
    """Each GPU's own words, for a golden text that tells one from the other."""
    uuids = {re.escape(name): f"UUID {place}" for name, place in zip(rig.uuids, "AB", strict=True)}
    return {re.escape(ONE): "PCI A", re.escape(TWO): "PCI B", **uuids}


def codes(stack: Stack) -> list[tuple[str, str]]:
    found = [(i["code"], i["subject"]) for i in stack.get("/api/v1/issues")]
    return [one for one in found if one[0].startswith(("gpu_", "driver_")) and one[0] != LOCKED]


def test_an_engine_whose_gpu_fell_off_the_bus_comes_up_on_the_other_one_and_stays_there(stack: Stack, rig: Rig) -> None:
    first = stack.deployment("m")["engine"]
    rig.say("NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    rig.play("LOST_0=15")

    def moved() -> Any:
        view = stack.deployment("m")
        return view["state"] == "ready" and view["engine"]["generation"] > first["generation"] and view

    view = stack.wait(moved, what="another engine")
    assert on(stack, rig) == [TWO]
    assert codes(stack) == [("gpu_lost", ONE)]
    assert stack.containers() == [view["engine"]["container_id"]], "what was left of the first is gone"
    assert stack.text("m", 20) == recital(20)
    found = [e for e in stack.events("m") if e["code"] == "other_gpu"]
    assert [e["text"].count(name) for e in found for name in rig.uuids] == [1, 1], "both by their names"
    assert (view["reason"], view["rung"], view["restarts"]) == (None, None, 1)
    told(stack, "m", "29-gpu-lost", words=names(rig))

    rig.play()
    stack.wait(lambda: codes(stack) == [], what="the first GPU is back")
    assert stack.deployment("m")["engine"]["id"] == view["engine"]["id"], "it is not moved back"


def test_an_engine_that_fits_no_other_gpu_waits_for_its_own(stack: Stack, rig: Rig) -> None:
    full = f"USED_1={24 * 2**30 - 400 * 2**20}"
    rig.play("LOST_0=15", full)
    stack.wait(lambda: "no_other_gpu" in stack.codes("m"), what="the planner is asked")
    held = stack.wait(lambda: (d := stack.deployment("m"))["state"] == "failed" and d, what="it waits")
    assert (held["reason"]["code"], held["desired"]) == ("gpu_lost", "running")
    assert not stack.containers()
    rig.play(full)
    stack.wait_state("m", "ready", may_fail=True)
    assert on(stack, rig) == [ONE]
    told(stack, "m", "29-gpu-lost-and-no-other", words=names(rig))


def test_a_driver_that_hangs_makes_facts_old_and_nothing_else(stack: Stack, rig: Rig) -> None:
    before = stack.deployment("m")
    stack.wait(lambda: all(a["details"]["stale"] is False for a in gpus(stack).values()), what="facts are fresh")
    memory = {pci: a["memory_free"] for pci, a in gpus(stack).items()}
    rig.play("HANG=GetMemoryInfo_v2")

    slowest = 0.0

    def old() -> bool:
        nonlocal slowest
        began = time.monotonic()
        found = gpus(stack)
        assert stack.deployment("m")["state"] == "ready"
        slowest = max(slowest, (time.monotonic() - began) / 2)
        return all(a["details"]["stale"] for a in found.values()) and len(codes(stack)) == 2

    stack.wait(old, 60, "facts are old")
    assert slowest < QUICK, f"the slowest answer took {slowest:.3f} s"
    print(f"slowest answer while NVML hangs: {slowest:.3f} s; {gpus(stack)[ONE]['details']}")
    assert codes(stack) == [("gpu_degraded", ONE), ("gpu_degraded", TWO)]
    assert {pci: a["memory_free"] for pci, a in gpus(stack).items()} == memory, "the last that is known"
    assert min(a["details"]["age_s"] for a in gpus(stack).values()) > 15 * SCALE
    assert stack.text("m", 20) == recital(20)
    loops = stack.get("/api/v1/health")["loops"]
    assert max(loops[name] for name in ("reconcile", "guard")) < 1.0, loops

    rig.play()
    stack.wait(lambda: codes(stack) == [], what="it answers again")
    stack.wait(lambda: all(a["details"]["stale"] is False for a in gpus(stack).values()), what="facts are fresh")
    after = stack.deployment("m")
    assert (after["engine"]["id"], after["restarts"]) == (before["engine"]["id"], before["restarts"])
    told(stack, "m", "29-nvml-hangs", words=names(rig))

"""A model whose device is not there waits for it, and never runs without it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from containers.errors import DeviceUnavailable
from orchestrator.context import Cause
from orchestrator.device_need import Device
from orchestrator.errors import DeviceMissing
from orchestrator.profiles import load
from orchestrator.timing import Timing
from orchestrator.views import Desired, State
from tests.daemon.world import LIMIT, World, a_plan, an_entry
from tests.waiting import until

GPU_HOST = load("dankclaw")
NO_GPU = dataclasses.replace(GPU_HOST, accelerators=())
STRIX = GPU_HOST.accelerators[0]
ON_GPU = a_plan(devices=STRIX.devices)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A world at a hundredth of the time scale: five minutes are three seconds."""
    with structlog.testing.capture_logs():
        made = await World.open(tmp_path, Timing().scaled(0.01))
        yield made
        await made.close()


async def booted_without(world: World) -> None:
    """It ran on the GPU, the machine was started again, and the GPU is not there."""
    await world.store.set_devices("m", (Device.of(STRIX),), 1.0)
    world.facts, world.planner.answer = NO_GPU, a_plan()  # what the planner would do without the GPU
    world.d.desired = Desired.RUNNING
    world.run()
    await until(lambda: world.d.shown_state() is State.WAITING_DEVICE, LIMIT, "waiting for the device")


async def test_it_waits_names_the_device_and_starts_when_it_is_there(world: World) -> None:
    await booted_without(world)
    await until(lambda: world.probes >= 3, LIMIT, "looks again and again")
    assert world.runner.ups == 0, "it never falls back to the CPU"
    view = world.actor.view()
    assert view.reason is not None
    assert (view.state, view.desired) == (State.WAITING_DEVICE, Desired.RUNNING)
    assert "AMD Radeon 8060S at 0000:c6:00.0" in view.reason.text
    assert view.next_attempt_s is not None
    assert view.next_attempt_s <= world.timing.backoff_max * 1.25
    assert world.issues.holds("waiting_device", "m")
    assert world.context.turns.before("next") is None
    world.found, world.planner.answer = GPU_HOST, ON_GPU
    await until(lambda: world.d.serving is not None, LIMIT, "it starts by itself")
    assert world.actor.view().reason is None
    assert not world.issues.holds("waiting_device")


async def test_a_device_without_its_names_is_waited_for_too(world: World) -> None:
    unnamed = dataclasses.replace(GPU_HOST, accelerators=(dataclasses.replace(STRIX, devices=()),))
    await booted_without(world)
    world.found = unnamed
    await until(lambda: world.facts is unnamed, LIMIT, "seen")
    await until(lambda: "has no device node" in str(world.actor.view().reason), LIMIT, "said")
    assert world.runner.ups == 0


async def test_what_serves_on_a_device_is_remembered_to_need_it(world: World) -> None:
    world.planner.answer = ON_GPU
    await world.started()
    await until(lambda: "ready" in world.journal_codes(), LIMIT, "noted")
    assert await world.store.devices("m") == (Device.of(STRIX),)
    world.planner.answer = a_plan()
    await world.actor.define(an_entry(image="embedded-cpu"), Cause("reload", "configuration"))
    await until(lambda: world.d.serving == 2, LIMIT, "moved to the CPU, as the configuration says")
    await until(lambda: world.journal_codes().count("ready") == 2, LIMIT, "noted")
    assert await world.store.devices("m") == ()


async def test_a_device_that_goes_while_it_serves_is_waited_for_after_the_crash(world: World) -> None:
    world.planner.answer = ON_GPU
    await world.started()
    world.found, world.planner.answer = NO_GPU, a_plan()
    world.runner.fail_up = DeviceUnavailable("no such device: /dev/kfd")
    world.runner.kill()
    await until(lambda: world.d.shown_state() is State.WAITING_DEVICE, LIMIT, "waiting for the device")
    await until(lambda: world.facts is NO_GPU, LIMIT, "looked again")
    ups = world.runner.ups
    probes = world.probes
    await until(lambda: world.probes > probes + 1, LIMIT, "looks again")
    assert world.runner.ups == ups
    world.runner.fail_up = None
    # it is back, and its render node has another number: the old plan would not start
    renamed = dataclasses.replace(STRIX, devices=("/dev/kfd", "/dev/dri/renderD129"))
    world.found = dataclasses.replace(GPU_HOST, accelerators=(renamed,))
    world.planner.answer = a_plan(devices=renamed.devices)
    await until(lambda: world.d.serving is not None, LIMIT, "it starts by itself")
    assert world.d.wanted is not None
    assert world.d.wanted.devices == renamed.devices


async def test_a_person_may_do_without(world: World) -> None:
    await booted_without(world)
    await world.needs.forget("m", 2.0)
    await world.actor.set_desired(Desired.RUNNING, "t", force=True)
    await until(lambda: world.d.serving is not None, LIMIT, "on what is there")
    assert not world.issues.holds("waiting_device")


async def test_a_stop_ends_the_waiting(world: World) -> None:
    await booted_without(world)
    await world.actor.set_desired(Desired.STOPPED, "t")
    await until(lambda: world.d.shown_state() is State.STOPPED, LIMIT, "stopped")
    assert world.d.shown_reason is None, "what is stopped, as somebody asked, has nothing to explain"
    assert not world.issues.holds("waiting_device")


async def test_an_image_for_a_gpu_waits_for_one_that_never_was_there(world: World) -> None:
    world.facts = NO_GPU
    with pytest.raises(DeviceMissing) as refused:
        await world.needs.check(an_entry(image="vllm-cuda"))
    assert "its image vllm-cuda is for NVIDIA" in refused.value.detail
    assert world.probes == 1
    await world.needs.check(an_entry())
    assert world.probes == 1


async def test_a_gpu_that_no_container_can_be_given_yet_is_waited_for(world: World) -> None:
    """The owner's first hour: the GPU is there, and `nvidia-ctk cdi generate` was not run."""
    world.planner.answer = DeviceMissing("no CDI specification names it", hint="nvidia-ctk cdi generate")
    world.d.desired = Desired.RUNNING
    world.run()
    await until(lambda: world.d.shown_state() is State.WAITING_DEVICE, LIMIT, "waiting for the device")
    assert world.issues.holds("waiting_device", "m")
    assert not world.d.failures.parked
    await until(lambda: world.probes >= 2, LIMIT, "looks again and again")
    world.planner.answer = a_plan(devices=STRIX.devices)
    await until(lambda: world.d.serving is not None, LIMIT, "it starts by itself")
    assert not world.issues.holds("waiting_device")


async def test_what_serves_does_not_wait(world: World) -> None:
    world.planner.answer = ON_GPU
    await world.started()
    await until(lambda: "ready" in world.journal_codes(), LIMIT, "noted")
    world.found = NO_GPU
    world.facts = NO_GPU
    await world.actor.replan(Cause("apply", "t"))
    await until(lambda: "plan_failed" in world.journal_codes(), LIMIT, "said")
    assert world.d.serving == 1
    assert not world.issues.holds("waiting_device"), "it has the device that it runs on"

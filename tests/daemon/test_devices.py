"""What becomes of engines when their GPU reports, is lost, or has a driver of two halves."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hosts import pci
from hosts.device_events import DeviceEvent
from hosts.device_health import MISSES, STEADY
from hosts.facts import Problem
from hosts.gpu_sample import GpuSample
from hosts.telemetry import Sample
from orchestrator import device_policy, host_watch
from orchestrator.context import Cause
from orchestrator.engine import Engine
from orchestrator.errors import EngineFailed
from orchestrator.host_watch import HostWatch
from orchestrator.timing import Timing
from orchestrator.views import Desired, State
from tests.daemon.gpu_scene import LOST, MISMATCH, ONE, QUICK, TWO, Scene, facts, gpu, radeon, restarted
from tests.daemon.world import LIMIT, World, a_plan
from tests.fakelibs import build
from tests.hosts.trees import Tree
from tests.waiting import until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = await World.open(tmp_path, QUICK)
    yield made
    await made.close()


@pytest.fixture
async def scene(world: World, tree: Tree) -> AsyncIterator[Scene]:
    made = Scene(world, HostWatch(facts(gpu(ONE), gpu(TWO, 1)), Timing(), tree.roots))
    yield made
    await made.watch.close()
    await made.host.close()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "root").machine()


# what a program did


async def test_an_xid_of_a_program_is_named_by_the_failure_of_its_engine_and_the_gpu_stays_well(scene: Scene) -> None:
    engine = await scene.world.started()
    scene.event(31, engine.pid)
    scene.world.runner.kill()
    failed = await scene.failed_with()
    assert (failed["code"], failed["xid"], failed["gpu"]) == ("gpu_fault", 31, ONE)
    assert scene.world.d.reason is None or "XID 31 (GPU memory page fault)" in scene.world.d.reason.text
    await restarted(scene, engine)
    assert scene.health() == "ok"
    assert scene.issues == []
    told = await scene.evidence("xid")
    assert (told["engine"], told["known_by"], told["xid"]) == ("m-1", "process", 31)


async def test_an_xid_of_a_child_of_the_engine_is_the_engines(scene: Scene) -> None:
    engine = await scene.world.started()
    scene.containers[4711] = str(engine.container_id)
    scene.event(13, 4711)
    assert [r["xid"] for r in engine.reported] == [13]
    assert (await scene.evidence("xid"))["known_by"] == "container"


async def test_a_child_that_has_vanished_is_remembered_from_the_last_reading(scene: Scene) -> None:
    engine = await scene.world.started()
    scene.containers[4711] = str(engine.container_id)
    scene.reading(pids=(4711,))
    scene.containers.clear()
    scene.gone.add(4711)
    scene.event(43, 4711)
    assert (await scene.evidence("xid"))["known_by"] == "container"
    assert len(engine.reported) == 1


async def test_a_process_that_nobody_ever_saw_is_the_only_engines_on_that_gpu(scene: Scene) -> None:
    engine = await scene.world.started()
    scene.gone.add(4711)
    scene.event(45, 4711, pci=TWO)
    assert not engine.reported
    scene.event(45, 4711)
    assert [r["known_by"] for r in engine.reported] == ["only_engine"]


async def test_an_xid_of_a_desktop_is_nobodys(scene: Scene) -> None:
    engine = await scene.world.started()
    scene.event(31, 4711)  # it lives, and is in no container
    assert engine.reported == ()
    assert "engine" not in await scene.evidence("xid")


async def test_nvml_and_the_kernels_log_tell_of_one_xid_once_and_the_kernel_names_the_process(scene: Scene) -> None:
    engine = await scene.world.started()
    scene.event(31, source="nvml")
    scene.event(31, engine.pid, source="kernel")
    assert [(r["source"], r["known_by"]) for r in engine.reported] == [("kernel", "process")]
    scene.event(31, source="nvml")
    scene.event(31, engine.pid, source="kernel")
    assert len(engine.reported) == 2  # a second one within seconds is a second one
    assert (await scene.world.codes()).count("xid") == 1


async def test_nvml_alone_is_believed_after_a_moment(scene: Scene) -> None:
    engine = await scene.world.started()
    scene.event(31, source="nvml")
    await until(lambda: engine.reported, LIMIT, "it is told")
    assert engine.reported[0]["known_by"] == "only_engine"


async def test_an_xid_that_nobody_knows_is_said_to_be_unknown(scene: Scene) -> None:
    await scene.world.started()
    scene.event(4711)
    events = [e async for e in scene.world.journal.follow() if e.code == "xid"]
    assert "which Outrider does not know" in events[0].text
    assert scene.health() == "ok"


@pytest.mark.parametrize("pci", [None, "0000:99:00.0"])
async def test_an_event_about_no_gpu_of_ours_is_told_and_changes_nothing(scene: Scene, pci: str | None) -> None:
    await scene.world.started()
    scene.event(79, pci=pci)
    assert (await scene.world.codes()).count("xid") == 1
    assert scene.issues == []


async def test_an_xid_while_it_loads_names_a_mute_end(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies(engine: Engine, *, limit: float, seen: object) -> None:
        engine.move(State.CREATING)
        engine.pid = 4711
        scene.event(31, pid=4711)
        raise EngineFailed("engine_exited", "ended with exit code 1")

    monkeypatch.setattr(scene.world.runner, "bring_up", dies)
    scene.world.run()
    await scene.world.actor.set_desired(Desired.RUNNING, "t")
    evidence = await scene.failed_with()
    assert (evidence["code"], evidence["xid"], evidence["gpu"]) == ("gpu_fault", 31, ONE)


async def test_a_report_long_before_an_end_is_not_its_cause() -> None:
    error = EngineFailed("engine_exited", "ended with exit code 1")
    report = {"xid": 31, "gpu": ONE, "kind": "xid", "at": 100.0}
    assert device_policy.blamed(error, [report], 300.0) is error
    assert device_policy.blamed(error, [report], 101.0).code == "gpu_fault"
    named = EngineFailed("out_of_memory", "CUDA out of memory", hint="less context")
    kept = device_policy.blamed(named, [report], 101.0)
    assert (kept.code, kept.hint, kept.evidence["xid"]) == ("out_of_memory", "less context", 31)
    killed = device_policy.blamed(error, [{"kind": "oom_kill", "text": "Out of memory", "at": 100.0}], 101.0)
    assert "memory ran out" in killed.detail


async def test_what_only_the_kernel_says_of_a_recovery_counts_although_nvml_was_first(scene: Scene) -> None:
    scene.event(154, source="nvml")
    assert scene.issues == [("gpu_lost", ONE)]
    over = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    scene.watch.take(DeviceEvent("kernel", "xid", ONE, 154, None, over, scene.world.clock.now()))
    assert scene.issues == []


# a GPU that is lost


async def test_a_lost_gpu_takes_its_engine_along_and_it_waits_until_the_gpu_is_back(scene: Scene) -> None:
    engine = await scene.world.started()
    scene.event(79)
    assert scene.issues == [("gpu_lost", ONE)]
    assert scene.health() == "lost"
    assert scene.health(TWO) == "ok"
    assert scene.host.facts().accelerators[0].memory_free is None
    await until(lambda: not scene.world.d.live(), LIMIT, "the engine is taken down although its process lives")
    failed = await scene.failed_with()
    assert (failed["code"], failed["gpu"], failed["xid"]) == ("gpu_lost", ONE, 79)
    await scene.world.until_code("held")
    view = scene.world.actor.view()
    assert (view.state, view.desired) == (State.FAILED, Desired.RUNNING)
    assert view.reason is not None
    assert (view.reason.code, view.next_attempt_s) == ("gpu_lost", None)
    assert view.reason.hint
    assert scene.world.runner.ups == 1
    for _ in range(STEADY):
        scene.reading()
    assert scene.issues == []
    await restarted(scene, engine)
    assert "held_over" in await scene.world.codes()
    assert scene.host.facts().accelerators[0].details["health"] == "ok"


async def test_nvmls_word_is_enough_without_any_xid(scene: Scene) -> None:
    await scene.world.started()
    scene.reading(LOST)
    assert scene.issues == [("gpu_lost", ONE)]
    await until(lambda: not scene.world.d.live(), LIMIT, "the engine is gone")
    scene.reading()
    assert scene.issues == []


async def test_an_engine_on_another_gpu_is_left_alone(scene: Scene) -> None:
    engine = await scene.world.started()
    scene.event(79, pci=TWO)
    assert scene.issues == [("gpu_lost", TWO)]
    assert scene.gate.bar(scene.world.d) is None
    assert scene.world.d.serving_engine is engine


async def test_a_start_on_a_gpu_that_is_lost_meanwhile_is_called_off(scene: Scene) -> None:
    create = scene.world.runner
    create.create_may_end = asyncio.Event()
    scene.world.run()
    await asyncio.sleep(0)
    await scene.world.actor.set_desired(Desired.RUNNING, "t")
    await until(lambda: create.ups == 1, LIMIT, "a start")
    scene.event(79)
    create.create_may_end.set()
    await scene.world.until_code("held")
    await until(lambda: not scene.world.d.live(), LIMIT, "nothing is left of it")
    assert scene.world.d.serving_engine is None


async def test_a_gpu_that_the_driver_no_longer_lists_is_lost_when_that_lasts(scene: Scene) -> None:
    for _ in range(MISSES - 1):
        scene.reading(without=TWO)
        assert scene.issues == []
    scene.reading(without=TWO)
    assert scene.issues == [("gpu_lost", TWO)]
    scene.reading()
    assert scene.issues == []


async def test_three_misses_degrade_and_stop_nothing(scene: Scene) -> None:
    engine = await scene.world.started()
    for _ in range(MISSES):
        scene.reading(Problem("nvml_timeout", "nvidia", "nvidia_child gave no answer in time", "look"))
    assert scene.issues == [("gpu_degraded", ONE), ("gpu_degraded", TWO)]
    assert scene.world.d.serving_engine is engine
    scene.reading()
    assert scene.issues == []


async def test_a_driver_that_is_away_for_a_while_takes_no_engine_down(scene: Scene) -> None:
    engine = await scene.world.started()
    for _ in range(MISSES):
        scene.reading(Problem("library_missing", "nvidia", "no library", "install"))
    assert scene.issues == [("gpu_lost", ONE), ("gpu_lost", TWO)]
    assert scene.world.d.serving_engine is engine


async def test_a_throttled_gpu_is_an_issue_while_it_lasts(scene: Scene) -> None:
    hot = GpuSample(ONE, throttled_by=("hardware_thermal",), idle=False)
    for _ in range(STEADY):
        scene.watch.on_sample(Sample({}, (), {ONE: hot, TWO: GpuSample(TWO)}))
    assert scene.issues == [("gpu_throttled", ONE)]
    assert scene.health() == "throttled"
    for _ in range(STEADY):
        scene.reading()
    assert scene.issues == []


async def test_an_error_of_the_hardware_is_over_when_the_driver_was_loaded_anew(scene: Scene) -> None:
    scene.event(48)
    assert scene.issues == [("gpu_degraded", ONE)]
    scene.reading()
    assert scene.issues == [("gpu_degraded", ONE)]
    scene.module = 2
    scene.reading()
    assert scene.issues == []


async def test_a_radeon_that_cannot_be_reset_is_lost_with_its_engine_and_the_one_beside_it_is_not(
    world: World, tree: Tree
) -> None:
    """Both need /dev/kfd: that says nothing about which of them an engine has."""
    host = HostWatch(facts(radeon(ONE, 128), radeon(TWO, 129)), Timing(), tree.roots)
    scene = Scene(world, host)
    world.planner.answer = a_plan(devices=("/dev/kfd", "/dev/dri/renderD129"))
    engine = await world.started()

    def report(kind: str, pci: str) -> None:
        scene.watch.take(DeviceEvent("kernel", kind, pci, None, None, f"amdgpu {pci}: {kind}", world.clock.now()))

    report("amdgpu_reset", ONE)
    assert scene.issues == [("gpu_degraded", ONE)]
    report("amdgpu_reset_failed", ONE)
    assert scene.issues == [("gpu_lost", ONE)]
    assert world.d.serving_engine is engine
    report("amdgpu_reset", TWO)
    report("amdgpu_reset_done", TWO)
    assert scene.issues == [("gpu_lost", ONE)]
    report("amdgpu_reset_failed", TWO)
    await until(lambda: not world.d.live(), LIMIT, "the engine goes with its GPU")
    await scene.watch.close()
    await host.close()


async def test_what_is_stopped_on_purpose_shows_no_device_in_the_way(scene: Scene) -> None:
    await scene.world.started()
    await scene.world.actor.set_desired(Desired.STOPPED, "t")
    await until(lambda: not scene.world.d.live(), LIMIT, "it is stopped")
    scene.event(79)
    await until(lambda: scene.world.d.barred is not None, LIMIT, "the actor knows")
    view = scene.world.actor.view()
    assert (view.state, view.reason) == (State.STOPPED, None)


# a driver of two halves


async def test_a_mismatch_refuses_starts_and_leaves_alone_what_runs(scene: Scene) -> None:
    engine = await scene.world.started()
    scene.reading(MISMATCH)
    assert scene.issues == [("driver_mismatch", "host")]
    assert scene.health() == "driver_mismatch"
    assert scene.world.d.serving_engine is engine
    scene.world.runner.kill()  # it ends by itself
    await until(lambda: not scene.world.d.live(), LIMIT, "the engine is gone")
    await scene.world.until_code("held")
    view = scene.world.actor.view()
    assert view.reason is not None
    assert (view.reason.code, view.reason.hint) == ("driver_mismatch", "reboot")
    assert scene.world.runner.ups == 1
    scene.reading()
    assert scene.issues == []
    await restarted(scene, engine)


async def test_a_switch_waits_for_the_driver_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await scene.world.started()
    scene.reading(MISMATCH)
    scene.world.planner.answer = a_plan(devices=("nvidia.com/gpu=0",), argv=("other",))
    monkeypatch.setattr(scene.world.memory, "facts_for", lambda _: scene.host.facts())
    await scene.world.actor.replan(Cause("apply", "t"))
    await scene.world.until_code("planned")
    await until(lambda: not scene.world.d.busy, LIMIT, "the plan is made")
    assert scene.world.d.serving_engine is engine
    assert "switch_started" not in await scene.world.codes()
    scene.reading()
    await scene.world.until_code("switch_done")


async def test_a_driver_that_comes_later_is_found(world: World, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostWatch(facts(problems=(MISMATCH,)), Timing(), tree.roots)
    scene = Scene(world, host)
    assert scene.issues == [("driver_mismatch", "host")]
    assert scene.gate.bar(world.d) is not None  # no plan could be made for a GPU that cannot be seen

    async def renew() -> bool:
        host._facts = dataclasses.replace(host._facts, accelerators=(gpu(ONE),), problems=())
        return True

    monkeypatch.setattr(host, "renew", renew)
    await scene.watch.look()
    assert scene.issues == []
    assert scene.claimed == [ONE]
    assert scene.gate.bar(world.d) is None
    assert "gpu_found" in await world.codes()
    await scene.watch.close()
    await host.close()


async def test_the_facts_follow_what_the_driver_says_later(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = tmp_path / "scene"
    tree.pci(ONE, pci.NVIDIA, 0x2204)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(build.nvml(tmp_path / "nvml")))
    monkeypatch.setenv("FAKE_NVML_FILE", str(scene))

    def codes(host: HostWatch) -> set[str]:
        return {p.code for p in host.facts().problems if p.vendor == "nvidia"}

    scene.write_text("INIT=9\n")
    host = await HostWatch.start(None, Timing(), tree.roots)
    assert (host.facts().accelerators, codes(host)) == ((), {"driver_not_loaded"})
    assert not await host.renew()
    scene.write_text("DRIVER=550.54.15\n")
    assert await host.renew()
    assert [(a.pci, a.driver) for a in host.facts().accelerators] == [(ONE, "550.54.15")]
    assert codes(host) == {"cdi_missing"}
    scene.write_text("INIT=18\n")
    assert not await host.renew()
    assert [a.pci for a in host.facts().accelerators] == [ONE]  # a GPU that was seen stays known
    assert codes(host) == {"driver_mismatch"}
    await host.close()


async def test_a_gpu_that_was_lost_before_the_daemon_came_holds_what_has_no_plan(world: World, tree: Tree) -> None:
    host = HostWatch(facts(problems=(LOST,)), Timing(), tree.roots)
    scene = Scene(world, host)
    assert scene.issues == [("gpu_lost", ONE)]
    why = scene.gate.bar(world.d)
    assert why is not None
    assert (why.code, why.hint) == ("gpu_lost", "check power, then reboot")
    await host.close()


async def test_a_gpu_that_had_no_address_while_it_was_lost_is_not_kept_for_ever(
    world: World, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = HostWatch(facts(problems=(dataclasses.replace(LOST, device="nvidia-0"),)), Timing(), tree.roots)
    scene = Scene(world, host)
    assert scene.issues == [("gpu_lost", "nvidia-0")]

    async def renew() -> bool:
        host._facts = dataclasses.replace(host._facts, accelerators=(gpu(ONE),), problems=())
        return True

    monkeypatch.setattr(host, "renew", renew)
    await scene.watch.look()
    assert scene.issues == []
    assert scene.gate.bar(world.d) is None
    await scene.watch.close()
    await host.close()


async def test_a_gpu_that_comes_back_is_not_locked_a_second_time(
    world: World, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is held since the start; another would be refused, and look like another Outrider."""
    host = HostWatch(facts(radeon(ONE, 128), gpu(TWO)), Timing(), tree.roots)
    scene = Scene(world, host)
    host.probed.append(scene.watch.on_probe)

    async def renew() -> bool:
        return True

    monkeypatch.setattr(host, "renew", renew)
    monkeypatch.setattr(host_watch, "probe", lambda *_, **__: facts(gpu(TWO)))
    await host.probe()
    await scene.watch.look()
    assert ONE not in scene.gate.verdicts, "its driver was taken away"
    monkeypatch.setattr(host_watch, "probe", lambda *_, **__: facts(radeon(ONE, 128), gpu(TWO)))
    await host.probe()
    assert "gpu_found" in await world.codes()
    assert scene.claimed == []
    await scene.watch.close()
    await host.close()


# how a GPU is, told to those who run on it


async def test_those_on_a_gpu_that_is_not_well_hear_of_it_and_of_its_end(scene: Scene) -> None:
    await scene.world.started()
    for _ in range(MISSES + 2):
        scene.reading(Problem("nvml_timeout", "nvidia", "the driver hangs", "look"))
    scene.reading()
    told = [(e.code, e.evidence.get("gpu")) async for e in scene.world.journal.follow() if e.deployment == "m"][-2:]
    assert told == [("gpu_unwell", ONE), ("gpu_well", ONE)]

"""A whole daemon on a host whose GPU has a fake library for a driver: the GPU is lost, the driver upgraded under it.

The engine is real and in a container that was given the GPU by a real CDI specification; what it computes on is
the CPU, for it was built for nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_rig import LOCKED, ONE, Rig
from tests.models import generate as g
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.fixture
def stack(make_stack: MakeStack, rig: Rig) -> Iterator[Stack]:
    with make_stack(environ=rig.environ, gateway=False) as made:
        yield made


def outrider(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def issues(stack: Stack) -> list[tuple[str, str]]:
    """What is wrong with the GPU; what else may be wrong with such a machine is the doctor's."""
    found = [(i["code"], i["subject"]) for i in stack.get("/api/v1/issues")]
    return [one for one in found if one[0].startswith(("gpu_", "driver_")) and one[0] != LOCKED]


def gpu(stack: Stack) -> Any:
    return stack.get("/api/v1/host")["accelerators"][0]


def events(stack: Stack, code: str) -> list[Any]:
    return [e for e in stack.events() if e["code"] == code]


@pytest.mark.slow
def test_a_gpu_is_lost_and_comes_back_and_a_driver_is_upgraded_under_the_daemon(
    stack: Stack, rig: Rig, gpu_stand_in: str, test_models: Path
) -> None:
    stack.define("m", test_models / g.TARGET, method="none", image=gpu_stand_in)
    assert stack.send("POST", "/api/v1/reload", {}).status_code == 200
    stack.start("m")
    first = stack.deployment("m")["engine"]
    assert gpu(stack)["details"]["health"] == "ok"
    assert issues(stack) == []

    # the kernel names a process of the engine, which then ends: that is the program's fault, and the GPU is well
    rig.say(f"NVRM: Xid (PCI:0000:01:00): 31, pid={first['pid']}, name=llama-server, Ch 00000008, intr 00000000")
    stack.wait(lambda: events(stack, "xid"), what="the XID")
    os.kill(first["pid"], 9)
    failed = stack.wait(lambda: events(stack, "failed"), what="the failure")[0]
    assert (failed["evidence"]["code"], failed["evidence"]["xid"], failed["evidence"]["gpu"]) == ("gpu_fault", 31, ONE)
    stack.wait_state("m", "ready", may_fail=True)
    assert issues(stack) == []

    # the GPU falls off the bus: NVML says so, whatever the kernel logs
    rig.play("LOST=15")
    stack.wait(lambda: issues(stack) == [("gpu_lost", ONE)], what="the issue")
    shown = outrider(stack, "issues").stdout
    assert "gpu_lost" in shown
    assert "check power" in shown
    assert "LOST" in outrider(stack, "status").stdout
    stack.wait(lambda: not stack.containers(), what="its engine goes with it")
    held = stack.wait(lambda: (d := stack.deployment("m"))["state"] == "failed" and d, what="it waits")
    assert (held["reason"]["code"], held["desired"], held["next_attempt_s"]) == ("gpu_lost", "running", None)
    assert (gpu(stack)["details"]["health"], gpu(stack)["memory_free"]) == ("lost", None)
    rig.play()
    stack.wait_state("m", "ready", may_fail=True)
    assert issues(stack) == []
    assert gpu(stack)["memory_free"]

    # the driver's package is upgraded: its library is another one, the kernel module still the old one
    engine = stack.deployment("m")["engine"]["id"]
    rig.play("INIT=18")
    os.utime(rig.library)
    stack.wait(lambda: issues(stack) == [("driver_mismatch", "host")], what="the issue")
    assert stack.deployment("m")["engine"]["id"] == engine  # what runs is left alone
    stack.want("m", "stopped")
    stack.wait_state("m", "stopped")
    refused = outrider(stack, "start", "m")
    assert refused.returncode == 4
    assert "driver_mismatch" in refused.stderr + refused.stdout
    assert "reboot" in refused.stderr + refused.stdout
    assert not stack.containers()
    rig.play()
    stack.wait(lambda: issues(stack) == [], what="healing")
    stack.start("m")

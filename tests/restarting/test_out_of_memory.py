"""Row 7: an engine that the kernel ends for want of memory while it loads, and ones that never come up at all. The
ladder walks down to its end, which a person is told, and nothing is started in a hot loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.timing import Timing
from tests.models import generate as g
from tests.restarting.limited import VARIABLE
from tests.restarting.pauses import assert_pauses
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.telling.golden import told

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
SCALE = 0.05
TOO_LITTLE = 40 << 20
"""Bytes: enough for the engine's program, and not for its model."""


def parked(stack: Stack, name: str) -> None:
    """It has come to the end of its ladder: a person is told, nothing runs, and nothing is to be tried again."""
    stack.wait(lambda: "keeps_failing" in stack.codes(name), 60, f"{name} is parked")
    stack.wait(lambda: stack.codes(name)[-1] == "stopped", 20, "and gone")
    view = stack.deployment(name)
    assert (view["state"], view["next_attempt_s"], view["engine"]) == ("failed", None, None)
    issues = [issue["code"] for issue in stack.get("/api/v1/issues") if issue["deployment"] == name]
    assert issues == ["keeps_failing"], "it does not run on a lower rung, it does not run"


def failures(stack: Stack, name: str) -> list[tuple[str, str, str]]:
    """Code, rung and what was decided, of each failure in order."""
    told_of = [event["evidence"] for event in stack.events(name) if event["code"] == "failed"]
    return [(f["code"], f["rung"], f["action"]) for f in told_of]


def test_the_kernel_ends_a_real_engine_that_passes_its_limit(make_stack: MakeStack, test_models: Path) -> None:
    stack = make_stack(scale=SCALE, gateway=False, environ={VARIABLE: str(TOO_LITTLE)})
    stack.module = "tests.restarting.limited"
    stack.define("m", test_models / g.TARGET, method="none", parallel=1, context=32768)
    with stack:
        stack.want("m", "running")
        parked(stack, "m")
        assert [code for code, _, _ in failures(stack, "m")] == ["cgroup_out_of_memory"] * 3
        for event in stack.events("m"):
            if event["code"] == "failed":
                seen = event["evidence"]
                assert (seen["exit_code"], seen["kernel_kills"], seen["memory_limit_bytes"]) == (137, 1, TOO_LITTLE)
                assert seen["known_by"] in {"memory.events", "memory.oom_control", "podman"}
                print(seen["known_by"], seen.get("kernel_reported"))
        assert_pauses(stack, Timing().scaled(SCALE))
        story = told(
            stack,
            "m",
            "07-out-of-memory-at-load",
            without=("oom_kill",),  # where the kernel's log can be read
            words={r"; kernel reported [^;\n]*": "", r"known by \S+;": "known by COUNTER;"},
        )
        print(story)


@pytest.mark.slow
def test_a_crash_loop_ends(make_stack: MakeStack, fake_engine_image: str, test_models: Path) -> None:
    """The fake engine ends while it loads: one without a word, three times on each rung; one for want of memory, in
    its own words, which the same launch would not mend: once on each."""
    stack = make_stack(scale=SCALE, gateway=False)
    wish = {"method": "auto", "drafter": test_models / g.DFLASH}
    mute, hungry = {"load_fail": 3, "load_log": "main: exiting due to model loading error"}, {"oom_at_load": True}
    stack.define_fake("mute", fake_engine_image, test_models / g.TARGET, script=mute, parallel=1, **wish)
    stack.define_fake("hungry", fake_engine_image, test_models / g.TARGET, script=hungry, parallel=2, **wish)
    with stack:
        for name in ("mute", "hungry"):
            stack.want(name, "running")
        for name in ("mute", "hungry"):
            parked(stack, name)
            print(failures(stack, name))
            assert_pauses(stack, Timing().scaled(SCALE), name)
        print(told(stack, "mute", "07-crash-loop"))
        print(told(stack, "hungry", "07-crash-loop-for-memory"))

"""How long a load may take: pure cases, and engines that load slowly, hang, or say too soon that they have loaded.

Loads of minutes and engines that lie while they load are played by the scriptable engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.health.loading import BOUND, GROWTH, Load, Marks, decide
from orchestrator.timing import Timing
from tests.models import generate as g
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.waiting import until_sync

SCALE = 0.05
STALL = Timing().scaled(SCALE).stall


@pytest.mark.parametrize(
    ("elapsed", "quiet", "action", "reason"),
    [
        (99, 99, Load.WAIT, "within_budget"),
        (100, 59, Load.EXTENDED, "progress"),
        (100, 60, Load.TIMED_OUT, "no_progress"),
        (100 * BOUND - 1, 0, Load.EXTENDED, "progress"),
        (100 * BOUND, 0, Load.TIMED_OUT, "too_long_in_all"),
    ],
)
def test_a_budget_is_lengthened_by_progress_alone(elapsed: float, quiet: float, action: Load, reason: str) -> None:
    decision = decide(elapsed=elapsed, budget=100, quiet=quiet, stall=60, moved="its log goes on")
    assert (decision.action, decision.reason) == (action, reason)
    assert decision.evidence["at_most_s"] == 100 * BOUND


@pytest.mark.parametrize(
    ("before", "now", "moved"),
    [
        (Marks("a"), Marks("b"), "its log goes on"),
        (Marks("a", 0, 0), Marks("a", 0, GROWTH), "it reads from a disk"),
        (Marks("a", 0, 0), Marks("a", GROWTH, 0), "its memory grows"),
        (Marks("a", 0, 0), Marks("a", GROWTH - 1, GROWTH - 1), None),
        (Marks(), Marks(None, GROWTH, GROWTH), None),
        (Marks("a", 5, 5), Marks(None, None, None), None),
    ],
)
def test_what_counts_as_progress(before: Marks, now: Marks, moved: str | None) -> None:
    assert now.beyond(before) == moved


def loading(make_stack: MakeStack, image: str, models: Path, load_s: float, **script: Any) -> Stack:
    """A model whose engine loads as the script says; `load_s` is its budget."""
    stack = make_stack(scale=SCALE, gateway=False)
    stack.define_fake("m", image, models / g.TARGET, script=script, load_s=load_s)
    return stack


@pytest.mark.parametrize(
    "sign",
    [
        pytest.param({"load_lines": 5}, id="lines", marks=pytest.mark.slow),
        pytest.param({"grow_bytes": 4 << 20}, id="memory", marks=pytest.mark.slow),
    ],
)
def test_a_slow_load_that_gets_on_is_left_alone(
    make_stack: MakeStack, fake_engine_image: str, test_models: Path, sign: dict[str, int]
) -> None:
    with loading(make_stack, fake_engine_image, test_models, 4, load_seconds=STALL + 4, **sign) as stack:
        stack.start("m")
        assert stack.codes("m").count("starting") == 1
        (event,) = [e for e in stack.events("m") if e["code"] == "load_extended"]
        assert event["evidence"]["elapsed_s_limit"] == 4


def test_a_load_that_hangs_in_silence_is_given_up(
    make_stack: MakeStack, fake_engine_image: str, test_models: Path
) -> None:
    with loading(make_stack, fake_engine_image, test_models, 3, load_seconds=600) as stack:
        stack.want("m", "running")
        events = until_sync(lambda: [e for e in stack.events("m") if e["code"] == "failed"], STALL + 15, "given up")
        evidence = events[0]["evidence"]
        assert (evidence["code"], evidence["reason"]) == ("load_timed_out", "no_progress")
        assert evidence["no_progress_s"] <= STALL + 5, "T_stall and two looks, on a busy machine"
        stack.want("m", "stopped")
        stack.wait_state("m", "stopped", may_fail=True)


def test_one_that_says_too_soon_that_it_is_well_is_waited_for(
    make_stack: MakeStack, fake_engine_image: str, test_models: Path
) -> None:
    with loading(make_stack, fake_engine_image, test_models, 30, load_seconds=2, health_lies=True) as stack:
        stack.want("m", "running")
        until_sync(lambda: stack.deployment("m")["state"] == "loading", 10, "it loads")
        view = stack.deployment("m")
        assert view["progress"]["eta_s"] is not None, "by what is usual, for nothing was seen here yet"
        stack.wait_state("m", "ready")
        assert "failed" not in stack.codes("m")
        (ready,) = [e for e in stack.events("m") if e["code"] == "ready"]
        assert ready["evidence"]["seconds"] >= 2

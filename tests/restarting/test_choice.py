"""Which rung is taken: only downwards, and only one that gives up what helps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.plan import Method, Plan, Rung
from orchestrator.restarting import choice, rule
from orchestrator.restarting.rule import Seen
from orchestrator.restarting.standing import Key, Moment, Standing
from orchestrator.timing import Timing
from tests.daemon.world import a_plan


def a(method: Method, *argv: str, runtime: str = "vllm") -> Plan:
    return replace(a_plan(argv=argv), method=method, drafter=None if method is Method.NONE else "d", runtime=runtime)


LADDER = (
    Rung("plan", "the plan as it is", a(Method.DFLASH)),
    Rung("eager", "no CUDA graphs", a(Method.DFLASH, "--enforce-eager")),
    Rung("less_batch", "1024 tokens at once", a(Method.DFLASH, "--enforce-eager", "1024")),
    Rung("fewer_slots", "2 slots instead of 4", a(Method.DFLASH, "--enforce-eager", "1024", "2")),
    Rung("method_mtp", "drafted by mtp", a(Method.MTP)),
    Rung("method_none", "no speculation", a(Method.NONE)),
    Rung("other_runtime", "llama.cpp, no speculation", a(Method.NONE, runtime="llama.cpp")),
)
STEPS = choice.steps(LADDER)


def left(standing: Standing, position: int, code: str) -> Standing:
    """This rung failed in a way that leaves it at once."""
    seen = Seen(STEPS[position].key, LADDER[position].text, code, 0.0, False)
    return rule.after(standing, seen, timing=Timing(), spread=0.0, now=Moment("b", 0.0, 0.0))[1]


def walked(code: str, ladder: tuple[choice.Step, ...] = STEPS) -> list[str]:
    """The rungs that are taken when each fails with this code."""
    standing, taken = Standing(), []
    while (position := choice.choose(ladder, standing)) is not None:
        taken.append(LADDER[position].change)
        standing = left(standing, position, code)
    return taken


@pytest.mark.parametrize(
    ("code", "rungs"),
    [
        ("engine_exited", [rung.change for rung in LADDER]),
        ("gpu_fault", [rung.change for rung in LADDER]),
        ("out_of_memory", [rung.change for rung in LADDER]),
        ("drafter_overrun", ["plan", "fewer_slots", "method_mtp", "method_none", "other_runtime"]),
        ("speculation_off", ["plan", "method_mtp", "method_none", "other_runtime"]),
        ("canary_failed", ["plan", "method_mtp", "method_none", "other_runtime"]),
        ("graph_capture", ["plan", "eager", "other_runtime"]),
        ("gpu_unsupported", ["plan", "other_runtime"]),
        ("bad_flag", ["plan", "method_mtp", "method_none", "other_runtime"]),
    ],
)
def test_each_class_walks_its_own_way_down_and_ends(code: str, rungs: list[str]) -> None:
    assert walked(code) == rungs


def test_a_lower_rung_has_to_help_against_every_fault_so_far() -> None:
    standing = left(left(Standing(), 0, "speculation_off"), 4, "graph_capture")
    position = choice.choose(STEPS, standing)
    assert position is not None
    assert LADDER[position].change == "other_runtime"


def test_it_never_goes_up_although_a_plain_engine_failed_alone() -> None:
    """The governor took speculation off, and what ran then failed: with drafts it does not get better."""
    standing = left(Standing(), 5, "engine_exited")
    position = choice.choose(STEPS, standing)
    assert position is not None
    assert LADDER[position].change == "other_runtime"


def test_a_ladder_that_was_made_anew_is_entered_where_nothing_was_given_up() -> None:
    standing = left(Standing(), 0, "engine_exited")
    shorter = choice.steps(LADDER[5:])
    assert choice.choose(shorter, standing) == 0
    assert choice.choose((), standing) is None


def test_sizes_do_not_change_what_a_rung_is() -> None:
    plan = LADDER[0].plan
    assert Key.of(plan) == Key.of(replace(plan, context=4096, parallel=8, argv=("--other",)))

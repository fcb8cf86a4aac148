"""The ladder: what an engine would climb down to when it keeps failing."""

from __future__ import annotations

from orchestrator import catalogue, planner, profiles
from orchestrator.plan import Method, Planned

SHIPPED = catalogue.shipped()
SERVER, CLAW = profiles.load("dankserver"), profiles.load("dankclaw")


def make(model: str, host: object = SERVER, **what_if: object) -> Planned:
    return planner.plan(SHIPPED.find(model), host, SHIPPED, {}, what_if=what_if)  # type: ignore[arg-type]


def test_safer_flags_then_other_methods_then_another_runtime() -> None:
    planned = make("qwen3.8-27b", context=8192, parallel=1)
    changes = [rung.change for rung in planned.ladder]
    assert changes[0] == "plan"
    order = ["eager", "method_mtp", "method_none", "other_runtime"]
    assert [change for change in changes if change in order] == order
    assert planned.plan is not None
    assert planned.plan.method is Method.DFLASH
    assert "piecewise_graphs" not in changes, "the DFlash pass has no piecewise graphs"
    eager = next(rung.plan for rung in planned.ladder if rung.change == "eager")
    assert "--enforce-eager" in eager.argv
    assert "--enforce-eager" not in planned.plan.argv
    assert (eager.method, eager.context) == (planned.plan.method, planned.plan.context)
    less = next(rung.plan for rung in planned.ladder if rung.change == "less_batch")
    assert less.argv[less.argv.index("--max-num-batched-tokens") + 1] == "1024"
    assert "--enforce-eager" in less.argv, "what was given up before stays given up"


def test_what_fails_plainly_is_not_tried_with_drafts() -> None:
    planned = make("qwen3.6-35b-a3b")
    assert planned.plan is not None
    assert planned.plan.method is Method.NONE
    same = [r for r in planned.ladder if r.plan.runtime == planned.plan.runtime]
    assert {rung.plan.method for rung in same} == {Method.NONE}


def test_rungs_differ_and_are_few() -> None:
    for host in (SERVER, CLAW):
        for entry in SHIPPED.models:
            rungs = make(entry.name, host).ladder
            assert len({rung.plan.digest for rung in rungs}) == len(rungs) <= 8
    assert make("ling-3.0-flash").ladder == ()

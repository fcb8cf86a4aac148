"""What decides between plans that all fit: measurements of this host, then what is known, then priors."""

from __future__ import annotations

import pytest

from orchestrator import catalogue, planner, profiles
from orchestrator.measured import Measured, Ran, Residual, Speed
from orchestrator.plan import Method, Plan
from orchestrator.planner import priors

SHIPPED = catalogue.shipped()
SERVER, CLAW = profiles.load("dankserver"), profiles.load("dankclaw")


def plans(model: str, measured: Measured = Measured(), **what_if: object) -> list[Plan]:  # noqa: B008 - a value
    found = planner.plan(SHIPPED.find(model), CLAW, SHIPPED, {}, what_if=what_if, measured=measured)
    assert found.plan is not None
    return [found.plan, *found.alternatives]


def ran(plan: Plan) -> Ran:
    return Ran(
        plan.model, plan.variant, plan.runtime, plan.runtime_version, "gfx1151", plan.method, plan.drafter
    )  # fmt: skip


def test_what_was_measured_here_comes_before_what_others_saw() -> None:
    first, second = plans("qwen3.8-27b", runtime="llama.cpp")[:2]
    assert first.method is not second.method
    seen = Measured(speed={ran(first): Speed(10.0, 60, "2026-11-30"), ran(second): Speed(30.0, 60, "2026-11-30")})
    again = plans("qwen3.8-27b", seen, runtime="llama.cpp")[0]
    assert (again.method, again.drafter) == (second.method, second.drafter)
    # one measurement alone says nothing about the others
    alone = Measured(speed={ran(first): Speed(10.0, 60, "2026-11-30")})
    assert plans("qwen3.8-27b", alone, runtime="llama.cpp")[0].digest == first.digest


def test_speculation_goes_with_the_requests() -> None:
    """gfx1151, llama.cpp: off from two streams on (llama.cpp#27342)."""
    chosen = [plans("qwen3.8-27b", parallel=n, context=8192, runtime="llama.cpp")[0].method for n in (1, 2, 8)]
    assert chosen == [Method.MTP, Method.NONE, Method.NONE]


@pytest.mark.parametrize(("alone", "crossover"), [(2.5, 8), (1.2, 4), (3.0, 32)])
def test_a_gain_falls_to_one_at_its_crossover(alone: float, crossover: int) -> None:
    gains = [priors.at(alone, crossover, n) for n in range(1, 4 * crossover)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] == alone
    assert gains[crossover - 2] > 1 > gains[crossover - 1] == pytest.approx(priors.USED_UP)
    assert min(gains) >= priors.LEAST * priors.USED_UP


def test_priors_say_their_sources() -> None:
    shipped = priors.shipped()
    rows = (*shipped.batching, *shipped.sharing, *shipped.gain, *shipped.draft)
    assert all(len(row.source) > 10 for row in rows)
    for row in (*shipped.batching, *shipped.sharing):
        assert row.at[0] == 1
        assert row.times[0] == 1.0
        assert len(row.at) == len(row.times)
        assert list(row.at) == sorted(set(row.at))
    for method in Method:
        if method not in (Method.NONE, Method.NGRAM):
            assert any(row.method is method for row in shipped.gain)
            assert any(row.method is method for row in shipped.draft)


def test_what_engines_took_here_corrects_what_is_expected() -> None:
    """A residual of this host is added to the forecast, said, and can cost a plan its size."""
    (plain, *_) = plans("qwen3.8-27b", runtime="llama.cpp", method="none", variant="q4-k-m", context=65536, parallel=4)
    seen = Measured(memory={ran(plain): Residual(2 << 30, 3, "2026-11-30")})
    (again, *_) = plans(
        "qwen3.8-27b", seen, runtime="llama.cpp", method="none", variant="q4-k-m", context=65536, parallel=4
    )
    assert again.expected_memory.correction == 2 << 30
    assert again.expected_memory.likely == plain.expected_memory.likely + (2 << 30)
    assert again.digest == plain.digest, "an estimate launches nothing"
    (told,) = [r.text for r in again.reasons if r.code == "memory_measured"]
    assert "3 starts here" in told


def test_the_time_of_a_load_decides_between_equals_only() -> None:
    first, second = plans("qwen3.8-27b", runtime="llama.cpp", method="dflash", context=8192)[:2]
    slow = Measured(load_s={ran(first): 9000.0, ran(second): 1.0})
    assert plans("qwen3.8-27b", slow, runtime="llama.cpp", method="dflash", context=8192)[0].digest == first.digest


def test_a_context_that_nobody_asked_for_is_worth_more_the_longer_it_is() -> None:
    worth = [priors.room(context) for context in (1024, 2048, 3000, 4096, 8192, 12288, 16384, 20000, 32768, 131072)]
    assert worth == sorted(worth)
    assert worth[0] == worth[1] == 0.4
    assert worth[-1] == worth[-2] == 1.0
    assert worth[5] - worth[4] > 0.1


def test_a_little_speed_is_given_up_for_a_usual_context() -> None:
    """One RTX 3090: the drafter of Qwen3.6-27B leaves 8K, its MTP head 64K."""
    unasked = planner.plan(SHIPPED.find("qwen3.6-27b"), SERVER, SHIPPED, {}).plan
    assert unasked is not None
    assert (unasked.method, unasked.context >= 32768) == (Method.MTP, True)
    asked = planner.plan(SHIPPED.find("qwen3.6-27b"), SERVER, SHIPPED, {}, what_if={"context": 8192}).plan
    assert asked is not None
    assert asked.method is Method.DFLASH  # who says that 8K are enough has the speed


def test_little_context_is_told_with_what_would_hold_more() -> None:
    """... and the command that is named gives just that."""
    best = planner.plan(SHIPPED.find("qwen3.8-27b"), SERVER, SHIPPED, {}).plan
    assert best is not None
    assert best.context < 32768
    (told,) = [r.text for r in best.reasons if r.code == "little_context"]
    wish = told.partition("--what-if ")[2].strip("`").split("=")
    longer = planner.plan(SHIPPED.find("qwen3.8-27b"), SERVER, SHIPPED, {}, what_if={wish[0]: wish[1]}).plan
    assert longer is not None
    assert f"{longer.runtime} {longer.variant} with {longer.method} holds" in told
    assert longer.context == 32768
    assert "little_context" not in {r.code for r in longer.reasons}


def test_a_dense_27b_on_strix_halo_takes_what_was_measured_to_be_faster_there() -> None:
    """MTP: 22 tok/s in llama.cpp (11.11 to 22.10, llama.cpp#27342), 16.5 in vLLM (amd-strix-halo-vllm-toolboxes#53)."""
    first, *others = plans("qwen3.6-27b")
    assert (first.runtime, first.method) == ("llama.cpp", Method.MTP)
    assert any((p.runtime, p.method) == ("vllm", Method.MTP) for p in others)
    eight = plans("qwen3.6-27b", parallel=8)[0]
    assert eight.method is Method.NONE

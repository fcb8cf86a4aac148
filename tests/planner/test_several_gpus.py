"""One model on several identical GPUs of a host: as few as hold it, in PCI order, and only where they are identical."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hosts.facts import Accelerator, HostFacts
from orchestrator import catalogue, planner, profiles
from orchestrator.catalogue import Catalogue
from orchestrator.plan import Plan, Planned

SHIPPED = catalogue.shipped()
ONE = profiles.load("dankserver")


def host(number: int, **changes: object) -> HostFacts:
    """A machine with so many RTX 3090."""
    return replace(ONE, accelerators=tuple(gpu(n, **changes) for n in range(number)))


def gpu(n: int, **changes: object) -> Accelerator:
    first = ONE.accelerators[0]
    own = replace(first, pci=f"0000:{n + 1:02x}:00.0", index=n, uuid=f"GPU-{n}", devices=(f"nvidia.com/gpu={n}",))
    return replace(own, **changes)  # type: ignore[arg-type]


def make(model: str, facts: HostFacts, **what_if: object) -> Planned:
    return planner.plan(SHIPPED.find(model), facts, SHIPPED, {}, what_if=what_if)


def best(model: str, facts: HostFacts, **what_if: object) -> Plan:
    plan = make(model, facts, **what_if).plan
    assert plan is not None
    return plan


def flag(plan: Plan, name: str) -> str | None:
    return plan.argv[plan.argv.index(name) + 1] if name in plan.argv else None


@pytest.mark.parametrize("here", [4, 8])
def test_as_few_as_hold_it_share_it(here: int) -> None:
    plan = best("qwen3.8-27b", host(here), variant="bf16", method="none", context=8192, parallel=1)
    assert plan.devices == tuple(f"nvidia.com/gpu={n}" for n in range(4))  # 55.6 GB: two hold 48 GiB
    assert plan.expected_memory.devices == 4
    assert plan.expected_memory.weights == pytest.approx(55.6e9 / 4, rel=0.05)
    (told,) = [r.text for r in plan.reasons if r.code == "several_gpus"]
    assert "fewer do not hold it" in told
    alone = make("qwen3.8-27b", host(1), variant="bf16", method="none", context=8192, parallel=1)
    assert alone.plan is None
    assert "too_big" in {r.code for r in alone.rejected}


def test_a_wished_number_is_taken_or_refused() -> None:
    plan = best("qwen3.8-27b", host(2), variant="w4a16", method="none", tp=2, runtime="vllm")
    assert plan.devices == ("nvidia.com/gpu=0", "nvidia.com/gpu=1")
    assert flag(plan, "--tensor-parallel-size") == "2"
    refused = make("qwen3.8-27b", host(2), variant="w4a16", method="none", tp=4)
    assert refused.plan is None
    (why,) = {r.text for r in refused.rejected if r.code == "too_few_gpus"}
    assert why == "4 identical GPUs are asked for, this host has 2"
    assert best("qwen3.8-27b", host(2), variant="w4a16", method="none", tp=1).devices == ("nvidia.com/gpu=0",)


def test_only_identical_gpus_share() -> None:
    other = gpu(1, name="NVIDIA GeForce RTX 3080", memory_total=20 * 2**30, memory_free=19 * 2**30)
    mixed = replace(ONE, accelerators=(gpu(0), other))
    assert make("qwen3.8-27b", mixed, variant="w4a16", method="none", tp=2).plan is None
    assert make("qwen3.8-27b", mixed, variant="bf16", method="none").plan is None
    assert best("qwen3.8-27b", mixed, variant="w4a16", method="none").devices == ("nvidia.com/gpu=0",)


def test_the_gpu_that_is_free_is_taken_and_equals_in_their_order() -> None:
    busy = gpu(0, memory_free=6 * 2**30)
    facts = replace(ONE, accelerators=(busy, gpu(1), gpu(2)))
    assert best("qwen3.8-27b", facts, variant="q4-k-m", method="none", context=4096).devices == ("nvidia.com/gpu=1",)
    shuffled = replace(facts, accelerators=tuple(reversed(facts.accelerators)))
    assert make("qwen3.8-27b", shuffled) == make("qwen3.8-27b", facts)
    little = replace(ONE, accelerators=(gpu(0, memory_free=gpu(0).memory_free - 5), gpu(1)))  # type: ignore[operator]
    plan = best("qwen3.8-27b", little, variant="q4-k-m", method="none")
    assert plan.devices == ("nvidia.com/gpu=0",)  # a few bytes more elsewhere move nothing


def test_llama_cpp_spreads_over_what_it_is_given() -> None:
    plan = best("qwen3.6-35b-a3b", host(2), variant="q4-k-m", method="none", context=65536, parallel=4)
    assert plan.runtime == "llama.cpp"
    assert plan.devices == ("nvidia.com/gpu=0", "nvidia.com/gpu=1")
    assert plan.expected_memory.total <= (plan.expected_memory.budget or 0)


def test_taking_speculation_back_keeps_the_devices() -> None:
    facts = host(2)
    running = best("qwen3.8-27b", facts, variant="w4a16", method="mtp", tp=2, runtime="vllm", context=8192)
    plain = planner.without_speculation(running, SHIPPED.find("qwen3.8-27b"), facts, SHIPPED, {}).plan
    assert plain is not None
    assert (plain.method, plain.devices) == ("none", running.devices)
    assert flag(plain, "--tensor-parallel-size") == "2"


def test_what_does_not_fit_names_the_weights_that_do() -> None:
    asked = make("qwen3.8-27b", host(1), variant="bf16", context=8192, parallel=1)
    assert asked.plan is None
    texts = [r.text for r in asked.rejected if r.code == "too_big"]
    assert texts
    assert all("but variant w4a16 or q4-k-m" in text for text in texts)
    assert not any("but variant" in r.text for r in make("qwen3.8-27b", host(1)).rejected if r.variant == "w4a16")


def test_a_second_gpu_is_taken_where_one_leaves_a_cramped_context() -> None:
    """Qwen3-32B on two RTX 3090: 8K on one of them; the other would lie idle."""
    one, two = best("qwen3-32b", host(1)), best("qwen3-32b", host(2))
    assert one.context < 16384 <= two.context
    assert two.devices == ("nvidia.com/gpu=0", "nvidia.com/gpu=1")
    assert best("qwen3-32b", host(2), context=8192).devices == ("nvidia.com/gpu=0",)


def uneven(heads: int, kv_heads: int) -> Catalogue:
    """The catalogue with a drafter of Qwen3.8-27B whose heads are so many."""
    entry = SHIPPED.find("qwen3.8-27b")
    drafters = tuple(
        d.model_copy(update={"shape": d.shape and d.shape.model_copy(update={"heads": heads, "kv_heads": kv_heads})})
        for d in entry.drafters
    )
    changed = entry.model_copy(update={"drafters": drafters})
    models = tuple(changed if m.name == entry.name else m for m in SHIPPED.models)
    return SHIPPED.model_copy(update={"models": models})


@pytest.mark.parametrize(("heads", "kv_heads"), [(15, 5), (30, 5)])
def test_a_drafter_whose_heads_do_not_divide_is_left_whole(heads: int, kv_heads: int) -> None:
    """vLLM refuses to split it; on one of the devices it runs, which then holds all of it."""
    wish = {"variant": "w4a16", "method": "dflash", "tp": 2, "context": 8192, "parallel": 1}

    def planned(known: Catalogue, runtime: str) -> Planned:
        entry = known.find("qwen3.8-27b")
        return planner.plan(entry, host(2), known, {}, what_if={**wish, "runtime": runtime})

    usual, whole = planned(SHIPPED, "vllm").plan, planned(uneven(heads, kv_heads), "vllm").plan
    assert usual is not None
    assert whole is not None
    assert '"draft_tensor_parallel_size":1' in (flag(whole, "--speculative-config") or "")
    assert "draft_tensor_parallel_size" not in (flag(usual, "--speculative-config") or "")
    assert whole.expected_memory.drafter == pytest.approx(2 * usual.expected_memory.drafter, abs=2)
    assert whole.expected_memory.kv > usual.expected_memory.kv
    sglang = planned(uneven(heads, kv_heads), "sglang")
    assert sglang.plan is None
    assert any(r.code == "heads_not_shared" and r.text.startswith("the drafter's") for r in sglang.rejected)

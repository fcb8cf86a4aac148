"""Known bugs and limits, as data, in plans: what they refuse, limit, settle and tell."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from orchestrator import catalogue, planner, profiles
from orchestrator.catalogue import Catalogue
from orchestrator.catalogue.restrictions import Restriction
from orchestrator.plan import Method, Planned

SHIPPED = catalogue.shipped()
SERVER, CLAW = profiles.load("dankserver"), profiles.load("dankclaw")
BASE: Mapping[str, Any] = {"runtime": "vllm", "text": "it breaks", "source": "somebody#1", "date": dt.date(2026, 11, 1)}


def restriction(name: str, effect: str, **more: Any) -> Restriction:
    return Restriction.model_validate({**BASE, "id": name, "effect": effect, **more})


def make(*restrictions: Restriction, today: dt.date | None = None, **what_if: Any) -> Planned:
    """Plans for the dense 27B on the 3090 under nothing but these restrictions."""
    here: Catalogue = SHIPPED.model_copy(update={"restrictions": restrictions})
    return planner.plan(SHIPPED.find("qwen3.8-27b"), SERVER, here, {}, what_if=what_if, today=today)


def methods(planned: Planned, runtime: str = "vllm") -> set[Method]:
    return {p.method for p in (planned.plan, *planned.alternatives) if p is not None and p.runtime == runtime}


def test_a_refusal_is_told_in_its_own_words() -> None:
    planned = make(restriction("no-dflash-here", "refuse", methods=["dflash"], arch=["sm_8*"]))
    assert Method.DFLASH not in methods(planned)
    assert Method.MTP in methods(planned)
    down = [r for r in planned.rejected if r.code == "no-dflash-here"]
    assert {r.method for r in down} == {Method.DFLASH}
    assert all((r.text, r.source) == ("it breaks", "somebody#1") for r in down)
    elsewhere = make(restriction("no-dflash-there", "refuse", methods=["dflash"], arch=["gfx*"]))
    assert Method.DFLASH in methods(elsewhere)


def test_a_wish_that_is_refused_is_no_plan() -> None:
    bad = restriction("fp8-flash", "refuse", kv=["fp8"], attention_backend=["FLASH_ATTN"], text="take FLASHINFER")
    planned = make(bad, kv="fp8", attention="FLASH_ATTN", runtime="vllm")
    assert planned.plan is None
    assert {r.text for r in planned.rejected if r.code == "fp8-flash"} == {"take FLASHINFER"}
    assert make(bad, kv="fp8", attention="FLASHINFER", method="mtp", runtime="vllm").plan is not None
    assert make(bad, kv="fp8", method="mtp", runtime="vllm").plan is not None  # nobody settled the backend


def test_limits_clip_what_nobody_asked_for_and_refuse_what_was() -> None:
    few = restriction("few", "limit", limits={"parallel": 1, "context": 4096})
    for plan in (p for p in (make(few).plan, *make(few).alternatives) if p is not None and p.runtime == "vllm"):
        assert plan.parallel == 1
        assert plan.context <= 4096
    assert {r.code for r in make(few, parallel=2, runtime="vllm").rejected} >= {"too_many_slots"}
    assert {r.code for r in make(few, context=8192, runtime="vllm").rejected} >= {"context_limit"}
    forced = make(few, parallel=2, method="none", runtime="vllm")
    assert forced.plan is None
    assert {(r.source, "parallel 1" in r.text) for r in forced.rejected if r.code == "too_many_slots"} == {
        ("somebody#1", True)
    }


def test_draft_lengths_are_clipped_aloud() -> None:
    plan = make(restriction("short", "limit", limits={"draft_tokens": 2}), method="dflash").plan
    assert plan is not None
    assert plan.draft_tokens == 2
    assert [r.source for r in plan.reasons if r.code == "draft_clamped"] == ["somebody#1"]


def test_settings_are_settled_below_wishes() -> None:
    careful = restriction("careful", "set", methods=["mtp"], settings={"eager": True, "kv": "fp8"})
    plan = make(careful, method="mtp", runtime="vllm").plan
    assert plan is not None
    assert "--enforce-eager" in plan.argv
    assert plan.argv[plan.argv.index("--kv-cache-dtype") + 1] == "fp8"
    assert [r.text for r in plan.reasons if r.code == "careful"] == ["it breaks"]
    wished = make(careful, method="mtp", runtime="vllm", kv="bfloat16").plan
    assert wished is not None
    assert wished.argv[wished.argv.index("--kv-cache-dtype") + 1] == "bfloat16"
    (told,) = [r.text for r in wished.reasons if r.code == "careful"]
    assert "not taken over: kv" in told
    # what settles a thing still holds when it is settled: graphs are off because they were on
    graphs = restriction("graphs", "set", eager=False, settings={"eager": True})
    settled = make(graphs, method="mtp", runtime="vllm").plan
    assert settled is not None
    assert "--enforce-eager" in settled.argv


def test_what_speaks_of_sizes_is_asked_about_the_size_that_fits() -> None:
    told = restriction("long", "warn", context_above=4096)
    small = make(told, method="none", runtime="vllm", context=4096).plan
    large = make(told, method="none", runtime="vllm", context=8192).plan
    assert small is not None
    assert large is not None
    assert "long" not in {r.code for r in small.reasons}
    assert "long" in {r.code for r in large.reasons}
    never = restriction("never", "refuse", context_above=4096)
    plan = make(never, method="none", runtime="vllm").plan
    assert plan is not None
    assert plan.context <= 4096
    assert {r.code for r in make(never, context=8192, runtime="vllm").rejected} == {"never", "no_image"}


def test_what_is_over_binds_no_more() -> None:
    old = restriction("old", "refuse", methods=["dflash"], expires=dt.date(2026, 12, 1))
    assert Method.DFLASH not in methods(make(old, today=dt.date(2026, 12, 1)))
    assert Method.DFLASH in methods(make(old, today=dt.date(2026, 12, 2)))


def test_a_batch_is_cut_aloud() -> None:
    big = restriction("big", "limit", limits={"batch": 4096})
    plan = make(big, method="none", runtime="vllm", variant="w4a16", batch=8192).plan
    assert plan is not None
    assert plan.argv[plan.argv.index("--max-num-batched-tokens") + 1] == "4096"
    assert [r.source for r in plan.reasons if r.code == "batch_limited"] == ["somebody#1"]

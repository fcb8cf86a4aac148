"""What was asked for is done or refused by name; nothing that was asked for is silently left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hosts.facts import HostFacts
from orchestrator import catalogue, planner, profiles
from orchestrator.errors import UsageError
from orchestrator.file_facts import FileFacts, Quantised, location
from orchestrator.kinds import KvType
from orchestrator.models import Format
from orchestrator.plan import Method, Plan, Planned
from orchestrator.planner import Preferences
from tests.golden import rows

SHIPPED = catalogue.shipped()
ONE = profiles.load("dankserver")


def make(model: str, facts: HostFacts = ONE, **what_if: object) -> Planned:
    return planner.plan(SHIPPED.find(model), facts, SHIPPED, {}, what_if=what_if)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("method", "mpt", "did you mean 'mtp'?"),
        ("method", "suffix", "one of dflash"),
        ("runtime", "vlm", "did you mean 'vllm'?"),
        ("kv", "fp9", "bfloat16"),
    ],
)
def test_a_word_that_is_none_is_refused_with_those_that_are(key: str, value: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"{key}={value!r}") as refused:
        Preferences.from_what_if({key: value})
    assert words.removeprefix("one of ") in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("given", "said"),
    [({"kv": "bf16"}, "bfloat16"), ({"runtime": "vLLM"}, "vllm"), ({"runtime": "llamacpp"}, "llama.cpp")],
)
def test_what_people_write_for_the_same_thing_is_understood(given: dict[str, str], said: str) -> None:
    assert said in (Preferences.from_what_if(given).kv, Preferences.from_what_if(given).runtime)


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", True, 0, [1]])
def test_a_number_that_is_none_is_refused_in_plain_words(value: object) -> None:
    with pytest.raises(UsageError, match="a whole number above 0 is needed"):
        Preferences.from_what_if({"ctx": value})


def test_one_thing_under_two_names_is_refused() -> None:
    with pytest.raises(UsageError, match="'context' is given twice"):
        Preferences.from_what_if({"ctx": "4096", "context": "8192"})


def test_a_drafter_that_was_asked_for_drafts() -> None:
    """Also where another method would be thought faster; and where it does not fit, nothing else is taken for it."""
    roomy = replace(ONE, accelerators=(replace(ONE.accelerators[0], memory_free=80 << 30, memory_total=80 << 30),))
    taken = make("qwen3.8-27b", roomy, drafter="dflash2-bf16", parallel=8).plan
    assert taken is not None
    assert (taken.method, taken.drafter) == (Method.DFLASH, "dflash2-bf16")
    small = make("qwen3.8-27b", drafter="dflash2-bf16")
    assert small.plan is None
    assert {r.code for r in small.rejected if r.drafter == "dflash2-bf16"} >= {"too_big"}
    assert any(r.code == "no_drafter" and "named dflash2-bf16 in gguf" in r.text for r in small.rejected)


def test_a_drafter_or_variant_that_is_unknown_is_told_with_those_that_are_not() -> None:
    (drafter,) = make("qwen3.8-27b", drafter="dflash3").rejected
    assert drafter.code == "no_drafter"
    assert "dflash2-w4a16, dflash2-bf16" in drafter.text
    (variant,) = make("qwen3.8-27b", variant="q9").rejected
    assert variant.code == "no_variant"
    (none,) = make("smollm2", drafter="any").rejected
    assert none.text.endswith("it has none")


def test_every_alternative_says_whether_it_was_turned_down() -> None:
    document = make("qwen3.8-27b").to_dict()
    ranked = [a for a in document["alternatives"] if a["rejected"] is None]
    down = [a for a in document["alternatives"] if a["rejected"] is not None]
    assert ranked
    assert down
    assert all(Plan.from_dict(a).digest == a["digest"] for a in ranked)
    assert all(set(a["rejected"]) == {"code", "text"} for a in down)


def test_an_image_that_nobody_knows_is_told_to_be_assumed() -> None:
    planned = make("qwen3.8-27b", image="registry.example/mine:7", runtime="vllm")
    assert planned.plan is not None
    (told,) = [r.text for r in planned.plan.reasons if r.code == "image_assumed"]
    assert "registry.example/mine:7 is taken to be vllm" in told
    down = [r.text for r in planned.rejected if r.code == "vllm-dflash-before-0.20.1"]
    assert down
    assert all("which version registry.example/mine:7 has is not known" in text for text in down)
    known = make("qwen3.8-27b").plan
    assert known is not None
    assert "image_assumed" not in {r.code for r in known.reasons}


def test_of_a_gpu_whose_memory_nobody_knows_little_is_taken_and_it_is_told() -> None:
    unknown = replace(ONE, accelerators=(replace(ONE.accelerators[0], memory_free=None, memory_total=None),))
    plan = make("qwen3.8-27b", unknown).plan
    assert plan is not None
    assert (plan.context, plan.parallel) == (8192, 1)
    assert "memory_unknown" in {r.code for r in plan.reasons}
    asked = make("qwen3.8-27b", unknown, context=65536, parallel=2).plan
    assert asked is not None
    assert (asked.context, asked.parallel) == (65536, 2)


def test_a_proof_of_an_engine_is_not_told_as_one_of_the_model() -> None:
    cpu = replace(ONE, accelerators=())
    plan = make("gpt-oss-20b", cpu).plan
    assert plan is not None
    (told,) = [r.text for r in plan.reasons if r.code == "evidence"]
    assert "for this engine and method, whatever the model" in told


def test_a_kv_type_that_was_asked_for_takes_the_backend_that_has_it() -> None:
    """The known combination's FLASH_ATTN goes with its bfloat16; fp8 on Ampere needs FLASHINFER. Slower: told."""
    plan = make("qwen3.8-27b", kv="fp8", method="dflash", runtime="vllm").plan
    assert plan is not None
    assert plan.argv[plan.argv.index("--kv-cache-dtype") + 1] == "fp8"
    assert "FLASHINFER" in plan.argv
    assert "vllm-dflash-quantised-kv-ampere" in {r.code for r in plan.reasons}
    refused = make("qwen3.8-27b", kv="fp8", method="dflash", runtime="vllm", attention="FLASH_ATTN")
    assert refused.plan is None
    assert any("fp8 with FLASHINFER" in r.text for r in refused.rejected)


@pytest.mark.parametrize(("runtime", "host"), [("vllm", "two-3090"), ("sglang", "h200")])
@pytest.mark.parametrize("asked", [None, "fp8_e4m3"])
def test_what_a_checkpoint_orders_for_the_cache_does_not_count_in_silence(
    runtime: str, host: str, asked: str | None
) -> None:
    """vLLM obeys a checkpoint's kv_cache_scheme unless a type is said (vllm#44879): one is always said, and counted."""
    entry = SHIPPED.find("qwen3.8-27b")
    variant = next(v for v in entry.variants if v.name == "w4a16")
    file = FileFacts(
        path="/models/own",
        size=variant.weight_bytes or 0,
        format=Format.SAFETENSORS,
        architecture="Qwen3_5ForConditionalGeneration",
        name=None,
        shape=variant.shape,
        tensor_bytes=variant.weight_bytes or 0,
        vocab=248320,
        tokens_digest=None,
        nextn_layers=1,
        quantised=Quantised("compressed-tensors", 4, "W4A16", 128, KvType.FP8_E4M3),
    )
    wish = {"runtime": runtime, "variant": "w4a16", "method": "none", "context": 8192, "parallel": 1, "kv": asked}
    given = {key: value for key, value in wish.items() if value is not None}
    facts = rows.facts(host)
    plan = planner.plan(entry, facts, SHIPPED, {location(variant): file}, what_if=given).plan
    assert plan is not None
    said = plan.argv[plan.argv.index("--kv-cache-dtype") + 1]
    told = {r.code for r in plan.reasons}
    assert said == (asked or "bfloat16")
    assert ("checkpoint_kv" in told) == (asked is None)

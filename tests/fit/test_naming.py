"""Names of models and quantisations in people's words: found, or unknown, never guessed."""

from __future__ import annotations

import pytest

from orchestrator.fit.naming import named
from orchestrator.fit.quantisation import parse, stated_bytes, weighs
from orchestrator.fit.words import drafting, kv
from orchestrator.kinds import KvType
from orchestrator.known_shapes import drafter_for, drafters, find, known
from orchestrator.plan import Method

FOUND = [
    ("Qwen/Qwen3-8B-FP8", "qwen3-8b"),
    ("Qwen3-8B finetune (Medical_Qwen3_8B)", "qwen3-8b"),
    ("unsloth/Qwen3.8-27B-GGUF UD-IQ2_XXS (9010048064 B)", "qwen3.8-27b"),
    ("Qwen3.x 27B (model_type qwen3_5_text)", "qwen3.8-27b"),
    ("Qwen3-Next-80B-A3B-Instruct Q4_K_M gguf", "qwen3-next-80b-a3b"),
    ("Llama 3.1 8B Instruct", "llama-3.1-8b"),
    ("Llama-3_1-Nemotron-Ultra-253B-v1 (UD-Q3_K_XL)", "llama-nemotron-ultra-253b"),
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "qwen2.5-14b"),
    ("DeepSeek-V3-0324 671B (experts in RAM)", "deepseek-v3"),
    ("gemma-4-12B-it QAT UD-Q4_K_XL gguf", "gemma-4-12b"),
    ("openai/gpt-oss-120b", "gpt-oss-120b"),
    ("Qwen2.5-7B-Instruct-1M-Q8_0.gguf", "qwen2.5-7b"),
    ("llama3.1:8b", "llama-3.1-8b"),
    ("deepseek-r1:32b", "qwen2.5-32b"),
    ("DeepSeek-R1-0528-Qwen3-8B", "qwen3-8b"),
    ("deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct", "deepseek-v2-lite"),
    ("deepseek-ai/DeepSeek-Coder-V2-Instruct", "deepseek-v2.5"),
    ("Qwen3-32B with a Qwen3-0.6B draft", "qwen3-32b"),
]
UNKNOWN = [
    "Qwen3-80B", "Qwen3-VL-235B-A22B", "Qwen3-8B-DFlash-b16", "Qwen3.8-27B-DFlash2", "gemma-4-31b-it-assistant",
    "DeepSeek-R1-Distill-Qwen-3B", "DeepSeek-V4-Flash-0731", "GLM-5.3-Flash (Glm5Next, hybrid)",
    "Nemotron-3-Puzzle-75B (hybrid Mamba)", "(27B class, see issue)", "(not named)", "", "8B", "Qwen", "Qwen3.x",
    "Qwen3-8B-Embedding", "Qwen3.8-270B",
]  # fmt: skip


@pytest.mark.parametrize(("text", "name"), FOUND)
def test_a_model_is_found_by_its_name(text: str, name: str) -> None:
    model = find(text)
    assert model is not None
    assert model.name == name


@pytest.mark.parametrize("text", UNKNOWN)
def test_a_name_that_is_not_known_is_unknown(text: str) -> None:
    assert find(text) is None


def test_every_name_finds_its_own_model() -> None:
    for model in known():
        for name in model.names:
            found = find(name)
            assert found is not None
            assert found.shape == model.shape, name


def test_every_known_number_has_a_source() -> None:
    for model in known():
        assert model.source, model.name
        assert all(size.source and size.bytes > 0 for size in model.sizes), model.name
        assert model.shape.attention_layers + model.shape.linear_layers <= model.shape.layers, model.name
    targets = {model.name for model in known()}
    for drafter in drafters():
        assert drafter.source, drafter.name
        assert set(drafter.targets) <= targets, drafter.name


def test_a_drafter_is_found_by_what_is_said_of_it() -> None:
    two = drafter_for("qwen3.8-27b", Method.DFLASH, "dflash2 W4A16 DFlash2 drafter")
    one = drafter_for("qwen3.8-27b", Method.DFLASH, "dflash")
    assert two is not None
    assert one is not None
    assert (two.name, one.name) == ("dflash2-27b", "dflash-27b")
    assert drafter_for("qwen3-8b", Method.DFLASH) is None


QUANTISATIONS = [
    ("Q4_K - Medium", "Q4_K_M"), ("Q2_K - Medium (227.689 GiB)", "Q2_K"), ("UD-Q4_K_XL", "UD-Q4_K_XL"),
    ("auto_round int4 g128", "int4"), ("fp8 block 128x128", "fp8"), ("compressed-tensors AWQ 4bit", "awq"),
    ("modelopt nvfp4", "nvfp4"), ("w4a16", "w4a16"), ("none (bf16)", "bf16"), ("IQ4_K (17.679 GiB)", "IQ4_K"),
    ("ternary", "TERNARY"), ("mxfp4", "mxfp4"), ("Q8_0", "Q8_0"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), QUANTISATIONS)
def test_a_quantisation_is_understood(text: str, kind: str) -> None:
    assert str(parse(text)) == kind


@pytest.mark.parametrize("text", ["(mixed)", "something new", "", "Q9_K_M", "very good quality"])
def test_a_quantisation_that_is_not_known_is_unknown(text: str) -> None:
    assert parse(text) is None


def test_bytes_that_are_stated_win() -> None:
    assert stated_bytes("UD-IQ2_XXS (9010048064 B)") == 9010048064
    assert stated_bytes("Q2_K - Medium (227.689 GiB)") == int(227.689 * 2**30)
    assert stated_bytes("about 17.5 GB") == 17_500_000_000
    assert stated_bytes("weights 14.9888 GB", gigabyte_is_gib=True) == int(14.9888 * 2**30)
    assert stated_bytes("Qwen3-8B, 128K context") is None


def test_a_publishers_own_file_is_not_taken_for_anothers() -> None:
    model = find("gemma-4-31b")
    nvfp4 = parse("nvfp4")
    assert model is not None
    assert nvfp4 is not None
    theirs, others = weighs(model, nvfp4, "nvidia"), weighs(model, nvfp4, None)
    assert theirs is not None
    assert others is not None
    assert theirs.bytes.mid > 1.5 * others.bytes.mid


def test_the_models_own_words_tell_more_than_llama_cpps() -> None:
    texts = named("Qwen3-32B (UD-Q4_K_XL, 18.641 GiB)", "Q4_K - Medium")
    assert str(texts.quantisation) == "UD-Q4_K_XL"
    assert texts.stated == int(18.641 * 2**30)
    assert named("DeepSeek-V3 671B (experts in RAM)", "(mixed)").experts_in_ram
    assert named("nvidia/Gemma-4-31B-IT-NVFP4", None).publisher == "nvidia"
    assert named("Qwen3.6-27B (DFlash, no vision)", None).no_vision


def test_types_of_a_cache_are_understood() -> None:
    pair = kv("K q8_0 / V q4_0")
    assert pair is not None
    assert (pair.keys, pair.values) == (KvType.Q8_0, KvType.Q4_0)
    mixed = kv("fp8_e4m3 attention + fp16 Mamba SSM")
    assert mixed is not None
    assert (mixed.keys, mixed.state_bits) == (KvType.FP8_E4M3, 16)
    for text in ("q8_0/q4_0", "K (q8_0), V (q4_0)", "K (q8_0): 72.00 MiB, V (q4_0): 38.00 MiB", "k=q8_0,v=q4_0"):
        assert kv(text) == pair, text
    for text, kind in (
        ("fp8 (e4m3)", KvType.FP8_E4M3), ("fp16", KvType.F16), ("c^KV q8_0 (MLA)", KvType.Q8_0),
        ("torch.float8_e4m3fn", KvType.FP8_E4M3), ("torch.bfloat16", KvType.BF16), ("q8_0", KvType.Q8_0),
        ("fp8/e5m2", KvType.FP8_E5M2),
    ):  # fmt: skip
        found = kv(text)
        assert found is not None
        assert found.keys is kind, text
    automatic = kv("auto")
    assert automatic is not None
    assert automatic.keys is None
    for text in ("nvfp4 (prototype)", "turboquant_3bit_nc", "K q3_9 / V f16", "whatever"):
        assert kv(text) is None, text


def test_methods_are_understood() -> None:
    for text, method in (
        ("mtp (embedded head)", Method.MTP), ("dflash2", Method.DFLASH), ("draft-dflash", Method.DFLASH),
        ("DSpark", Method.DSPARK), ("EAGLE (built-in head)", Method.MTP), ("eagle3", Method.EAGLE3),
        ("mtp assistant (external)", Method.DRAFT), ("draft model", Method.DRAFT), ("ngram", Method.NGRAM),
    ):  # fmt: skip
        found = drafting(text)
        assert found is not None
        assert found.method is method, text
    assert drafting("drafter model loaded") is None

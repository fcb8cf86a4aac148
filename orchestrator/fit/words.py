"""What people write for types, methods, engines: understood or None, never guessed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.kinds import KvType
from orchestrator.models import Runtime
from orchestrator.plan import Method

_ENGINES = {
    "vllm": (Runtime.VLLM, False), "llama.cpp": (Runtime.LLAMA_CPP, False), "llamacpp": (Runtime.LLAMA_CPP, False),
    "llama-cpp": (Runtime.LLAMA_CPP, False), "llama-server": (Runtime.LLAMA_CPP, False),
    "ik_llama.cpp": (Runtime.LLAMA_CPP, True), "ik_llama": (Runtime.LLAMA_CPP, True),
    "llama-cpp-python": (Runtime.LLAMA_CPP, False), "llama-cli": (Runtime.LLAMA_CPP, False),
    "koboldcpp": (Runtime.LLAMA_CPP, False), "llamafile": (Runtime.LLAMA_CPP, False),
    "sglang": (Runtime.SGLANG, False), "sgl": (Runtime.SGLANG, False),
}  # fmt: skip


def engine(text: str) -> tuple[Runtime, bool] | None:
    """The runtime, and whether it is the fork ik_llama.cpp; None for an engine without formulas here."""
    low = text.strip().lower()
    found = _ENGINES.get(low)
    if found is not None:
        return found
    first = re.split(r"[\s(:@]", low, maxsplit=1)[0]
    return _ENGINES.get(first)


_VERSION = re.compile(r"\bv?(\d+\.\d+[\w.+]*)|\b(b\d{4,5})\b")


@lru_cache(maxsize=256)
def version(text: str) -> str | None:
    """What stands behind an engine's name: `vLLM 0.11.0`, `llama.cpp b6500`."""
    found = _VERSION.search(text.lower())
    return None if found is None else found[1] or found[2]


_KV_WORDS = {
    "f32": KvType.F32, "fp32": KvType.F32, "float32": KvType.F32, "f16": KvType.F16, "fp16": KvType.F16,
    "float16": KvType.F16, "half": KvType.F16, "bf16": KvType.BF16, "bfloat16": KvType.BF16, "fp8": KvType.FP8,
    "fp8_e4m3": KvType.FP8_E4M3, "fp8/e4m3": KvType.FP8_E4M3, "fp8_e5m2": KvType.FP8_E5M2,
    "fp8/e5m2": KvType.FP8_E5M2, "e4m3": KvType.FP8_E4M3, "e5m2": KvType.FP8_E5M2,
    "int8_per_token_head": KvType.INT8, "int4_per_token_head": KvType.INT4, "q8_0": KvType.Q8_0,
    "fp8_e4m3fn": KvType.FP8_E4M3, "float8_e4m3fn": KvType.FP8_E4M3, "float8_e4m3": KvType.FP8_E4M3,
    "float8_e5m2": KvType.FP8_E5M2, "float8": KvType.FP8, "q8": KvType.Q8_0, "q4": KvType.Q4_0,
    "q5_1": KvType.Q5_1, "q5_0": KvType.Q5_0, "q4_1": KvType.Q4_1, "q4_0": KvType.Q4_0, "iq4_nl": KvType.IQ4_NL,
}  # fmt: skip
_PAIR = re.compile(r"k[ =:(]+([a-z0-9_]+)\)?[^/,;]*[/,;]\s*v[ =:(]+([a-z0-9_]+)")
_BARE = re.compile(r"([a-z]*[0-9]+[a-z0-9_]*)\s*/\s*([a-z]*[0-9]+[a-z0-9_]*)")
_LATENT = re.compile(r"c\^?kv\s+([a-z0-9_]+)")


@dataclass(frozen=True, slots=True)
class KvWords:
    """What a KV cache is stored as: keys, values where they differ; None of both is the model's own type."""

    keys: KvType | None
    values: KvType | None = None
    latent: bool = False
    """Whether the words say that latents are cached."""
    state_bits: int | None = None


@lru_cache(maxsize=1024)
def kv(text: str) -> KvWords | None:
    """`K q8_0 / V q4_0`, `q8_0/q4_0`, `K (q8_0), V (q8_0)`, `torch.float8_e4m3fn`, `auto`, `c^KV f16 (MLA)`; None for
    a type that is not known."""
    low = text.strip().lower().replace("torch.", "")
    state = 16 if re.search(r"(fp16|float16|bf16)\s+(mamba|ssm)", low) else None
    pair = _PAIR.match(low) or (_BARE.fullmatch(low) if low not in _KV_WORDS else None)
    if pair is not None:
        keys, values = _KV_WORDS.get(pair[1]), _KV_WORDS.get(pair[2])
        return None if keys is None or values is None else KvWords(keys, values, "mla" in low, state)
    latent = _LATENT.match(low)
    if latent is not None:
        kind = _KV_WORDS.get(latent[1])
        return None if kind is None else KvWords(kind, None, True)
    if low in ("auto", "default"):
        return KvWords(None)
    first = re.split(r"[\s(]", low)[0]
    kind = _KV_WORDS.get(first)
    if kind is KvType.FP8:
        kind = _KV_WORDS["e4m3"] if "e4m3" in low else _KV_WORDS["e5m2"] if "e5m2" in low else kind
    return None if kind is None else KvWords(kind, None, "mla" in low, state)


@dataclass(frozen=True, slots=True)
class Drafting:
    """A method, and whether its drafter is a model of its own (not a head in the checkpoint)."""

    method: Method
    external: bool


@lru_cache(maxsize=1024)
def drafting(text: str) -> Drafting | None:
    """`mtp`, `dflash2`, `draft-dflash`, `EAGLE (built-in head)`, `mtp assistant (external)`; None when unclear."""
    low = text.strip().lower()
    if low in ("none", "off", "no"):
        return Drafting(Method.NONE, False)
    if "assistant" in low:
        return Drafting(Method.DRAFT, True)
    for word, method in (("dspark", Method.DSPARK), ("dflash", Method.DFLASH), ("eagle3", Method.EAGLE3)):
        if word in low.replace("-", ""):
            return Drafting(method, True)
    if "mtp" in low or "nextn" in low or ("eagle" in low and "built" in low):
        return Drafting(Method.MTP, "external" in low)
    if "eagle" in low:
        return Drafting(Method.EAGLE3, True)
    if "ngram" in low or "n-gram" in low or "prompt lookup" in low or low == "suffix":
        return Drafting(Method.NGRAM, False)
    if "draft model" in low or low in ("draft", "draft_model", "draft-simple"):
        return Drafting(Method.DRAFT, True)
    return None


@lru_cache(maxsize=256)
def dtype_bits(text: str | None) -> int:
    """The width a model computes in; 16 unless it says float32."""
    return 32 if text is not None and text.strip().lower() in ("float32", "fp32", "f32", "float") else 16

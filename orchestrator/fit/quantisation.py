"""Quantisation words, and what a model's files weigh in one of them.

Bytes come, in this order, from what a row states, from a known file of that model, from parameters x bits. GGUF bits
are over all tensors (llama.cpp tools/quantize/README.md, Llama-3.1-8B; Unsloth's XL kinds from the files of
unsloth/Qwen3.5-27B-GGUF over 26.9e9 parameters). Those of safetensors are of the linear layers; embeddings, head and
vision stay in 16 bit, and in mixtures of experts so does all but the experts, for FP4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.known_shapes import Known, Size
from orchestrator.memory_fit import Estimate

_GGUF_BITS = {
    "IQ1_S": 2.00, "IQ1_M": 2.15, "IQ2_XXS": 2.38, "IQ2_XS": 2.59, "IQ2_S": 2.74, "IQ2_M": 2.93, "IQ3_XXS": 3.25,
    "IQ3_XS": 3.50, "IQ3_S": 3.66, "IQ3_M": 3.76, "IQ4_XS": 4.46, "IQ4_NL": 4.68, "Q2_K_S": 2.97, "Q2_K": 3.16,
    "Q3_K_S": 3.64, "Q3_K_M": 4.00, "Q3_K_L": 4.30, "Q4_0": 4.50, "Q4_1": 5.00, "Q4_K_S": 4.67, "Q4_K_M": 4.89,
    "Q5_0": 5.50, "Q5_1": 6.00, "Q5_K_S": 5.57, "Q5_K_M": 5.70, "Q6_K": 6.56, "Q8_0": 8.50, "F16": 16.0,
    "BF16": 16.0, "F32": 32.0, "TQ1_0": 1.69, "TQ2_0": 2.06, "TERNARY": 2.13, "MXFP4": 4.5, "MXFP4_MOE": 4.5,
    "Q2_K_XL": 3.33, "Q3_K_XL": 4.28, "Q4_K_XL": 5.23, "Q5_K_XL": 6.00, "Q6_K_XL": 7.64, "Q8_K_XL": 10.5,
    "Q6_K_L": 6.75, "Q4_K_L": 5.0, "Q5_K_L": 5.8,
    "IQ2_K": 2.375, "IQ3_K": 3.44, "IQ4_KS": 4.25, "IQ4_K": 4.5, "IQ5_KS": 5.25, "IQ5_K": 5.5, "IQ6_K": 6.6,
}  # fmt: skip
"""Bits a weight over a whole file; of the legacy kinds, over all but the output layer."""
_EXACT = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1"})
_QAT_Q4 = 4.55
"""Files from quantisation-aware training in 4 bit are plain Q4_0 blocks: 14439363584 bytes of 25.2e9 parameters."""


@dataclass(frozen=True, slots=True)
class _Bits:
    low: float
    mid: float
    high: float
    experts_only: bool = False
    """In a mixture of experts, whether only the experts are stored so."""


_LINEAR_BITS = {
    "int4": _Bits(4.125, 4.16, 4.7), "w4a16": _Bits(4.125, 4.16, 4.7), "gptq": _Bits(4.125, 4.2, 4.7),
    "awq": _Bits(4.15, 4.16, 5.0), "nvfp4": _Bits(4.5, 4.97, 6.5, True), "mxfp4": _Bits(4.25, 4.25, 4.25, True),
    "int8": _Bits(8.0, 8.1, 8.5), "fp8": _Bits(8.0, 8.02, 8.3), "bf16": _Bits(16, 16, 16), "f32": _Bits(32, 32, 32),
    "nf4": _Bits(4.1, 4.5, 5.0),
}  # fmt: skip
"""Bits a weight of the linear layers. int4: groups of 128 with a 16-bit scale; awq: a 4-bit zero point as well, experts
and attention alike (AutoAWQ: Mixtral 24.65 GB, Qwen2.5-32B 19.33 GB). nvfp4 in dense models: 4.97 over what
nvidia's Qwen3.6-27B (22 GB) has besides embeddings, vision and head, for publishers keep some layers wider."""

_AWQ_IN_HYBRIDS = _Bits(4.15, 4.5, 5.0, True)
"""Gated delta nets are left in 16 bit (vllm-project/recipes#971), and the groups are smaller (vllm#40128)."""

_GGUF = re.compile(
    r"(?<![a-z0-9])(ud-)?((?:iq[1-6]_(?:xxs|xs|s|m|nl|ks|k)|q[2-8]_k(?:_(?:xl|s|m|l))?|q[4-8]_[01]|tq[12]_0|mxfp4(?:_moe)?))(?![a-z0-9_])"
)
_LEGACY = re.compile(r"\bq([2-6])_k\s*-\s*(small|medium|large)")
_BYTES = re.compile(r"\b(\d{7,15}) ?b(?:ytes)?\b")
_GIGA = re.compile(r"(\d+(?:\.\d+)?) ?(gib|gb)\b")


@dataclass(frozen=True, slots=True)
class Quantisation:
    """One quantisation: `kind` is a key of the tables here; `gguf` says which of them."""

    kind: str
    gguf: bool
    qat: bool = False
    unsloth: bool = False
    """Unsloth's dynamic kind of that name, a file of its own."""

    def __str__(self) -> str:
        return f"UD-{self.kind}" if self.unsloth else self.kind


@lru_cache(maxsize=4096)
def parse(text: str) -> Quantisation | None:
    """The quantisation that a text names; None when it names none (or several without an order)."""
    low = text.lower()
    qat = "qat" in low
    legacy = _LEGACY.search(low)
    found = _GGUF.search(low)
    if legacy is not None and (found is None or found[2] == f"q{legacy[1]}_k"):
        size = {"small": "S", "medium": "M", "large": "L"}[legacy[2]]
        kind = f"Q{legacy[1]}_K" if legacy[1] in "26" else f"Q{legacy[1]}_K_{size}"
        return Quantisation(kind, True, qat)
    if found is not None and not (found[2] == "mxfp4" and "gguf" not in low):
        return Quantisation(found[2].upper(), True, qat, found[1] is not None)
    if "ternary" in low:
        return Quantisation("TERNARY", True)
    plain = next((kind for word, kind in _WORDS if re.search(word, low)), None)
    if plain is None:
        return None
    if "gguf" in low and plain == "bf16":
        return Quantisation("BF16" if re.search(r"bf16|bfloat16", low) else "F16", True, qat)
    return Quantisation(plain, False, qat)


_WORDS = (
    (r"nvfp4", "nvfp4"), (r"mxfp4", "mxfp4"), (r"\bawq\b|awq", "awq"), (r"gptq", "gptq"), (r"w4a16|w4a8|w4a4", "w4a16"),
    (r"auto-?_?round.*int8|int8.*auto-?_?round|w8a8|w8a16|\bint8\b", "int8"),
    (r"auto-?_?round|int-?4\b|4-?bit", "int4"), (r"nf4|bitsandbytes|\bbnb\b", "nf4"), (r"fp8|\bf8\b", "fp8"),
    (r"\bbf16\b|bfloat16|\bf16\b|\bfp16\b|float16|^none\b|unquantised|unquantized", "bf16"), (r"\bf32\b|fp32", "f32"),
)  # fmt: skip
"""Words of safetensors quantisations, the more telling first."""


@lru_cache(maxsize=4096)
def stated_bytes(text: str, *, gigabyte_is_gib: bool = False) -> int | None:
    """Bytes that a text states about files: `(9010048064 B)`, `(227.689 GiB)`; GB is 1e9 unless an engine's log
    means GiB by it (vLLM, SGLang)."""
    low = text.lower()
    exact = _BYTES.search(low)
    if exact is not None:
        return int(exact[1])
    giga = _GIGA.search(low)
    if giga is None:
        return None
    unit = 1 << 30 if giga[2] == "gib" or gigabyte_is_gib else 1_000_000_000
    return int(float(giga[1]) * unit) or None


@dataclass(frozen=True, slots=True)
class Weighs:
    """What files weigh: a range of bytes, and how it is known (`stated`, `file`, `parameters`)."""

    bytes: Estimate
    how: str
    source: str
    head: int = 0
    """Bytes of the MTP head among them."""
    vision: int = 0
    """Bytes of a vision tower among them."""


_FAMILY = {"int4": ("int4", "w4a16"), "w4a16": ("w4a16", "int4"), "gptq": ("gptq", "int4"), "awq": ("awq",)}


def weighs(known: Known, quantisation: Quantisation, publisher: str | None, ranks: int = 1) -> Weighs | None:
    """What a known model weighs in a quantisation. None where its parameters are not known either."""
    size = _known_size(known, quantisation, publisher)
    head, vision = _extras(known, quantisation)
    if size is not None:
        near = 0.01 if size.by is not None and size.by == publisher else 0.03
        spread = Estimate(size.bytes * (1 - near), size.bytes, size.bytes * (1 + 2 * near))
        return Weighs(spread, "file", size.source, head, vision)
    if known.parameters is None:
        return None
    return Weighs(_from_parameters(known, quantisation, ranks), "parameters", known.source, head, vision)


def _known_size(known: Known, wanted: Quantisation, publisher: str | None) -> Size | None:
    kinds = _FAMILY.get(wanted.kind, (wanted.kind,))
    if wanted.gguf:
        # a file of the same name with and without Unsloth's prefix differs by some percent, less than a guess would
        kinds = (f"UD-{wanted.kind}", wanted.kind) if wanted.unsloth else (wanted.kind, f"UD-{wanted.kind}")
        kinds += (f"{wanted.kind.lower()}-gguf", wanted.kind.lower())
    for kind in kinds:
        offered = [s for s in known.sizes if s.words.removeprefix("qat ") == kind]
        offered = [s for s in offered if s.words.startswith("qat ") == wanted.qat] or ([] if wanted.qat else offered)
        named = [s for s in offered if s.by is not None and s.by == publisher]
        general = [s for s in offered if s.by is None]
        if named or general:
            return (named or general)[0]
    return None


def _extras(known: Known, quantisation: Quantisation) -> tuple[int, int]:
    if quantisation.gguf:
        bits = _GGUF_BITS[quantisation.kind]
        return int(known.mtp * bits / 8), 0
    wide = quantisation.kind in ("bf16", "f32")
    bits = _LINEAR_BITS[quantisation.kind].mid
    # exports of dense models mostly leave the head in 16 bit; one with experts is experts for the most part
    narrow = bits >= 8 or known.expert_parameters > 0
    return int(known.mtp * (bits if narrow and not wide else 16) / 8), known.vision * 2


def embedding_parameters(known: Known) -> int:
    """Numbers in the token embedding, and in the head where it is not the same."""
    shape = known.shape
    one = (shape.vocab or 0) * (shape.hidden or 0)
    return one if shape.tied_embeddings else 2 * one


def _from_parameters(known: Known, quantisation: Quantisation, ranks: int) -> Estimate:
    parameters = known.parameters or 0
    embeddings = min(embedding_parameters(known), parameters)
    if quantisation.gguf:
        return _gguf(known, quantisation, parameters)
    stored = _LINEAR_BITS[quantisation.kind]
    if quantisation.kind == "awq" and known.shape.linear_layers:
        stored = _AWQ_IN_HYBRIDS
    extras = sum(_extras(known, quantisation))
    if known.expert_parameters and stored.experts_only:
        narrow, padded = known.expert_parameters, _padding(known, quantisation, ranks)
        kept = 2 * (parameters - narrow) + extras
        middle = stored.low if quantisation.kind == "nvfp4" else stored.mid
    else:
        narrow, padded, middle = parameters - embeddings, 1.0, stored.mid
        kept = 2 * embeddings + extras
    low, mid, high = (kept + narrow * padded * bits / 8 for bits in (stored.low, middle, stored.high))
    return Estimate(low * 0.98, mid, high * 1.02)


_HEAD_BITS = 6.5625
"""llama.cpp keeps the output layer in Q6_K, in files of narrower kinds (llama.cpp src/llama-quant.cpp)."""


def _gguf(known: Known, quantisation: Quantisation, parameters: int) -> Estimate:
    one = (known.shape.vocab or 0) * (known.shape.hidden or 0)
    if known.native == "mxfp4" and not quantisation.kind.startswith("MXFP4"):
        # whatever the kind, experts stay as they were published (gpt-oss-20b: 13.8 GB as F16, 12.1 as Q8_0)
        rest = parameters - known.expert_parameters
        weight = (known.expert_parameters * _LINEAR_BITS["mxfp4"].mid + rest * _GGUF_BITS[quantisation.kind]) / 8
        return Estimate(weight * 0.95, weight, weight * 1.06)
    if quantisation.qat and quantisation.kind.startswith("Q4"):
        weight = parameters * _QAT_Q4 / 8
    else:
        bits = _GGUF_BITS[quantisation.kind]
        # the bits of K kinds count a head of a twentieth of the weights already; a tied one is the embedding
        wide = one if known.shape.tied_embeddings or quantisation.kind in _EXACT else 0
        weight = (parameters * bits + min(wide, parameters) * max(_HEAD_BITS - bits, 0)) / 8
    return Estimate(weight * 0.95, weight, weight * 1.06)


def _padding(known: Known, quantisation: Quantisation, ranks: int) -> float:
    """vLLM pads MXFP4 experts: their width a rank to 128, the model's to 256 (0.20.0 model_executor/layers/fused_moe/
    oracle/mxfp4.py:514, Marlin; other backends pad as much or more)."""
    width, hidden = known.expert_width, known.shape.hidden
    if quantisation.kind != "mxfp4" or width is None or hidden is None:
        return 1.0
    each = -(-width // ranks)
    return (-(-each // 128) * 128 / each) * (-(-hidden // 256) * 256 / hidden)


def embedding_bytes(known: Known, quantisation: Quantisation | None) -> int | None:
    """Bytes of the token embedding in a GGUF file: stored in about the file's bits, at least 4.5 (llama.cpp keeps it
    as Q4_K, IQ4 or wider in 4-bit files) and Q6_K where it is the head too."""
    if quantisation is None or not quantisation.gguf:
        return None
    bits = _GGUF_BITS[quantisation.kind]
    if known.shape.tied_embeddings and bits < 6.56 and not quantisation.qat:
        bits = 6.56
    elif quantisation.kind not in ("IQ4_XS", "TERNARY"):
        bits = max(min(bits, 16.0), 4.5) if bits >= 5.5 or bits < 4.5 else 4.5
    return int((known.shape.vocab or 0) * (known.shape.hidden or 0) * bits / 8)


def head_of(known: Known, quantisation: Quantisation) -> int:
    """Bytes of the MTP head in a known model's files."""
    return _extras(known, quantisation)[0]


def of_parameters(parameters: int, quantisation: Quantisation) -> Estimate:
    """What so many parameters weigh when nothing else is known of a model: all of them stored alike at the least."""
    if quantisation.gguf:
        weight = parameters * _GGUF_BITS[quantisation.kind] / 8
        return Estimate(weight * 0.95, weight, weight * 1.06)
    stored = _LINEAR_BITS[quantisation.kind]
    # a tenth in 16 bit: embeddings and head of models of 7B to 30B
    low, mid, high = (parameters * (b * 0.9 + max(b, 16) * 0.1) / 8 for b in (stored.low, stored.mid, stored.high))
    return Estimate(low * 0.9, mid, high * 1.05)

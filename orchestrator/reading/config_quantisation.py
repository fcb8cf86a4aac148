"""How a checkpoint's weights are quantised, by its `quantization_config`. Pure.

Methods and keys: vLLM 0.33.0 (transformers_utils/model_arch_config_convertor.py, model_executor/
layers/quantization) and the checkpoints of AutoAWQ, GPTQModel, AutoRound, compressed-tensors, ModelOpt.
"""

from __future__ import annotations

from orchestrator.file_facts import Quantised
from orchestrator.kinds import KvType
from orchestrator.reading.said import Said

_NAMES = {
    "awq": "AWQ", "gptq": "GPTQ", "auto-round": "AutoRound", "compressed-tensors": "", "fp8": "FP8", "mxfp4": "MXFP4",
    "modelopt": "ModelOpt", "modelopt_fp4": "NVFP4", "bitsandbytes": "BitsAndBytes", "torchao": "TorchAO",
    "fbgemm_fp8": "FP8", "quark": "Quark", "hqq": "HQQ",
}  # fmt: skip


def quantised(outer: Said, inner: Said, beside: Said | None = None) -> Quantised | None:
    """What the configuration says; `beside` is ModelOpt's hf_quant_config.json. None where nothing is quantised.

    Raises `BadKey`.
    """
    found = next((q for one in (outer, inner) if (q := _part(one)) is not None), beside)
    if found is None:
        return None
    told = found.part("quantization") if found.has("producer") or beside is found else None
    algorithm = (told or found).word("quant_algo")
    method = (found.word("quant_method") or ("modelopt" if algorithm else "")).lower().replace("_tensors", "-tensors")
    method = {"intel/auto-round": "auto-round", "auto_round": "auto-round"}.get(method, method)
    if not method:
        return None
    if method.startswith("modelopt") or algorithm is not None:
        return _modelopt(told or found, method, algorithm)
    if method == "compressed-tensors":
        return _compressed(found)
    bits, group = _bits(found, method), found.count("group_size", "q_group_size", least=-1)
    name = _NAMES.get(method, method)
    exact = name in ("FP8", "MXFP4", "NVFP4")
    return Quantised(method, bits, name if exact or bits is None else f"{name} {bits}-bit", group or None, None)


def _part(said: Said) -> Said | None:
    return said.part("quantization_config", "compression_config")


def _bits(said: Said, method: str) -> int | None:
    bits = said.count("bits", "w_bit", "nbits")
    if bits is None and method == "bitsandbytes":
        return 4 if said.flag("load_in_4bit") else 8
    return {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4}.get(method) if bits is None else bits


def _modelopt(said: Said, method: str, algorithm: str | None) -> Quantised:
    word = (algorithm or "").upper()
    bits = 4 if "FP4" in word or "W4" in word else 8 if "FP8" in word or "W8" in word else None
    cache = (said.word("kv_cache_quant_algo") or "").upper()
    kv = KvType.FP8_E4M3 if cache.startswith("FP8") else None
    scheme = said.part("kv_cache_scheme")
    name = "NVFP4" if "NVFP4" in word else "FP8" if word.startswith("FP8") else word or "ModelOpt"
    method = "modelopt_fp4" if "NVFP4" in word else method
    return Quantised(method, bits, name, said.count("group_size", least=-1) or None, kv or _scheme(scheme))


def _compressed(said: Said) -> Quantised:
    """Compressed-tensors: the groups say what they hold; of several the narrowest names the checkpoint."""
    found: list[tuple[int, str, int | None]] = []
    groups = said.part("config_groups")
    for group in [] if groups is None else groups.parts():
        weights = group.part("weights")
        bits = None if weights is None else weights.count("num_bits")
        if weights is not None and bits is not None:
            found.append((bits, weights.word("type") or "int", weights.count("group_size", least=-1)))
    kv = _scheme(said.part("kv_cache_scheme"))
    layout = said.word("format") or ""
    if not found:
        return Quantised("compressed-tensors", None, layout or "compressed-tensors", None, kv)
    bits, kind, size = min(found, key=lambda one: one[0])
    fp4 = "NVFP4" if "nvfp4" in layout or size == 16 else "MXFP4"
    name = (f"FP{bits}" if bits != 4 else fp4) if kind == "float" else f"{bits}-bit (compressed-tensors)"
    return Quantised("compressed-tensors", bits, name, size or None, kv)


def _scheme(said: Said | None) -> KvType | None:
    """vLLM takes a `kv_cache_scheme` of 8-bit floats for an order: the cache is FP8 then."""
    if said is None or said.count("num_bits") != 8 or said.word("type") != "float":
        return None
    return KvType.FP8_E4M3

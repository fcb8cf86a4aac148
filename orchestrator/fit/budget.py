"""What engines do when nobody tells them, by version; and how much of a device they will use.

Sources: vLLM's wheels 0.6.6 to 0.33.0 (config/cache.py: gpu_memory_utilization 0.9 up to 0.19.1, 0.92 from 0.20.0;
engine/arg_utils.py `get_batch_defaults`; config.py of 0.6.6:1428 for V0; config/model.py `is_prefix_caching_supported`:
hybrids since 0.26.0); SGLang 0.5.23 (`memory_fit.sglang_pool`); llama.cpp's server (512 tokens a ubatch, four slots
in one cache when -np is not given, since b6900 or so; one slot before).
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.fit.devices import GIB, Device
from orchestrator.fit.rows import Row
from orchestrator.known_shapes import Known
from orchestrator.memory_fit.demand import llama_build, older
from orchestrator.memory_fit.sglang_pool import static_share
from orchestrator.models import Runtime, Shape

PREFIX_IN_HYBRIDS = (0, 26)
UTILISATION_092 = (0, 20)
LONG = 32768
"""V0 turned chunked prefill on by itself above this length."""
CHUNKS_BY_ITSELF = (0, 5, 4)
CHUNK = 2048
FOUR_SLOTS = 6900
"""The build since which llama-server has four slots in one cache by default."""


FLASH_BY_DEFAULT = 6325
"""The build since which llama.cpp uses flash attention unasked (llama.cpp pull 15434, end of August 2025)."""


@dataclass(frozen=True, slots=True)
class Default:
    """A value, and whether the row said it."""

    value: float
    said: bool


def utilisation(row: Row) -> Default:
    """vLLM's gpu_memory_utilization."""
    said = row.launch.get("gpu_memory_utilization")
    if said is not None:
        return Default(said, True)
    return Default(0.9 if older(row.engine_version, UTILISATION_092) else 0.92, False)


def is_v0(row: Row) -> bool:
    """Whether it is vLLM's first engine, which profiled a whole prompt."""
    return older(row.engine_version, (0, 8))


def batched_tokens(row: Row, context: int, device: Device) -> Default:
    """vLLM's max_num_batched_tokens: 2048, from 70 GiB on 8192 (not on A100), from 160 GiB on 16384; V0: the whole
    length up to 32768, 2048 beyond."""
    said = row.launch.get("max_num_batched_tokens")
    if said is not None:
        return Default(said, True)
    if is_v0(row):
        by_itself = context > LONG and not _before_chunks(row.engine_version)
        chunked = row.launch.get("enable_chunked_prefill", by_itself)
        return Default(CHUNK if chunked else max(context, CHUNK), False)
    usable = device.usable or 0
    if usable >= 155 * GIB:
        return Default(16384, False)
    if usable >= 70 * GIB and "a100" not in (row.gpu or "").lower() and not device.unified:
        return Default(8192, False)
    return Default(CHUNK, False)


def _before_chunks(version: str | None) -> bool:
    """Whether it is older than vLLM pull 6666; `V0` alone tells no version."""
    return older(version, CHUNKS_BY_ITSELF) and not older(version, (0, 1))


def sequences(row: Row, device: Device) -> Default:
    """vLLM's max_num_seqs: 256, from 70 GiB on 1024 (not on A100)."""
    said = row.launch.get("max_num_seqs")
    if said is not None:
        return Default(said, True)
    large = (device.usable or 0) >= 70 * GIB and "a100" not in (row.gpu or "").lower()
    return Default(1024 if large and not is_v0(row) else 256, False)


def prefix_caching(row: Row, shape: Shape | None) -> Default:
    """Whether vLLM keeps prefixes: its default, but in hybrids only since 0.26.0."""
    said = row.launch.get("enable_prefix_caching")
    if said is not None:
        return Default(said, True)
    hybrid = shape is not None and shape.linear_layers > 0
    return Default(not (hybrid and older(row.engine_version, PREFIX_IN_HYBRIDS)), False)


FEW_IMAGE_TOKENS = 2048


def profiles_vision(known: Known | None, loaded: bool) -> bool:
    """Whether profiling the tower costs: Qwen's images are 16k tokens, Gemma's a thousand at most."""
    return loaded and known is not None and (known.image_tokens is None or known.image_tokens > FEW_IMAGE_TOKENS)


def vision(row: Row, known: Known | None, no_vision: bool) -> bool:
    """Whether vLLM loads a vision tower: where there is one and nobody says otherwise."""
    if known is None or not known.vision or no_vision or row.launch.get("language_model_only"):
        return False
    limits = row.launch.get("limit_mm_per_prompt")
    if isinstance(limits, dict) and limits and not any(limits.values()):
        return False
    return limits != 0


def slots(row: Row) -> tuple[int, bool, bool]:
    """llama-server's slots, whether they share one cache, and whether that is assumed."""
    told = row.launch.get("np", row.launch.get("n_seq_max"))
    explicit = told if isinstance(told, int) and not isinstance(told, bool) else None
    unified = row.launch.get("kv_unified")
    count = row.parallel or explicit
    if count is None:
        build = llama_build(row.engine_version)
        modern = build is None or build >= FOUR_SLOTS
        return (1, bool(unified), True) if not modern or row.draft is not None else (4, unified is not False, True)
    if unified is not None:
        return count, unified, False
    return count, count == 4 and explicit is None, count > 1


def flash_attention(row: Row, fork: bool) -> bool:
    """llama.cpp's -fa: what the row says; else by build, and on where the cache's values are quantised (it is refused
    without). Its fork is taken as today's."""
    said = row.launch.get("flash_attn")
    if said is not None:
        return bool(said)
    build = None if fork else llama_build(row.engine_version)
    values = (row.kv_dtype or str(row.launch.get("cache_type_v", ""))).lower()
    return build is None or build >= FLASH_BY_DEFAULT or "q" in values


def sglang_share(row: Row, device: Device, ranks: int) -> Default | None:
    """SGLang's mem_fraction_static; None where the card's memory is not known."""
    said = row.launch.get("mem_fraction_static")
    if said is not None:
        return Default(said, True)
    if device.usable is None:
        return None
    chunk = row.launch.get("chunked_prefill_size")
    share = static_share(device.usable, chunk=chunk if chunk and chunk > 0 else None, ranks=ranks)
    return Default(share, False)


def engine_context(row: Row, runtime: Runtime, shape: Shape | None) -> Default | None:
    """Tokens a sequence: what the row says, or what its flags say, or the model's longest (vLLM's and SGLang's
    default); None where none is known."""
    flags = {
        Runtime.VLLM: ("max_model_len",), Runtime.SGLANG: ("context_length", "max_model_len"),
        Runtime.LLAMA_CPP: (),
    }  # fmt: skip
    for key in flags[runtime]:
        if key in row.launch:
            return Default(row.launch[key], True)
    if row.context is not None:
        return Default(row.context, True)
    if runtime is Runtime.LLAMA_CPP:
        total = row.launch.get("n_ctx", row.launch.get("ctx_size"))
        if total is not None:
            count, unified, _ = slots(row)
            return Default(total if unified else max(total // count, 1), True)
    if shape is not None and shape.max_context is not None:
        return Default(shape.max_context, False)
    return None

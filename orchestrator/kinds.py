"""Words that planning, memory and runtimes share: what computes, and what a KV cache's numbers are stored as."""

from __future__ import annotations

from enum import StrEnum


class Backend(StrEnum):
    """What computes; an image's business."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    VULKAN = "vulkan"


class KvType(StrEnum):
    """What a KV cache's numbers are stored as. Which of them a runtime has is its adapter's business.

    `fp8` leaves the choice between e4m3 and e5m2 to the engine. The `_per_token_head` types are vLLM's,
    with one fp32 scale a head and token; those from `q8_0` on are llama.cpp's block types.
    """

    F32 = "f32"
    F16 = "f16"
    BF16 = "bfloat16"
    FP8 = "fp8"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"
    INT8 = "int8_per_token_head"
    INT4 = "int4_per_token_head"
    Q8_0 = "q8_0"
    Q5_1 = "q5_1"
    Q5_0 = "q5_0"
    Q4_1 = "q4_1"
    Q4_0 = "q4_0"
    IQ4_NL = "iq4_nl"

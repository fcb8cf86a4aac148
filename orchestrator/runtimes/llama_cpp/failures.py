"""llama.cpp's dying words, and those of one that lives and does not draft. In order of how much they tell."""

from __future__ import annotations

from orchestrator.runtimes.base import signature

FAILURES = (
    signature(
        r"doesn't contain MTP layers",
        "no_mtp_head",
        "the model has no MTP head: use another speculation method or none",
    ),
    signature(
        r"get_sub_batch: failed to add token",
        "drafter_overrun",
        "too many slots for DFlash in this build: lower parallel to 2",
        retryable=True,
    ),
    signature(
        r"failed to initialize speculative decoding context|draft(er)? (model )?vocab.{0,40}(mismatch|must match|"
        r"not compatible)|target and draft vocabs are not compatible|"
        r"speculative decoding not supported by this context|draft model is not eagle3|"
        r"DSpark draft has no confidence head|failed to process speculative batch",
        "speculation_off",
        "the drafter does not belong to this model: remove it, or use the drafter made for it",
    ),
    signature(
        r"SPLIT_MODE_TENSOR (not implemented|requires|needs)|SPLIT_MODE_TENSOR and KV cache quantization not",
        "split_unsupported",
        "this model, or this KV type, cannot be split by tensors over several GPUs: give it one GPU",
    ),
    signature(
        r"quantized V cache (was requested, but this )?requires flash.?attn|"
        r"quantized V cache was requested, but this requires Flash Attention|"
        r"[KV] cache type \w+ with block size \d+ does not divide",
        "kv_type",
        "this KV type needs flash attention, or another head width: use f16",
    ),
    signature(
        r"(CUDA|HIP|ROCm|Vulkan|ggml_vk)[^\n]{0,120}(out of (device )?memory|ErrorOutOfDeviceMemory)|"
        r"cudaMalloc failed|hipMalloc failed|unable to allocate \w+ buffer|failed to allocate compute \w+ buffers|"
        r"failed to allocate (buffer|compute|KV|memory)|std::bad_alloc|ggml_aligned_malloc: insufficient memory",
        "out_of_memory",
        "lower context or parallel, choose a smaller variant, or free memory on the device",
    ),
    signature(
        r"invalid device: ",
        "device_invisible",
        "the container sees no such GPU: `outrider doctor` says what is wrong with the driver or the device nodes",
    ),
    signature(
        r"tensor '[^']*' data is not within the file bounds|model is corrupted or incomplete",
        "model_truncated",
        "the model file is cut off: fetch it again",
    ),
    signature(
        r"unknown model architecture|unsupported model architecture",
        "architecture_unknown",
        "this build does not know the model's architecture: use an image of a newer version",
    ),
    signature(
        r"invalid magic|failed to read (magic|header)|gguf_init_from_file|error loading model|failed to load model|"
        r"failed to load draft model|failed to create MTP context",
        "model_unreadable",
        "the model file is missing, damaged or of an unknown architecture: `outrider models` tells which",
    ),
    signature(
        r"failed to create_?\s?context",
        "context_failed",
        "the engine could not set up its context: the line before says why; f16 KV and a smaller context are safest",
    ),
    signature(
        r"error: invalid argument|unrecognized arguments?|unknown (argument|speculative|value for --spec)|"
        r"error while handling (argument|environment variable)|argument has been removed|invalid speculative",
        "bad_flag",
        "the image's version does not know a flag of the plan: pin another image version",
    ),
    signature(
        r"couldn't bind|address already in use|failed to (bind|listen)|unable to bind",
        "address_in_use",
        "something holds the engine's socket or port: it is given another one at the next start",
        retryable=True,
    ),
    signature(
        r"device lost|VK_ERROR_DEVICE_LOST|illegal memory access|hipErrorIllegalAddress|HSA_STATUS_ERROR",
        "device_fault",
        "the GPU faulted under the engine: start again, without speculation if it happens twice",
        retryable=True,
    ),
    signature(
        r"Illegal instruction|SIGILL|needs a CPU with",  # the last is what the embedded engine says
        "cpu_unsupported",
        "this build needs CPU features that the host lacks: pin another image, or use another host",
    ),
    signature(
        r"GGML_ASSERT|ggml_abort",
        "engine_assert",
        "the engine gave up in an assertion; with a drafter, its width is probably not the target's",
    ),
)
"""An assertion or a failed load often follows its own cause, so they come last."""

"""vLLM's dying words, and what they mean.

Each is a line that vLLM 0.33.0 writes (its source names it), or one that an issue quotes. The server's process ends
with status 0 after some of them (vllm#53726): that an engine ended at all is the fault, whatever it says. Pure.
"""

from __future__ import annotations

from orchestrator.runtimes.base import signature
from orchestrator.runtimes.vllm_attention import AMPERE_PAIRS

_LESS = "lower context or parallel, choose a smaller variant, or drop the drafter"
FAILURES = (
    signature(r"No available memory for the cache blocks", "no_kv_memory", _LESS),
    signature(
        r"KV cache is needed, which is larger than the available|"
        r"larger than the maximum number of tokens that can be stored in KV cache",
        "kv_too_small",
        "lower context or parallel: the pool does not hold one request of full length",
    ),
    signature(
        r"Free memory on device.{0,120}is less than desired",
        "device_occupied",
        "something else holds memory on this device: stop it, or lower what this model takes",
        retryable=True,
    ),
    signature(
        r"(CUDA|HIP|torch)[^\n]{0,60}out of memory|OutOfMemoryError|cudaErrorMemoryAllocation",
        "out_of_memory",
        _LESS,
    ),
    signature(
        r"illegal memory access|cudaErrorIllegalAddress|hipErrorIllegalAddress|device-side assert|Memory access fault|"
        r"HSA_STATUS_ERROR|GPU Hang|CUDA error: unspecified launch failure",
        "device_fault",
        "the GPU faulted under the engine: start again, without speculation if it happens twice",
        retryable=True,
    ),
    signature(
        r"NCCL error|nccl(System|UnhandledCuda|Internal|Remote)Error",
        "collective",
        "the GPUs of one engine did not reach each other: give the container more shared memory, or use one GPU",
        retryable=True,
    ),
    signature(
        r"Bus error|insufficient shared memory|No space left on device.{0,80}(shm|psm_)|/dev/shm.{0,80}No space",
        "shared_memory",
        "the container's shared memory is too small: raise the image's `shm`",
    ),
    signature(
        r"Synthetic acceptance not supported|error[:,] Model Runner V[12] does not|"
        r"Adaptive verification (requires|is not)|is only supported by (DSpark|XPress)|"
        r"Unsupported speculative method|speculative_config.{0,200}(extra_forbidden|Extra inputs are not permitted|"
        r"validation error)|num_speculative_tokens.{0,80}(must|required)|not have enough slots to schedule a token",
        "bad_speculation",
        "this version of vLLM does not take the plan's speculation: another method, or another image version",
    ),
    signature(
        r"same vocabulary size|There is no module or parameter named|target_hidden_size must match|"
        r"mat1 and mat2 shapes cannot be multiplied|combine_hidden_states",
        "drafter_mismatch",
        "the drafter was made for another model: choose its own drafter, or no speculation",
    ),
    signature(
        r"trust_remote_code=True|--trust-remote-code|contains custom code which must be executed",
        "needs_remote_code",
        "the model brings Python code of its own: set `trust_remote_code` and a commit as revision for the variant",
    ),
    signature(
        r"quantization method \S{1,60} is not supported|is not supported for quantization method|Minimum capability|"
        r"Unknown quantization method",
        "quantisation_unsupported",
        "this version of vLLM does not run the weights' quantisation on this GPU: another variant, or another image",
    ),
    signature(
        r"User-specified max_model_len \([^\n]{0,80}is greater than the derived",
        "context_too_long",
        "the model was trained for a shorter context: lower it",
    ),
    signature(
        r"No valid attention backend|Selected backend .{0,80} is not valid|not supported by .{0,60}attention|"
        r"fp8.{0,80}(bfloat16|not supported)|kv_cache_dtype=.{0,40}is incompatible|"
        r"--kv-cache-dtype .{0,40}is not supported",
        "attention_backend",
        f"this KV type and attention backend do not go together; on Ampere: {AMPERE_PAIRS}",
    ),
    signature(
        r"GPU archs? \S+ invalid|no kernel image is available|not supported on this (GPU|platform)",
        "gpu_unsupported",
        "the image was not built for this GPU: choose the image of its family",
    ),
    signature(
        r"driver.{0,60}(too old|insufficient)|CUDA driver version is insufficient",
        "driver_too_old",
        "update the GPU's driver, or take an older image",
    ),
    signature(
        r"unrecognized arguments|error: argument |invalid choice:|no such option",
        "bad_flag",
        "the image's version does not know a flag of the plan: pin another image version",
    ),
    signature(
        r"Model architectures? .{0,120}(not supported|failed to be inspected)",
        "model_unsupported",
        "this version of vLLM does not know the model's architecture: a newer image, or another runtime",
    ),
    signature(
        r"SafetensorError|HeaderTooLarge|MetadataIncompleteBuffer|Error while deserializing header",
        "model_truncated",
        "a weights file is cut off or damaged: fetch it again",
    ),
    signature(
        r"does not appear to have a file named|Cannot find any model weights|Invalid repository ID or local directory|"
        r"LocalEntryNotFoundError|OfflineModeIsEnabled",
        "model_unreadable",
        "the model's folder is incomplete, the engine's log names the file: fetch the model again",
    ),
    signature(
        r"address already in use|could not bind",
        "address_in_use",
        "something holds the engine's socket or port: it is given another one at the next start",
        retryable=True,
    ),
    signature(
        r"EngineDeadError|Engine core initialization failed|EngineCore.{0,60}(died|failed)",
        "engine_died",
        "the engine's core ended; the lines above it say why",
        retryable=True,
    ),
)
"""In order of how much they tell; the core's death is reported after its cause. A fallback from
AWQMoeMarlin to WNA16 is only a warning (kyuz0-vllm#72) and matches none."""

"""What SGLang's log says when it does not come up, or dies. Texts of 0.5.23."""

from __future__ import annotations

from orchestrator.runtimes.base import signature

_LESS = "lower context or parallel, choose a smaller variant, or drop the drafter"
FAILURES = (
    signature(r"Not enough memory\. Please try to increase --mem-fraction-static", "no_kv_memory", _LESS),
    signature(
        r"memory capacity is unbalanced",
        "device_occupied",
        "something else holds memory on one of the devices: stop it, or give the engine other ones",
        retryable=True,
    ),
    signature(
        r"(CUDA|torch)[^\n]{0,60}out of memory|OutOfMemoryError|cudaErrorMemoryAllocation",
        "out_of_memory",
        _LESS,
    ),
    signature(
        r"illegal memory access|cudaErrorIllegalAddress|device-side assert",
        "device_fault",
        "the GPU faulted under the engine: start again, without speculation if it happens twice",
        retryable=True,
    ),
    signature(
        r"FlashAttention v3 Backend requires|TRTLLM MHA backend|FlashAttention3 only supports|"
        r"attention.backend.{0,80}(requires|not supported|only support)",
        "attention_backend",
        "this attention backend does not go with the GPU or the KV type: flashinfer and triton run on all of them",
    ),
    signature(
        r"(DFLASH|DSpark|EAGLE3?|STANDALONE|Ngram|speculative)[^\n]{0,120}(requires|only supports|must (be|equal|match)"
        r"|not supported)",
        "bad_speculation",
        "this version of SGLang does not take the plan's speculation: another method, or another image version",
    ),
    signature(
        r"Capture cuda graph failed",
        "graph_capture",
        "CUDA graphs do not fit or do not work here: plan it without them (`eager`), or with less memory in the pool",
    ),
    signature(
        r"no kernel image is available|not compiled with|unsupported (gpu|architecture)",
        "gpu_unsupported",
        "the image was not built for this GPU: choose the image of its family",
    ),
    signature(
        r"driver.{0,60}(too old|insufficient)|CUDA driver version is insufficient",
        "driver_too_old",
        "update the GPU's driver, or take an older image",
    ),
    signature(
        r"unrecognized arguments|ambiguous option|error: argument |invalid choice:",
        "bad_flag",
        "the image's version does not know a flag of the plan: pin another image version",
    ),
    signature(
        r"Model architectures .{0,120}not supported",
        "model_unsupported",
        "this version of SGLang does not know the model's architecture: a newer image, or another runtime",
    ),
    signature(
        r"is greater than the derived context_length",
        "context_too_long",
        "the model was not made for this context: lower it",
    ),
    signature(
        r"SafetensorError|HeaderTooLarge|MetadataIncompleteBuffer|Error while deserializing header",
        "model_truncated",
        "a weights file is cut off or damaged: fetch it again",
    ),
    signature(
        r"does not appear to have a file named|Cannot find any model weights|LocalEntryNotFoundError|"
        r"OfflineModeIsEnabled|No such file or directory: '/models",
        "model_unreadable",
        "the model's folder is incomplete, the engine's log names the file: fetch the model again",
    ),
    signature(
        r"address already in use|could not bind|port \d+ is (not available|already in use)",
        "address_in_use",
        "something holds the engine's port: it is given another one at the next start",
        retryable=True,
    ),
    signature(
        r"watchdog timeout|Health check failed\. Server couldn't get a response",
        "engine_hung",
        "the scheduler stopped answering: start again, without speculation if it happens twice",
        retryable=True,
    ),
    signature(
        r"(Scheduler|TokenizerManager|DetokenizerManager) hit an exception|"
        r"Received sigquit from a child process",
        "engine_died",
        "one of the engine's processes ended; the lines above it say why",
        retryable=True,
    ),
)
"""In order of how much they tell; the death of a process is reported after its cause."""

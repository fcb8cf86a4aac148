"""vLLM's dying words are recognised, and its harmless ones are not taken for them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.models import Runtime
from orchestrator.runtimes import adapter, diagnose
from tests.models import hf
from tests.runtimes.vllm.running import running
from tests.runtimes.vllm.test_launches import LAUNCHES, PLAIN, placed
from tests.runtimes.vllm.venv import ensure

VLLM = adapter(Runtime.VLLM)

QUOTED = [
    # vLLM 0.33.0 v1/core/kv_cache_planning.py:58 and :80, and the older wording (0.27.1 v1/core/kv_cache_utils.py)
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "no_kv_memory"),
    ("ValueError: To serve at least one request with the models's max seq len (200000), 3.31 GiB KV cache is "
     "needed, which is larger than the available KV cache memory (2.19 GiB). Based on", "kv_too_small"),
    ("ValueError: The model's max seq len (262144) is larger than the maximum number of tokens that can be stored in "
     "KV cache (69758).", "kv_too_small"),
    # v1/worker/utils.py:766
    ("ValueError: Free memory on device cuda:0 (20.1/23.57 GiB) on startup is less than desired GPU memory "
     "utilization (0.92, 21.68 GiB). Decrease", "device_occupied"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 has", "out_of_memory"),
    ("torch.AcceleratorError: HIP error: out of memory", "out_of_memory"),
    # vllm#40756, z-lab/dflash#146, vllm#53726, recipes#926
    ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered\nEngineCore encountered an issue. "
     "vllm.v1.engine.exceptions.EngineDeadError: EngineCore died", "device_fault"),
    ("RuntimeError: cudaErrorIllegalAddress: an illegal memory access", "device_fault"),
    ("Memory access fault by GPU node-1 on address 0x7f. Reason: Page not present", "device_fault"),
    ("HW Exception by GPU node-1 reason :GPU Hang", "device_fault"),
    ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690", "collective"),
    ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed", "collective"),
    ("RuntimeError: DataLoader worker (pid 1) is killed by signal: Bus error. It is possible that dataloader's workers "
     "are out of shared memory.", "shared_memory"),
    # config/speculative.py:1499, pydantic on an unknown key, config/vllm.py:2373, :3328
    ("NotImplementedError: Unsupported speculative method: 'mtp'\nEngine core initialization failed.",
     "bad_speculation"),
    ("pydantic_core.ValidationError: 1 validation error for SpeculativeConfig disable_by_batch_size speculative_config "
     "Unexpected keyword argument: Extra inputs are not permitted", "bad_speculation"),
    ("ValueError: VllmConfig does not have enough slots to schedule a token and support the speculative decoding",
     "bad_speculation"),
    ("Value error, Model Runner V1 does not support: dspark speculative decoding", "bad_speculation"),
    ("NotImplementedError: Synthetic acceptance not supported with CPU sampling", "bad_speculation"),
    ("ValueError: Adaptive verification requires full CUDA graphs. Use cudagraph mode FULL", "bad_speculation"),
    # config/speculative.py:2050
    ("ValueError: Target and draft model should have the same vocabulary size. Target model vocab_size=248320. Draft "
     "model vocab_size=151936.", "drafter_mismatch"),
    # transformers_utils/config.py:461
    ("RuntimeError: Failed to load the model config. If the model is a custom model not yet available in the "
     "HuggingFace transformers library, consider setting `trust_remote_code=True` in LLM", "needs_remote_code"),
    # config/model.py:1467
    ("ValueError: Unknown quantization method: iu4. Must be one of", "quantisation_unsupported"),
    ("ValueError: The quantization method modelopt_fp4 is not supported for the current GPU. Minimum capability: 100. "
     "Current capability: 86.", "quantisation_unsupported"),
    # config/vllm.py:940, config/model.py:2663
    ("ValueError: torch.bfloat16 is not supported for quantization method awq. Supported dtypes: [torch.float16]",
     "quantisation_unsupported"),
    ("Value error, User-specified max_model_len (999999) is greater than the derived max_model_len "
     "(max_position_embeddings=8192 or model_max_length=None in model's config.json).", "context_too_long"),
    # platforms/cuda.py:439, :473; v1/attention/backends/triton_attn.py:523; config/vllm.py:1506; platforms/cpu.py:194
    ("ValueError: Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. Reason: "
     "['kv_cache_dtype not supported']", "attention_backend"),
    ("ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(", "attention_backend"),
    ("ValueError: FP8 KV cache is not supported by the Triton attention backend on NVIDIA GeForce RTX 3090 (compute "
     "capability 8.6); native FP8 (fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype bfloat16.",
     "attention_backend"),
    ('ValueError: kv_cache_dtype="float16" is incompatible with dtype="bfloat16". Please set', "attention_backend"),
    ("ValueError: --kv-cache-dtype fp8 is not supported by the CPU attention backend on this host.",
     "attention_backend"),
    ("GPU archs gfx1151 invalid", "gpu_unsupported"),  # kyuz0/amd-strix-halo-vllm-toolboxes#73
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 12040).", "driver_too_old"),
    ("vllm serve: error: unrecognized arguments: --swap-space 4", "bad_flag"),
    ("vllm serve: error: argument --kv-cache-dtype: invalid choice: 'q8_0'", "bad_flag"),
    ("ValueError: Model architectures ['BailingMoeV3ForCausalLM'] are not supported for now.", "model_unsupported"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", "model_truncated"),
    ("OSError: /models/target does not appear to have a file named config.json.", "model_unreadable"),
    ("RuntimeError: Cannot find any model weights with `/models/target`", "model_unreadable"),
    ("OSError: [Errno 98] Address already in use", "address_in_use"),
    ("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}", "engine_died"),
]  # fmt: skip
HARMLESS = [
    "WARNING AWQMoeMarlin not supported, falling back to WNA16",  # kyuz0/amd-strix-halo-vllm-toolboxes#72
    "WARNING 11-30 [vllm.py:725] Model Runner V2 requires Triton; using the V1 model runner instead.",
    "WARNING [vllm.py] Model Runner V2 does not yet support suffix; using the V1 model runner instead.",
    "INFO Application startup complete.",
    "INFO [gpu_worker.py] Available KV cache memory: 5.2 GiB",
    "INFO [parallel_state.py] vLLM is using nccl==2.27.5",
    "WARNING [vllm.py] max_num_scheduled_tokens is set to 1024 based on the speculative decoding settings. This may "
    "lead to suboptimal performance.",
    "WARNING [cpu_worker.py] Speculative decoding on CPU without Intel OpenMP in LD_PRELOAD will cause significant "
    "performance loss.",
    "[transformers] `rope_parameters`'s factor field must be a float or int >= 1, got 0.32",
    "WARNING method `qwen3_5_mtp` is deprecated and replaced with mtp.",
    "WARNING [config.py] awq quantization is not fully optimized yet. The speed can be slower.",
]


@pytest.mark.parametrize(("log", "code"), QUOTED)
def test_dying_words(log: str, code: str) -> None:
    found = diagnose(log.splitlines(), VLLM.failures)
    assert found is not None
    assert found.code == code


def test_every_signature_is_tried() -> None:
    assert {signature.code for signature in VLLM.failures} == {code for _, code in QUOTED}


def test_harmless_words() -> None:
    assert [line for line in HARMLESS if diagnose([line], VLLM.failures) is not None] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_failures(tmp_path: Path) -> None:
    """A pool that holds no whole request, weights that are cut off, and another model's drafter: three real starts."""
    venv, models, caches = ensure(), tmp_path / "hf", tmp_path / "caches"
    hf.generate(models)
    caches.mkdir()
    plain = placed(PLAIN, models)
    cut = models / "cut"
    shutil.copytree(models / hf.TARGET, cut)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200_000])
    for request, codes in (
        (replace(plain, kv_pool=1 << 16), {"kv_too_small", "no_kv_memory"}),
        (replace(plain, model=str(cut)), {"model_truncated"}),
        (replace(placed(LAUNCHES["mtp"].request, models), model=plain.model), {"bad_speculation"}),
    ):
        with pytest.raises(AssertionError, match="vLLM ended with") as ended, running(venv, request, caches):
            raise NotImplementedError  # it must not come up
        found = diagnose(str(ended.value).splitlines(), VLLM.failures)
        assert found is not None, str(ended.value)
        assert found.code in codes, str(ended.value)

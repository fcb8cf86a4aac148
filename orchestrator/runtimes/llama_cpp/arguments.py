"""From a launch to llama-server's command line: only what the build of the image knows. Pure.

Sources: common/arg.cpp and tools/server of b11434, and what `flags.toml` says of other builds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.kinds import Backend, KvType
from orchestrator.plan import KEY, SOCKET, Method
from orchestrator.runtimes.base import OFFLINE, LaunchRequest
from orchestrator.runtimes.llama_cpp.builds import build_of, knows

SPEC_TYPE: Mapping[Method, str] = {
    Method.DRAFT: "draft-simple",
    Method.EAGLE3: "draft-eagle3",
    Method.MTP: "draft-mtp",
    Method.DFLASH: "draft-dflash",
    Method.DSPARK: "draft-dspark",
}
"""`-md` alone is not enough: its type is then inferred for some drafters, and for others nothing is drafted."""

KV_TYPES: Mapping[KvType, str] = {
    KvType.F32: "f32",
    KvType.F16: "f16",
    KvType.BF16: "bf16",
    **{kv: kv.value for kv in (KvType.Q8_0, KvType.Q5_1, KvType.Q5_0, KvType.Q4_1, KvType.Q4_0, KvType.IQ4_NL)},
}
"""What -ctk and -ctv take (common/arg.cpp `kv_cache_types`, the same in all builds read)."""
QUANTISED = frozenset(KV_TYPES) - {KvType.F32, KvType.F16, KvType.BF16}

BATCH = 2048
"""llama.cpp's own -b: the most tokens of one llama_decode, which -ub cuts into pieces."""

DEVICE_NAMES: Mapping[Backend, str] = {Backend.CUDA: "CUDA", Backend.ROCM: "ROCm", Backend.VULKAN: "Vulkan"}
"""ggml-cuda.h:11-17 `GGML_CUDA_NAME`, ggml-vulkan.cpp `GGML_VK_NAME`; a number follows, from 0 in each container."""

TENSOR_SPLIT_KV = 10793
"""The first build read that splits a quantised KV cache by tensors; b9294 refuses it (llama-context.cpp:3407)."""


def argv(request: LaunchRequest) -> list[str]:
    """The words after the image's entrypoint. -c is the total over slots, and always said: without it a model's
    whole trained context is taken, which hung a 128 GB machine with Ling (halo-box/strix-llama.cpp#28)."""
    where = ["--host", SOCKET] if request.port is None else ["--host", "0.0.0.0", "--port", request.port]  # noqa: S104 - in the container
    words = [*request.prefix, "-m", request.model, "--alias", request.names[0], *where]
    words += ["-c", str(request.context * request.parallel), "-np", str(request.parallel)]
    if request.threads is not None:
        words += ["-t", str(request.threads)]
    words += [*_devices(request), *_cache(request), *_loading(request)]
    words += ["--metrics", "--slots", "--jinja", "--no-webui", *_speculation(request)]
    return words


def env(request: LaunchRequest) -> dict[str, str]:
    """The environment. The key comes by it, for argv is seen by every `ps`. Ours wins over what was settled."""
    return {**request.settings.env, "LLAMA_API_KEY": KEY, **OFFLINE}


def flash_attention(request: LaunchRequest) -> bool | None:
    """What -fa must say; None leaves it to the engine. A quantised V cache needs it."""
    said = request.settings.flash_attention
    return True if said is None and request.kv in QUANTISED else said


def split_mode(request: LaunchRequest) -> str | None:
    """How several devices share the model. By tensors only where that was measured and is implemented: CUDA,
    no latent attention (src/llama-arch.cpp `llm_arch_supports_sm_tensor` leaves bailingmoe3, deepseek2 and their
    like out), flash attention not off (src/llama-context.cpp:3824). Else by layers."""
    if request.tensor_parallel < 2:
        return None
    build = build_of(request.version)
    quantised = request.kv in QUANTISED and (build is None or build < TENSOR_SPLIT_KV)
    tensor = request.backend is Backend.CUDA and not request.mla and flash_attention(request) is not False
    return "tensor" if tensor and not quantised else "layer"


def _devices(request: LaunchRequest) -> Iterator[str]:
    """Naming the devices makes a GPU that the container does not see an error; unnamed, the model would quietly
    run on the CPU. All layers go there, and nothing is adjusted to what happens to be free."""
    if request.backend is Backend.CPU:
        return
    name = DEVICE_NAMES[request.backend]
    yield from ("--device", ",".join(f"{name}{number}" for number in range(request.tensor_parallel)))
    yield from ("-ngl", "999", "--fit", "off")
    mode = split_mode(request)
    if mode is not None:
        yield from ("--split-mode", mode)


def _cache(request: LaunchRequest) -> Iterator[str]:
    if request.kv is not KvType.F16:
        yield from ("-ctk", KV_TYPES[request.kv], "-ctv", KV_TYPES[request.kv])
    attention = flash_attention(request)
    if attention is not None:
        yield from ("-fa", "on" if attention else "off")
    batch = request.settings.batch or request.batch
    if batch is not None:
        yield from ("-ub", str(batch))
        if batch > BATCH:
            yield from ("-b", str(batch))
    if request.prompt_cache is not None:
        yield from ("--cache-ram", str(request.prompt_cache >> 20))
    if request.settings.prefix_caching is False:
        yield "--no-cache-prompt"


def _loading(request: LaunchRequest) -> Iterator[str]:
    """Whether the file is mapped, in the words of the build."""
    mmap = request.settings.mmap
    if mmap is None:
        return
    build = build_of(request.version)
    if knows(build, "--load-mode"):
        yield from ("--load-mode", "mmap" if mmap else "none")
    elif not mmap and knows(build, "--no-mmap"):
        yield "--no-mmap"


def _speculation(request: LaunchRequest) -> Iterator[str]:
    """Left out altogether for `none`: `--spec-draft-n-max 0` would still allocate the drafter."""
    if request.method is Method.NONE:
        return
    if request.method is Method.NGRAM:
        yield from _ngram(request)
        return
    yield from ("--spec-type", SPEC_TYPE[request.method])
    if request.drafter is not None:
        yield from ("-md", request.drafter)
    yield from ("--spec-draft-n-max", str(request.draft_tokens))
    if request.settings.p_min is not None:
        yield from ("--spec-draft-p-min", f"{request.settings.p_min:g}")
    kv = request.settings.draft_kv
    if kv is not None:
        yield from ("--spec-draft-type-k", KV_TYPES[kv], "--spec-draft-type-v", KV_TYPES[kv])


def _ngram(request: LaunchRequest) -> Iterator[str]:
    """`mod` and `simple`. `map-k` and `map-k4v` drafted the same as `simple` wherever they were tried, and
    `ngram-cache` nothing in thousands of tokens; so they are not offered."""
    ngram = request.ngram
    match = max(ngram.match, request.settings.ngram_least or 0)
    if ngram.kind == "simple":
        sizes = ["--spec-ngram-simple-size-n", str(match), "--spec-ngram-simple-size-m", str(ngram.longest)]
        yield from ("--spec-type", "ngram-simple", *sizes)
        return
    bounds = ["--spec-ngram-mod-n-min", str(min(48, ngram.longest)), "--spec-ngram-mod-n-max", str(ngram.longest)]
    yield from ("--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", str(match), *bounds)

"""`vllm serve` and its older forms. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.importing import speculation
from orchestrator.importing.recipe import Recipe, Said, options, whole
from orchestrator.kinds import KvType
from orchestrator.models import Format, Runtime

NEWEST = "0.33.0"
POOL = "the KV pool is given in bytes, from the memory that is free when the engine starts"
_RATIO = "a share of the whole device hides what does not fit until it fails; on unified memory it starves the host"
_KV = {"auto": None, "bfloat16": KvType.BF16, "float16": KvType.F16, "half": KvType.F16}
_ARITY = dict.fromkeys(
    ("--trust-remote-code", "--enforce-eager", "--enable-prefix-caching", "--no-enable-prefix-caching",
     "--enable-chunked-prefill", "--no-enable-chunked-prefill", "--language-model-only", "--enable-auto-tool-choice",
     "--async-scheduling", "--no-async-scheduling", "--disable-log-requests", "--disable-log-stats",
     "--enable-log-requests", "--enable-server-load-tracking", "--enable-sleep-mode", "--enable-expert-parallel",
     "--enable-lora", "--skip-mm-profiling", "--disable-custom-all-reduce", "--headless",
     "--no-enable-flashinfer-autotune", "--no-use-tqdm-on-load"), 0,
) | {"--served-model-name": -1}  # fmt: skip
_SHORT = {
    "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size",
    "-q": "--quantization", "-sc": "--speculative-config", "-O": "--compilation-config",
    "-cc": "--compilation-config", "-ac": "--attention-config",
}  # fmt: skip
_OURS = {
    "--dtype": "the planner says it where a drafter needs it",
    "--quantization": "it is read from the checkpoint",
    "--load-format": "it is read from the files",
    "--tokenizer": "it is the model's own",
    "--download-dir": "weights lie in the store: `outrider model pull` fetches them",
    "--enforce-eager": "CUDA graphs are the planner's choice, by image and known faults",
    "--compilation-config": "CUDA graphs are the planner's choice, by image and known faults",
    "--enable-prefix-caching": "the planner decides: models with recurrent state need it off in older versions",
    "--no-enable-prefix-caching": "the planner decides: models with recurrent state need it off in older versions",
    "--enable-chunked-prefill": "it is vLLM's default",
    "--mamba-cache-mode": "the planner decides, by version",
    "--mamba-ssm-cache-dtype": "the planner decides, by what fits",
    "--language-model-only": "the planner decides, by what fits",
    "--moe-backend": "the planner decides, by known faults",
    "--block-size": "vLLM chooses it",
    "--async-scheduling": "it is vLLM's default",
    "--no-async-scheduling": "the planner decides, by known faults",
    "--disable-log-requests": "logs are Outrider's",
    "--enable-log-requests": "logs are Outrider's",
    "--disable-log-stats": "the engine's counters are how Outrider sees that tokens move",
    "--uvicorn-log-level": "logs are Outrider's",
    "--allowed-origins": "clients talk to the gateway",
    "--root-path": "clients talk to the gateway",
    "--ssl-keyfile": "clients talk to the gateway",
    "--ssl-certfile": "clients talk to the gateway",
}
_KNOWN = frozenset({
    "--tool-call-parser", "--enable-auto-tool-choice", "--reasoning-parser", "--chat-template", "--generation-config",
    "--override-generation-config", "--limit-mm-per-prompt", "--mm-encoder-attn-backend", "--hf-overrides",
    "--rope-scaling", "--seed", "--cpu-offload-gb", "--kv-offloading-size", "--kv-offloading-backend",
    "--kv-transfer-config", "--enable-lora", "--max-loras", "--max-lora-rank", "--lora-modules", "--enable-sleep-mode",
    "--scheduling-policy", "--data-parallel-size", "--pipeline-parallel-size", "--enable-expert-parallel",
    "--distributed-executor-backend", "--max-num-active-seqs", "--cudagraph-capture-sizes",
    "--max-cudagraph-capture-size",
    "--attention-config", "--code-revision", "--tokenizer-mode", "--config-format", "--served-model-name",
    "--per-request-spec-decode-metrics", "--enable-server-load-tracking", "--disable-custom-all-reduce", "--headless",
    "--skip-mm-profiling", "--chat-template-content-format", "--default-chat-template-kwargs", "--middleware",
})  # fmt: skip


def read(words: Sequence[str]) -> Recipe:
    """The words after `vllm serve` (or an image whose entrypoint is the server)."""
    recipe = Recipe(Runtime.VLLM, format=Format.SAFETENSORS)
    for said in options(words, {_canonical(k): v for k, v in _ARITY.items()} | _ARITY):
        if isinstance(said, str):
            _positional(recipe, said)
        else:
            _option(recipe, Said(_canonical(said.flag), said.values), said)
    return recipe


def _canonical(flag: str) -> str:
    name = _SHORT.get(flag, flag)
    head, dot, tail = name.partition(".")
    return head.replace("_", "-") + dot + tail


def _positional(recipe: Recipe, word: str) -> None:
    if recipe.model is None:
        recipe.model = word
    else:
        recipe.change("unknown_flag", word, None, "the word belongs to no option")


def _option(recipe: Recipe, said: Said, raw: Said) -> None:
    flag, value = said.flag, said.value
    if flag.startswith("--speculative-config."):
        speculation.keys(recipe, {flag.partition(".")[2]: value})
    elif flag == "--speculative-config":
        speculation.config(recipe, value or "")
    elif flag in speculation.LEGACY:
        speculation.legacy(recipe, said)
    elif flag in _COUNTS:
        setattr(recipe, _COUNTS[flag], whole(recipe, said))
    elif not _identity(recipe, said) and not _memory(recipe, said) and not _serving(recipe, said):
        if flag in _OURS:
            recipe.ours(raw.text, _OURS[flag])
        elif flag in _KNOWN:
            recipe.not_carried(raw.text)
        else:
            recipe.unknown(raw.text, "vLLM", NEWEST)


_COUNTS = {
    "--max-model-len": "context",
    "--max-num-seqs": "parallel",
    "--tensor-parallel-size": "tensor_parallel",
    "--max-num-batched-tokens": "batch",
}


def _identity(recipe: Recipe, said: Said) -> bool:
    match said.flag:
        case "--model":
            recipe.model = said.value
        case "--revision":
            recipe.revision = said.value
        case "--served-model-name":
            recipe.aliases += [name for value in said.values for name in value.split(",")]
        case "--trust-remote-code":
            recipe.trust_remote_code = True
        case _:
            return False
    return True


def _memory(recipe: Recipe, said: Said) -> bool:
    match said.flag:
        case "--gpu-memory-utilization":
            recipe.change(
                "memory_ratio", said.text, "--kv-cache-memory-bytes", f"{POOL}: {_RATIO}", "vLLM, UMA reports"
            )
        case "--kv-cache-memory-bytes" | "--kv-cache-memory" | "--num-gpu-blocks-override":
            recipe.change("memory_pool", said.text, "--kv-cache-memory-bytes", POOL, "Outrider")
        case "--swap-space":
            why = "the flag is gone from vLLM (--kv-offloading-size took its place), and no offloading is needed here"
            recipe.change("swap_space_gone", said.text, None, why, "vLLM 0.33.0 config/cache.py:383")
        case "--kv-cache-dtype":
            _kv(recipe, said)
        case "--attention-backend":
            recipe.attention_backend = (said.value or "").upper().replace("-", "_") or None
        case _:
            return False
    return True


def _kv(recipe: Recipe, said: Said) -> None:
    name = said.value or ""
    if name in _KV:
        recipe.kv = _KV[name]
        return
    try:
        recipe.kv = KvType(name)
    except ValueError:
        recipe.refuse("kv_type", f"{said.text}: Outrider knows no KV type {name!r}")


def _serving(recipe: Recipe, said: Said) -> bool:
    match said.flag:
        case "--host" | "--port" | "--uds":
            why = "the engine serves a unix socket of its own, and clients talk to the gateway"
            recipe.change("host_port", said.text, "http://127.0.0.1:8080/v1", why, "Outrider")
        case "--api-key":
            recipe.secret(said.flag)
        case "--hf-token":
            recipe.secret(said.flag)
        case _:
            return False
    return True

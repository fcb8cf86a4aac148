"""`vllm serve` and its older forms. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from orchestrator.importing import speculation
from orchestrator.importing.known import Known, known
from orchestrator.importing.recipe import Recipe, Said, is_flag, options, whole
from orchestrator.kinds import KvType
from orchestrator.models import Format, Runtime

NEWEST = "0.33.0"
POOL = "the KV pool is given in bytes, from the memory that is free when the engine starts"
_RATIO = "a share of the whole device hides what does not fit until it fails; on unified memory it starves the host"
_KV = {"auto": None, "bfloat16": KvType.BF16, "float16": KvType.F16, "half": KvType.F16}
_ARITY = {"--disable-log-requests": 0, "--no-use-tqdm-on-load": 0}
"""Switches that only older versions had."""
_SHORT = {
    "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size",
    "-q": "--quantization", "-sc": "--speculative-config", "-O": "--optimization-level",
    "-cc": "--compilation-config", "-ac": "--attention-config",
}  # fmt: skip
_OURS = {
    "--dtype": "the planner says it where a drafter needs it",
    "--quantization": "it is read from the checkpoint",
    "--load-format": "it is read from the files",
    "--tokenizer": "it is the model's own",
    "--download-dir": "weights lie in the store: `outrider model pull` fetches them",
    "--enforce-eager": "CUDA graphs are the planner's choice, by image and known faults",
    "--optimization-level": "CUDA graphs are the planner's choice, by image and known faults",
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


def read(words: Sequence[str]) -> Recipe:
    """The words after `vllm serve` (or an image whose entrypoint is the server)."""
    recipe = Recipe(Runtime.VLLM, format=Format.SAFETENSORS)
    table = known(Runtime.VLLM)
    for said in options(_parted(words), {**table.arity, **_ARITY}):
        if isinstance(said, str):
            _positional(recipe, said)
        else:
            _option(recipe, said, table)
    return recipe


def _canonical(flag: str) -> str:
    head, dot, tail = flag.partition(".")
    return _SHORT.get(head, head.replace("_", "-")) + dot + tail


def _parted(words: Sequence[str]) -> Iterator[str]:
    """Words as vLLM's parser takes them: `-tp=2` and `-O3` are two each, underscores are dashes."""
    for word in words:
        level = re.fullmatch(r"-O=?(\d)", word)
        short = re.fullmatch(r"(-[A-Za-z]{1,4}(?:\.[\w.-]+)?)=(.*)", word, re.DOTALL)
        if level is not None:
            yield from (_SHORT["-O"], level[1])
        elif short is not None:
            yield _canonical(short[1]) + "=" + short[2]
        elif is_flag(word):
            name, equals, value = word.partition("=")
            yield _canonical(name) + equals + value
        else:
            yield word


def _positional(recipe: Recipe, word: str) -> None:
    if recipe.model is None:
        recipe.model = word
    else:
        recipe.change("unknown_flag", word, None, "the word belongs to no option")


def _option(recipe: Recipe, said: Said, table: Known) -> None:
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
        head = flag.partition(".")[0]  # `--compilation-config.mode`
        if head in _OURS:
            recipe.ours(said.text, _OURS[head])
        elif head in table.arity:
            recipe.not_carried(said.text)
        elif flag in table.gone:
            recipe.change("removed_flag", said.text, None, f"vLLM {NEWEST} refuses the option: it is gone")
        else:
            recipe.unknown(said.text, "vLLM", NEWEST)


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
        case "--config":
            recipe.config_file(said.text)
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

"""`python -m sglang.launch_server`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.importing.known import known
from orchestrator.importing.recipe import Recipe, Said, options, whole
from orchestrator.importing.vllm_line import POOL
from orchestrator.kinds import KvType
from orchestrator.models import Format, Runtime
from orchestrator.plan import Method

NEWEST = "0.5.23"
SOURCE = "SGLang 0.5.23 srt/server_args.py"
_METHODS = {
    "DFLASH": Method.DFLASH,
    "DSPARK": Method.DSPARK,
    "EAGLE3": Method.EAGLE3,
    "NEXTN": Method.MTP,
    "STANDALONE": Method.DRAFT,
    "NGRAM": Method.NGRAM,
}
_KV = {"auto": None, "bf16": KvType.BF16, "bfloat16": KvType.BF16}
_BLOCK = ("--speculative-num-draft-tokens", "--speculative-dflash-block-size", "--speculative-dspark-block-size")
_COUNTS = {
    "--context-length": "context",
    "--max-running-requests": "parallel",
    "--tp-size": "tensor_parallel",
    "--chunked-prefill-size": "batch",
}
_OURS = {
    "--dtype": "the planner says it where a drafter needs it",
    "--quantization": "it is read from the checkpoint",
    "--load-format": "it is read from the files",
    "--tokenizer-path": "it is the model's own",
    "--download-dir": "weights lie in the store: `outrider model pull` fetches them",
    "--enable-metrics": "Outrider always asks for the engine's counters",
    "--disable-cuda-graph": "CUDA graphs are the planner's choice, by image and known faults",
    "--cuda-graph-max-bs": "CUDA graphs are captured up to the sequences of the plan",
    "--cuda-graph-max-bs-decode": "CUDA graphs are captured up to the sequences of the plan",
    "--cuda-graph-bs": "CUDA graphs are captured up to the sequences of the plan",
    "--log-level": "logs are Outrider's",
    "--device": "the planner gives the engine its devices by name",
    "--base-gpu-id": "the planner gives the engine its devices by name",
    "--speculative-num-steps": "it follows from the draft length",
    "--speculative-eagle-topk": "one chain is drafted",
    "--speculative-draft-attention-backend": "the planner chooses it for the drafter, or leaves it to SGLang",
    "--speculative-draft-kv-cache-dtype": "the planner chooses it for the drafter, or leaves it to SGLang",
    "--disable-radix-cache": "the planner decides, by known faults",
}
_SHORT = {
    "--model": "--model-path", "--tp": "--tp-size", "--tensor-parallel-size": "--tp-size", "--dp": "--dp-size",
    "--data-parallel-size": "--dp-size", "--pp": "--pp-size",
    "--speculative-draft-model": "--speculative-draft-model-path",
}  # fmt: skip


def read(words: Sequence[str]) -> Recipe:
    """The words after `sglang.launch_server`."""
    recipe = Recipe(Runtime.SGLANG, format=Format.SAFETENSORS)
    for said in options(words, known(Runtime.SGLANG).arity):
        if isinstance(said, str):
            recipe.change("unknown_flag", said, None, "the word belongs to no option")
        else:
            flag = said.flag.replace("_", "-")
            _option(recipe, Said(_SHORT.get(flag, flag), said.values), said)
    if recipe.method is Method.EAGLE3 and recipe.drafter is None:
        recipe.method = Method.MTP
    return recipe


def _option(recipe: Recipe, said: Said, raw: Said) -> None:
    flag, value = said.flag, said.value
    if flag == "--model-path":
        recipe.model = value
    elif flag == "--speculative-draft-model-path":
        recipe.drafter = value
    elif flag == "--speculative-algorithm":
        _algorithm(recipe, value or "")
    elif flag in _BLOCK:
        block = whole(recipe, said)
        if block is not None:
            recipe.draft_tokens = max(min(block - 1, 64), 1)
            why = "SGLang counts the block with the token that it starts from; Outrider counts what is drafted"
            recipe.change("draft_length", raw.text, f"{recipe.draft_tokens} draft tokens", why, SOURCE)
    elif flag in _COUNTS:
        setattr(recipe, _COUNTS[flag], whole(recipe, said))
    elif not _identity(recipe, said) and not _rest(recipe, said, raw):
        recipe.unknown(raw.text, "SGLang", NEWEST)


def _algorithm(recipe: Recipe, name: str) -> None:
    upper = name.upper()
    if upper == "EAGLE":
        recipe.method = Method.EAGLE3  # with a drafter; without one it is the model's own head
    elif upper in _METHODS:
        recipe.method = _METHODS[upper]
    else:
        recipe.refuse("method_unsupported", f"Outrider has no method for SGLang's {name}", SOURCE)


def _identity(recipe: Recipe, said: Said) -> bool:
    match said.flag:
        case "--revision":
            recipe.revision = said.value
        case "--served-model-name":
            recipe.aliases += list(said.values)
        case "--trust-remote-code":
            recipe.trust_remote_code = True
        case "--config":
            recipe.config_file(said.text)
        case _:
            return False
    return True


def _rest(recipe: Recipe, said: Said, raw: Said) -> bool:
    match said.flag:
        case "--mem-fraction-static":
            recipe.change(
                "memory_ratio", raw.text, "a computed share", f"{POOL}, as far as SGLang lets it be said", SOURCE
            )
        case "--kv-cache-dtype":
            _kv(recipe, said)
        case "--attention-backend" | "--prefill-attention-backend" | "--decode-attention-backend":
            recipe.not_carried(
                raw.text, "the planner chooses the attention backend for the GPU, or leaves it to SGLang"
            )
        case "--host" | "--port":
            why = "SGLang serves no unix socket: it gets a loopback port of its own, and clients talk to the gateway"
            recipe.change("host_port", raw.text, "http://127.0.0.1:8080/v1", why, "Outrider")
        case "--api-key" | "--admin-api-key":
            recipe.secret(said.flag)
        case flag if flag in _OURS:
            recipe.ours(raw.text, _OURS[flag])
        case flag if flag in known(Runtime.SGLANG).arity:
            recipe.not_carried(raw.text)
        case _:
            return False
    return True


def _kv(recipe: Recipe, said: Said) -> None:
    name = said.value or ""
    try:
        recipe.kv = _KV[name] if name in _KV else KvType(name)
    except ValueError:
        recipe.refuse("kv_type", f"{said.text}: Outrider knows no KV type {name!r}")

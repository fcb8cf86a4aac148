"""`llama-server`. Which options there are, with how many values and what replaced them, is `runtimes.llama_cpp`'s
table of builds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.importing.known import variables
from orchestrator.importing.recipe import Recipe, Said, options, whole
from orchestrator.kinds import KvType
from orchestrator.models import Format, Ngram, Runtime
from orchestrator.plan import Method
from orchestrator.runtimes.llama_cpp.builds import knows, replacement, table

SOURCE = "llama.cpp common/arg.cpp, b9294 to b11434"
_TYPES = {
    "draft-simple": Method.DRAFT, "draft-eagle3": Method.EAGLE3, "draft-mtp": Method.MTP,
    "draft-dflash": Method.DFLASH, "draft-dspark": Method.DSPARK, "ngram-mod": Method.NGRAM,
    "ngram-simple": Method.NGRAM, "ngram-map-k": Method.NGRAM, "ngram-map-k4v": Method.NGRAM, "none": Method.NONE,
}  # fmt: skip
_KV = {"f32": KvType.F32, "f16": KvType.F16, "bf16": KvType.BF16} | {
    kv.value: kv for kv in (KvType.Q8_0, KvType.Q5_1, KvType.Q5_0, KvType.Q4_1, KvType.Q4_0, KvType.IQ4_NL)
}
_OURS = {
    "--gpu-layers": "all layers go to the GPU that the plan names",
    "--device": "the planner gives the engine its devices by name",
    "--main-gpu": "the planner gives the engine its devices by name",
    "--split-mode": "the planner decides how devices share a model",
    "--tensor-split": "the planner decides how devices share a model",
    "--flash-attn": "it is left to the engine, or said where a KV type or a known fault needs it",
    "--load-mode": "mapping is the planner's choice, by known faults",
    "--fit": "sizes come from the plan: nothing is adjusted at the start",
    "--fit-target": "sizes come from the plan: nothing is adjusted at the start",
    "--fit-ctx": "sizes come from the plan: nothing is adjusted at the start",
    "--cache-ram": "the planner gives prompts their share of memory",
    "--metrics": "Outrider always asks for the engine's counters",
    "--slots": "Outrider asks each slot whether it drafts",
    "--props": "nothing of it can be set while the engine runs",
    "--jinja": "the model's own chat template is always used",
    "--ui": "clients talk to the gateway",
    "--webui": "clients talk to the gateway",
    "--warmup": "an engine is ready when a real completion came back right",
    "--cont-batching": "it is llama.cpp's default",
    "--log-disable": "logs are Outrider's",
    "--log-file": "logs are Outrider's",
    "--verbose": "logs are Outrider's",
    "--verbosity": "logs are Outrider's",
    "--threads-batch": "it follows --threads",
    "--threads-http": "the engine chooses it",
    "--offline": "engines have no network",
    "--spec-draft-n-min": "drafts may be as short as the drafter likes",
    "--spec-draft-ngl": "the drafter goes where the model goes",
    "--spec-draft-device": "the drafter goes where the model goes: alone on a device it crashes (llama.cpp#26475)",
    "--spec-draft-p-min": "it is set where a known fault needs it (llama.cpp#25792)",
    "--spec-draft-p-split": "it is left to the engine",
    "--spec-draft-threads": "it follows --threads",
    "--spec-draft-type-k": "the planner chooses the drafter's KV type, or leaves it to the engine",
    "--spec-draft-type-v": "the planner chooses the drafter's KV type, or leaves it to the engine",
    "--ssl-key-file": "clients talk to the gateway",
    "--ssl-cert-file": "clients talk to the gateway",
    "--cors-origins": "clients talk to the gateway",
    "--timeout": "deadlines are Outrider's",
    "--models-preset": "each model is a deployment of its own",
    "--models-dir": "each model is a deployment of its own",
    "--models-max": "each model is a deployment of its own",
    "--models-autoload": "each model is a deployment of its own",
    "--sleep-idle-seconds": "the deployment decides when a model is unloaded",
    "--kv-unified": "each sequence has a context of its own, as planned",
}


def of_environment(env: Mapping[str, str]) -> tuple[str, ...]:
    """What `LLAMA_ARG_*` variables say, as options; what stands on the line itself comes after them, and wins."""
    found: list[str] = []
    for name, value in env.items():
        flag = table().flags.get(variables().get(name, ""))
        if flag is None:
            continue
        if flag.values:
            found += [flag.names[0], value]
        elif value.lower() in ("1", "true", "on", "enabled"):
            found.append(flag.names[0])
        elif flag.negative and value.lower() in ("0", "false", "off", "disabled"):
            found.append(next((n for n in flag.negative if n.startswith("--")), flag.negative[0]))
    return tuple(found)


def read(words: Sequence[str]) -> Recipe:
    """The words after `llama-server`."""
    recipe = Recipe(Runtime.LLAMA_CPP, format=Format.GGUF)
    total: int | None = None
    for given in options(_dashes(words), {name: flag.values for name, flag in table().flags.items()}):
        if isinstance(given, str):
            recipe.change("unknown_flag", given, None, "the word belongs to no option")
            continue
        said = _renewed(recipe, given)
        if said.flag == "--ctx-size":
            total = whole(recipe, said) if said.value != "0" else None
            if said.value == "0":
                recipe.ours(given.text, "the trained context is taken only as far as it fits")
        elif not _model(recipe, said) and not _size(recipe, said) and not _speculation(recipe, said):
            _rest(recipe, said, given)
    if total is not None:
        recipe.context = max(total // (recipe.parallel or 1), 1)
        if recipe.parallel and recipe.parallel > 1:
            why = f"-c is shared by {recipe.parallel} slots there; Outrider counts the context of each sequence"
            recipe.change("context_shared", f"-c {total}", f"context {recipe.context}", why, SOURCE)
    if recipe.method is None and recipe.drafter is not None:
        recipe.method = Method.DRAFT
        why = "a drafter without --spec-type drafts nothing unless the file says what it is: the type is always said"
        recipe.change("spec_type_said", "no --spec-type", "draft", why, "llama.cpp#25345")
    return recipe


def _dashes(words: Sequence[str]) -> list[str]:
    """llama-server lets underscores stand for dashes in long names."""
    return [
        word.partition("=")[0].replace("_", "-") + "".join(word.partition("=")[1:]) if word.startswith("--") else word
        for word in words
    ]


def _renewed(recipe: Recipe, said: Said) -> Said:
    """Under its first name, and in place of a removed option what replaced it."""
    new = replacement(said.flag)
    if new is not None:
        gone = not knows(None, said.flag)
        why = "llama-server refuses the old name" if gone else "the old name is going"
        recipe.change("removed_flag", said.text, new, why, SOURCE)
        name, *values = new.split()
        return Said(name, tuple(values) or said.values)
    entry = table().flags.get(said.flag)
    return said if entry is None else Said(entry.names[0], said.values)


def _model(recipe: Recipe, said: Said) -> bool:
    match said.flag:
        case "--model" | "--hf-repo" | "--model-url" | "--docker-repo":
            if said.flag in ("--model-url", "--docker-repo"):
                recipe.refuse("source_unsupported", f"{said.flag}: weights come from a hub, a path or a wheel")
            recipe.model = said.value if said.flag != "--hf-repo" or recipe.model is None else recipe.model
        case "--hf-file":
            recipe.file = said.value
        case "--spec-draft-model" | "--spec-draft-hf":
            recipe.drafter = said.value
        case "--alias":
            recipe.aliases += [name.strip() for name in (said.value or "").split(",") if name.strip()]
        case "--api-key" | "--hf-token":
            recipe.secret(said.flag)
        case "--host" | "--port":
            why = "the engine serves a unix socket of its own, and clients talk to the gateway"
            recipe.change("host_port", said.text, "http://127.0.0.1:8080/v1", why, "Outrider")
        case _:
            return False
    return True


def _size(recipe: Recipe, said: Said) -> bool:
    match said.flag:
        case "--parallel":
            recipe.parallel = None if said.value == "-1" else whole(recipe, said)
        case "--threads":
            recipe.threads = None if said.value in ("-1", "0") else whole(recipe, said)
        case "--ubatch-size":
            recipe.batch = whole(recipe, said)
        case "--batch-size":
            recipe.ours(said.text, "it follows -ub")
        case "--cache-type-k" | "--cache-type-v":
            kv = _KV.get(said.value or "")
            if kv is None:
                recipe.refuse("kv_type", f"{said.text}: llama.cpp has {', '.join(_KV)}", SOURCE)
            elif recipe.kv not in (None, kv):
                recipe.change("kv_one_type", said.text, str(recipe.kv), "keys and values are stored as one type here")
            else:
                recipe.kv = kv
        case _:
            return False
    return True


def _speculation(recipe: Recipe, said: Said) -> bool:
    flag = said.flag
    if flag == "--spec-type":
        _types(recipe, said)
    elif flag == "--spec-default":
        recipe.method = Method.NGRAM
    elif flag == "--spec-draft-n-max":
        number = 0 if said.value == "0" else whole(recipe, said)
        if number == 0:
            recipe.method = Method.NONE
            why = "a draft of no tokens still keeps the drafter in memory: speculation is left out"
            recipe.change("draft_none", said.text, "method none", why, "noonghunna/club-3090")
        elif number is not None:
            recipe.draft_tokens = min(number, 64)
    elif flag.startswith("--spec-ngram-"):
        _ngram(recipe, said)
    else:
        return False
    return True


def _types(recipe: Recipe, said: Said) -> None:
    names = [name for name in (said.value or "").split(",") if name]
    for name in names:
        if name == "ngram-cache":
            why = "it never drafted anything where it was tried"
            recipe.change("method_dropped", f"--spec-type {name}", None, why, "b10434, b11434 and b11549, tried")
        elif name not in _TYPES:
            recipe.refuse("method_unsupported", f"llama.cpp has no --spec-type {name}", SOURCE)
        elif recipe.method is None or (recipe.method is Method.NGRAM and _TYPES[name] is not Method.NGRAM):
            if recipe.method is Method.NGRAM:
                _dropped(recipe, "ngram")
            recipe.method = _TYPES[name]
        else:
            _dropped(recipe, name)
        if name in ("ngram-simple", "ngram-map-k", "ngram-map-k4v"):
            recipe.ngram = Ngram(kind="simple", match=12, longest=48)
            if name != "ngram-simple":
                why = "both drafted the same wherever they were tried"
                recipe.change("ngram_kind", f"--spec-type {name}", "ngram simple", why, "b10434 to b11549, tried")


def _dropped(recipe: Recipe, name: str) -> None:
    why = "one method drafts at a time; stacked ones crashed on a 3090"
    recipe.change("method_dropped", f"--spec-type {name}", None, why, "sudoingX/qwen38-mtp sweeps/rtx-3090.md")


def _ngram(recipe: Recipe, said: Said) -> None:
    number = whole(recipe, said)
    if number is None:
        return
    kind = "mod" if "-mod-" in said.flag else "simple"
    now = recipe.ngram or Ngram(kind="mod" if kind == "mod" else "simple")
    field = {"n-match": "match", "size-n": "match", "n-max": "longest", "size-m": "longest"}.get(
        said.flag.rpartition("-mod-")[2] if kind == "mod" else said.flag[-6:]
    )
    if field is None:
        recipe.not_carried(said.text, "it is left to the engine")
    else:
        recipe.ngram = now.model_copy(update={field: min(number, 256)})


def _rest(recipe: Recipe, said: Said, given: Said) -> None:
    if said.flag in _OURS:
        recipe.ours(given.text, _OURS[said.flag])
    elif said.flag in table().flags:
        recipe.not_carried(given.text)
    else:
        recipe.unknown(given.text, "llama.cpp", f"b{table().builds[-1]}")

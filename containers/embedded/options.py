"""The options of llama-server that the embedded engine understands, and how to read a command line.

Names, values and environment variables are llama-server's as of build 11434; what that build
has removed (`--draft-max`, `--no-mmap`) is refused here as well. Values become plain Python
values under the dotted names of `xllamacpp.CommonParams` attributes, so that a command line
can be judged without the wheel.

This file is part of the image: it imports nothing but the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Settings = dict[str, object]
"""Dotted names of `xllamacpp.CommonParams` attributes, and their values."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of one of xllamacpp's enumerations, looked up only when xllamacpp is there."""

    enum: str
    name: str


class BadArgument(ValueError):
    """The command line is wrong; the text is what to print."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of llama-server.

    `take` puts the value into the settings; a switch gets "1" or, for one of its `negative`
    names, "0". `env` is the environment variable that gives the value when the flag does not.
    """

    names: tuple[str, ...]
    take: Callable[[Settings, str], None]
    env: str | None = None
    switch: bool = False
    negative: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed command line; `wants_version` and `wants_help` are for printing instead of serving."""

    settings: Settings = field(default_factory=dict)
    wants_version: bool = False
    wants_help: bool = False


# -- values ------------------------------------------------------------------


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadArgument(f"'{text}' is not a whole number") from None


def real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadArgument(f"'{text}' is not a number") from None


def reals(text: str) -> list[float]:
    return [real(part.strip()) for part in text.split(",")]


def truth(text: str) -> bool:
    match text:
        case "1" | "on" | "true" | "enabled":
            return True
        case "0" | "off" | "false" | "disabled":
            return False
        case _:
            raise BadArgument(f"'{text}' is not a yes or a no")


def content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadArgument(f"failed to open file '{path}': {error}") from None


def names(text: str) -> set[str]:
    return {part.strip() for part in text.split(",") if part.strip()}


def layers(text: str) -> int:
    return {"auto": -1, "all": -2}[text] if text in ("auto", "all") else whole(text)


def slots(text: str) -> int:
    number = whole(text)
    if number == 0:
        raise BadArgument("error: invalid value for n_parallel")
    return number


def mebibytes(text: str) -> list[int]:
    values = [whole(part) << 20 for part in text.split(",")]
    return values * 16 if len(values) == 1 else values


def one_of(enum: str, prefix: str, **words: str) -> Callable[[str], Member]:
    """A reader of words that stand for members of an enumeration."""

    def read(text: str) -> Member:
        key = text.replace("-", "_").replace("+", "_")
        if key not in words:
            choices = ", ".join(word.replace("_", "-") for word in words)
            raise BadArgument(f"unknown value '{text}', must be one of: {choices}")
        return Member(enum, prefix + words[key])

    return read


def flash(text: str) -> Member:
    known = {"1": "on", "true": "on", "0": "off", "false": "off", "-1": "auto"}
    return one_of("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_", on="ENABLED", off="DISABLED", auto="AUTO")(
        known.get(text, text)
    )


CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
SPEC_TYPES = (
    "none",
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
)


def cache_type(text: str) -> Member:
    if text not in CACHE_TYPES:
        raise BadArgument(f"Unsupported cache type: {text}")
    return Member("ggml_type", "GGML_TYPE_" + text.upper())


def spec_types(text: str) -> list[Member]:
    for word in text.split(","):
        if word not in SPEC_TYPES:
            raise BadArgument(f"unknown speculative type: {word}")
    prefix = "COMMON_SPECULATIVE_TYPE_"
    return [Member("common_speculative_type", prefix + word.upper().replace("-", "_")) for word in text.split(",")]


# -- options -----------------------------------------------------------------


def value(names: str, path: str, read: Callable[[str], object], env: str | None = None) -> Option:
    """An option that sets one attribute; `names` are separated by spaces, `env` is without LLAMA_ARG_."""

    def take(settings: Settings, text: str) -> None:
        settings[path] = read(text)

    return Option(tuple(names.split()), take, None if env is None else f"LLAMA_ARG_{env}")


def switch(names: str, path: str, env: str | None = None, negative: str = "", *, inverted: bool = False) -> Option:
    """A switch; `inverted` when the attribute says the opposite of the option's name."""

    def take(settings: Settings, text: str) -> None:
        settings[path] = truth(text) is not inverted

    variable = None if env is None else f"LLAMA_ARG_{env}"
    return Option(tuple(names.split()), take, variable, switch=True, negative=tuple(negative.split()))


def gather(names: str, path: str, read: Callable[[str], Any], env: str | None = None) -> Option:
    """An option that may come several times and adds up: a set, or a list."""

    def take(settings: Settings, text: str) -> None:
        found = settings.setdefault(path, type(read(text))())
        if isinstance(found, set):
            found.update(read(text))
        elif isinstance(found, list):
            found.extend(read(text))

    return Option(tuple(names.split()), take, env)


def _template_arguments(settings: Settings, text: str) -> None:
    try:
        pairs = dict(json.loads(text))
    except (ValueError, TypeError):
        raise BadArgument(f"'{text}' is not a JSON object") from None
    settings["default_template_kwargs"] = {key: json.dumps(item) for key, item in pairs.items()}


def _default_speculation(settings: Settings, _text: str) -> None:
    settings["speculative.types"] = spec_types("ngram-mod")
    for key, number in (("n_match", 24), ("n_min", 48), ("n_max", 64)):
        settings[f"speculative.ngram_mod.{key}"] = number


def _flag(name: str) -> Callable[[Settings, str], None]:
    def take(settings: Settings, _text: str) -> None:
        settings[name] = True

    return take


def _timeout(settings: Settings, text: str) -> None:
    settings["timeout_read"] = settings["timeout_write"] = whole(text)


def _keys(text: str) -> list[str]:
    return [key for key in (part.strip() for part in text.split(",")) if key]


def _key_file(text: str) -> list[str]:
    return [line.strip() for line in content(text).splitlines() if line.strip() and not line.startswith("#")]


load_mode = one_of(
    "llama_load_mode",
    "LLAMA_LOAD_MODE_",
    auto="AUTO",
    none="NONE",
    mmap="MMAP",
    mlock="MLOCK",
    mmap_mlock="MMAP_MLOCK",
    dio="DIRECT_IO",
)
reasoning = one_of(
    "common_reasoning_format",
    "COMMON_REASONING_FORMAT_",
    auto="AUTO",
    none="NONE",
    deepseek="DEEPSEEK",
    deepseek_legacy="DEEPSEEK_LEGACY",
)
split_mode = one_of("llama_split_mode", "LLAMA_SPLIT_MODE_", none="NONE", layer="LAYER", row="ROW", tensor="TENSOR")
pooling = one_of(
    "llama_pooling_type", "LLAMA_POOLING_TYPE_", none="NONE", mean="MEAN", cls="CLS", last="LAST", rank="RANK"
)
rope_scaling = one_of("llama_rope_scaling_type", "LLAMA_ROPE_SCALING_TYPE_", none="NONE", linear="LINEAR", yarn="YARN")


def _is_probabilistic(text: str) -> bool:
    if text not in ("greedy", "probabilistic"):
        raise BadArgument("invalid value, must be one of: greedy, probabilistic")
    return text == "probabilistic"


def _ngram_options() -> list[Option]:
    found = [
        value(
            f"--spec-ngram-{kind}-{key}", f"speculative.ngram_{kind.replace('-', '_')}.{key.replace('-', '_')}", whole
        )
        for kind in ("simple", "map-k", "map-k4v")
        for key in ("size-n", "size-m", "min-hits")
    ]
    found += [
        value(f"--spec-ngram-mod-{key}", f"speculative.ngram_mod.{key.replace('-', '_')}", whole)
        for key in ("n-match", "n-min", "n-max")
    ]
    return found


OPTIONS: tuple[Option, ...] = (
    Option(("-h", "--help", "--usage"), _flag("help"), switch=True),
    Option(("--version",), _flag("version"), switch=True),
    # the model and the memory it takes
    value("-m --model", "model.path", str, "MODEL"),
    gather("-a --alias", "model_alias", names, "LLAMA_ARG_ALIAS"),
    gather("--tags", "model_tags", names, "LLAMA_ARG_TAGS"),
    value("-c --ctx-size", "n_ctx", whole, "CTX_SIZE"),
    value("-np --parallel", "n_parallel", slots, "N_PARALLEL"),
    value("-b --batch-size", "n_batch", whole, "BATCH"),
    value("-ub --ubatch-size", "n_ubatch", whole, "UBATCH"),
    value("-ctk --cache-type-k", "cache_type_k", cache_type, "CACHE_TYPE_K"),
    value("-ctv --cache-type-v", "cache_type_v", cache_type, "CACHE_TYPE_V"),
    value("-fa --flash-attn", "flash_attn_type", flash, "FLASH_ATTN"),
    value("-lm --load-mode", "load_mode", load_mode, "LOAD_MODE"),
    value("-ngl --gpu-layers --n-gpu-layers", "n_gpu_layers", layers, "N_GPU_LAYERS"),
    value("-sm --split-mode", "split_mode", split_mode, "SPLIT_MODE"),
    value("-mg --main-gpu", "main_gpu", whole, "MAIN_GPU"),
    value("-fit --fit", "fit_params", truth, "FIT"),
    value("-fitt --fit-target", "fit_params_target", mebibytes, "FIT_TARGET"),
    value("-fitc --fit-ctx", "fit_params_min_ctx", whole, "FIT_CTX"),
    switch("-kvu --kv-unified", "kv_unified", "KV_UNIFIED", "-no-kvu --no-kv-unified"),
    switch("-kvo --kv-offload", "no_kv_offload", "KV_OFFLOAD", "-nkvo --no-kv-offload", inverted=True),
    switch("--op-offload", "no_op_offload", None, "--no-op-offload", inverted=True),
    switch("--repack", "no_extra_bufts", "REPACK", "-nr --no-repack", inverted=True),
    switch("--no-host", "no_host", "NO_HOST"),
    switch("--swa-full", "swa_full", "SWA_FULL"),
    switch("--check-tensors", "check_tensors"),
    value("--rope-scaling", "rope_scaling_type", rope_scaling, "ROPE_SCALING_TYPE"),
    value("--rope-freq-base", "rope_freq_base", real, "ROPE_FREQ_BASE"),
    value("--rope-freq-scale", "rope_freq_scale", real, "ROPE_FREQ_SCALE"),
    value("--yarn-orig-ctx", "yarn_orig_ctx", whole, "YARN_ORIG_CTX"),
    value("-mm --mmproj", "mmproj.path", str, "MMPROJ"),
    switch("--mmproj-auto", "no_mmproj", "MMPROJ_AUTO", "--no-mmproj --no-mmproj-auto", inverted=True),
    switch("--offline", "offline", "OFFLINE"),
    # threads
    value("-t --threads", "cpuparams.n_threads", whole, "THREADS"),
    value("-tb --threads-batch", "cpuparams_batch.n_threads", whole),
    value("--poll", "cpuparams.poll", whole),
    value("--prio", "cpuparams.priority", whole),
    value("--threads-http", "n_threads_http", whole, "THREADS_HTTP"),
    # generation and caching
    value("-n --predict --n-predict", "n_predict", whole, "N_PREDICT"),
    value("--keep", "n_keep", whole),
    value("-s --seed", "sampling.seed", whole),
    value("--temp --temperature", "sampling.temp", real),
    value("--top-k", "sampling.top_k", whole, "TOP_K"),
    value("--top-p", "sampling.top_p", real),
    value("--min-p", "sampling.min_p", real),
    value("--repeat-penalty", "sampling.penalty_repeat", real),
    value("--presence-penalty", "sampling.penalty_present", real),
    value("--frequency-penalty", "sampling.penalty_freq", real),
    switch("--context-shift", "ctx_shift", "CONTEXT_SHIFT", "--no-context-shift"),
    switch("--cache-prompt", "cache_prompt", "CACHE_PROMPT", "--no-cache-prompt"),
    value("--cache-reuse", "n_cache_reuse", whole, "CACHE_REUSE"),
    value("-cram --cache-ram", "cache_ram_mib", whole, "CACHE_RAM"),
    value("-ctxcp --ctx-checkpoints --swa-checkpoints", "n_ctx_checkpoints", whole, "CTX_CHECKPOINTS"),
    value("-cms --checkpoint-min-step", "checkpoint_min_step", whole, "CHECKPOINT_MIN_SPACING_NT"),
    switch("--cache-idle-slots", "cache_idle_slots", "CACHE_IDLE_SLOTS", "--no-cache-idle-slots"),
    switch("-cb --cont-batching", "cont_batching", "CONT_BATCHING", "-nocb --no-cont-batching"),
    switch("--warmup", "warmup", None, "--no-warmup"),
    switch("--embedding --embeddings", "embedding", "EMBEDDINGS"),
    value("--pooling", "pooling_type", pooling, "POOLING"),
    switch("--perf", "sampling.no_perf", "PERF", "--no-perf", inverted=True),
    # chat
    switch("--jinja", "use_jinja", "JINJA", "--no-jinja"),
    value("--chat-template", "chat_template", str, "CHAT_TEMPLATE"),
    value("--chat-template-file", "chat_template", content, "CHAT_TEMPLATE_FILE"),
    Option(("--chat-template-kwargs",), _template_arguments, "LLAMA_ARG_CHAT_TEMPLATE_KWARGS"),
    value("--reasoning-format", "reasoning_format", reasoning, "THINK"),
    switch("--skip-chat-parsing", "force_pure_content_parser", "SKIP_CHAT_PARSING", "--no-skip-chat-parsing"),
    switch("--prefill-assistant", "prefill_assistant", "PREFILL_ASSISTANT", "--no-prefill-assistant"),
    # the server
    value("--host", "hostnames", lambda text: [part.strip() for part in text.split(",")], "HOST"),
    value("--port", "port", whole, "PORT"),
    switch("--reuse-port", "reuse_port", "REUSE_PORT"),
    value("--api-prefix", "api_prefix", str, "API_PREFIX"),
    gather("--api-key", "api_keys", _keys, "LLAMA_API_KEY"),
    gather("--api-key-file", "api_keys", _key_file, "LLAMA_ARG_API_KEY_FILE"),
    value("--cors-origins", "cors_origins", str, "CORS_ORIGINS"),
    Option(("-to", "--timeout"), _timeout, "LLAMA_ARG_TIMEOUT"),
    value("--sse-ping-interval", "sse_ping_interval", whole, "SSE_PING_INTERVAL"),
    switch("--metrics", "endpoint_metrics", "ENDPOINT_METRICS"),
    switch("--props", "endpoint_props", "ENDPOINT_PROPS"),
    switch("--slots", "endpoint_slots", "ENDPOINT_SLOTS", "--no-slots"),
    value("--slot-save-path", "slot_save_path", str),
    value("-sps --slot-prompt-similarity", "slot_prompt_similarity", real),
    value("--sleep-idle-seconds", "sleep_idle_seconds", whole),
    switch("--ui --webui", "ui", "UI", "--no-ui --no-webui"),
    value("-lv --verbosity --log-verbosity", "verbosity", whole, "LOG_VERBOSITY"),
    # speculation
    gather("--spec-type", "speculative.types", spec_types, "LLAMA_ARG_SPEC_TYPE"),
    Option(("--spec-default",), _default_speculation, switch=True),
    value("-md --model-draft --spec-draft-model", "speculative.draft.mparams.path", str, "SPEC_DRAFT_MODEL"),
    value("--spec-draft-n-max", "speculative.draft.n_max", whole, "SPEC_DRAFT_N_MAX"),
    value("--spec-draft-n-min", "speculative.draft.n_min", whole, "SPEC_DRAFT_N_MIN"),
    value("--spec-draft-p-min --draft-p-min", "speculative.draft.p_min", real, "SPEC_DRAFT_P_MIN"),
    value("--spec-draft-p-split --draft-p-split", "speculative.draft.p_split", real, "SPEC_DRAFT_P_SPLIT"),
    value("--spec-draft-sampling", "speculative.draft.probabilistic", _is_probabilistic),
    switch(
        "--spec-draft-backend-sampling",
        "speculative.draft.backend_sampling",
        "SPEC_DRAFT_BACKEND_SAMPLING",
        "--no-spec-draft-backend-sampling",
    ),
    value("-ngld --spec-draft-ngl --gpu-layers-draft --n-gpu-layers-draft", "speculative.draft.n_gpu_layers", layers),
    value("-ctkd --spec-draft-type-k --cache-type-k-draft", "speculative.draft.cache_type_k", cache_type),
    value("-ctvd --spec-draft-type-v --cache-type-v-draft", "speculative.draft.cache_type_v", cache_type),
    value("-td --spec-draft-threads --threads-draft", "speculative.draft.cpuparams.n_threads", whole),
    value(
        "-tbd --spec-draft-threads-batch --threads-batch-draft", "speculative.draft.cpuparams_batch.n_threads", whole
    ),
    value("--spec-synth-len", "speculative.synth_len", real, "SPEC_SYNTH_LEN"),
    value("--spec-synth-rates", "speculative.synth_rates", reals, "SPEC_SYNTH_RATES"),
    *_ngram_options(),
)

REMOVED = {
    **dict.fromkeys(("--draft", "--draft-n", "--draft-max"), "use --spec-draft-n-max or --spec-ngram-mod-n-max"),
    **dict.fromkeys(("--draft-min", "--draft-n-min"), "use --spec-draft-n-min or --spec-ngram-mod-n-min"),
    "--spec-ngram-size-n": "use the respective --spec-ngram-*-size-n",
    "--spec-ngram-size-m": "use the respective --spec-ngram-*-size-m",
    "--spec-ngram-min-hits": "use the respective --spec-ngram-*-min-hits",
}
"""Options that llama-server once had, and what it says about them."""

_BY_NAME = {name: (option, "1") for option in OPTIONS for name in option.names} | {
    name: (option, "0") for option in OPTIONS for name in option.negative
}


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Request:
    """Read a command line (without the program's name) on top of the environment.

    Raises `BadArgument` with the text that llama-server would print.
    """
    settings: Settings = {}
    for option in OPTIONS:
        text = None if option.env is None else environ.get(option.env)
        if text is not None:
            _take(option, settings, text, f'error while handling environment variable "{option.env}"')
    rest = iter(argv)
    for word in rest:
        # llama-server lets underscores stand for dashes in long names
        name = word.replace("_", "-") if word.startswith("--") else word
        if name in REMOVED:
            raise BadArgument(_handling(name, f"the argument has been removed. {REMOVED[name]}"))
        if name not in _BY_NAME:
            raise BadArgument(f"error: invalid argument: {name}")
        option, text = _BY_NAME[name]
        if not option.switch:
            given = next(rest, None)
            if given is None:
                raise BadArgument(_handling(name, "expected value for argument"))
            text = given
        _take(option, settings, text, f'error while handling argument "{name}"')
    return Request(settings, settings.pop("version", None) is True, settings.pop("help", None) is True)


def _handling(name: str, what: str) -> str:
    return f'error while handling argument "{name}": {what}'


def _take(option: Option, settings: Settings, text: str, where: str) -> None:
    try:
        option.take(settings, text)
    except BadArgument as error:
        raise BadArgument(f"{where}: {error}") from None

"""The definition of a model that was pulled under a name of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator import gguf_file, model_toml
from orchestrator.errors import ModelFileError, UsageError
from orchestrator.models import Format, ModelEntry, Shape, Variant
from orchestrator.store_files import write_text
from orchestrator.weights.choosing import Source
from orchestrator.weights.request import PullRequest
from orchestrator.weights.shelf import Held

_LARGEST = 4 << 20


def define(request: PullRequest, source: Source, held: Held, models_d: Path) -> ModelEntry:
    """Write `models.d/<name>.toml`: the repository, its file and the commit. Blocking.

    Raises `ModelFileError` for weights that no model is started from, `UsageError`.
    """
    variant = _gguf(source, held) if source.wanted.format is Format.GGUF else _safetensors(source, held)
    try:
        entry = ModelEntry(
            name=str(request.name),
            aliases=request.aliases,
            variants=(variant,),
            context=request.context,
            parallel=request.parallel,
            threads=request.threads,
        )
    except ValidationError as error:
        raise UsageError(error.errors(include_url=False)[0]["msg"]) from error
    write_text(model_toml.file_of(models_d, entry.name), model_toml.dumps(entry))
    return entry


def _gguf(source: Source, held: Held) -> Variant:
    facts = gguf_file.read(held.files[0])
    if facts.drafter is not None:
        raise ModelFileError(
            f"{held.files[0].name} of {source.repository} is a {facts.drafter.method} drafter, not a model",
            hint="name it as a drafter in the definition of the model that it was made for, then pull that model",
        )
    quantisation = facts.quantisation or "unknown"
    return Variant(
        name=_name(quantisation),
        format=Format.GGUF,
        quantisation=quantisation,
        repository=source.repository,
        file=source.wanted.file,
        revision=held.commit,
        weight_bytes=held.size,
    )


def _safetensors(source: Source, held: Held) -> Variant:
    config = _json(held.folder / "config.json")
    quantised = config.get("quantization_config")
    method = quantised.get("quant_method") if isinstance(quantised, dict) else None
    quantisation = str(method or _inner(config).get("torch_dtype") or _inner(config).get("dtype") or "unknown")
    weights = sum(f.stat().st_size for f in held.files if f.name.endswith(".safetensors"))
    return Variant(
        name=_name(quantisation),
        format=Format.SAFETENSORS,
        quantisation=quantisation,
        repository=source.repository,
        revision=held.commit,
        weight_bytes=weights,
        shape=shape_of(config),
    )


def _name(quantisation: str) -> str:
    text = "".join(c if c.isascii() and c.isalnum() else "-" for c in quantisation.lower()).strip("-")
    return text[:63] or "weights"


def _json(file: Path) -> Mapping[str, Any]:
    try:
        text = file.read_bytes()[:_LARGEST]
        data = json.loads(text)
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"{file} cannot be read: {error}", hint="this repository holds no complete model"
        ) from error
    return data if isinstance(data, dict) else {}


def _inner(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part, where there are others (images) beside it."""
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def shape_of(config: Mapping[str, Any]) -> Shape | None:
    """What a `config.json` says of the memory that a model takes; None where it does not say enough."""
    part = _inner(config)

    def number(*names: str) -> int | None:
        found = next((part[n] for n in names if isinstance(part.get(n), int) and not isinstance(part[n], bool)), None)
        return found if found is None or found > 0 else None

    layers, hidden, heads = number("num_hidden_layers"), number("hidden_size"), number("num_attention_heads")
    if layers is None or hidden is None or heads is None:
        return None
    kinds = part.get("layer_types")
    linear = kinds.count("linear_attention") if isinstance(kinds, list) and len(kinds) == layers else 0
    latent, rope = number("kv_lora_rank"), number("qk_rope_head_dim")
    head_dim = number("head_dim") or hidden // heads
    if latent is not None:
        head_dim = latent + (rope or 0)
    try:
        return Shape(
            layers=layers,
            hidden=hidden,
            vocab=number("vocab_size"),
            attention_layers=layers - linear,
            kv_heads=1 if latent is not None else number("num_key_value_heads") or heads,
            head_dim=head_dim,
            linear_layers=linear,
            linear_key_heads=number("linear_num_key_heads") or 0,
            linear_value_heads=number("linear_num_value_heads") or 0,
            linear_head_dim=number("linear_key_head_dim") or 0,
            conv_kernel=number("linear_conv_kernel_dim") or 4,
            kv_lora_rank=latent,
            rope_head_dim=rope,
            max_context=number("max_position_embeddings"),
            mtp_layers=number("mtp_num_hidden_layers", "num_nextn_predict_layers") or 0,
        )
    except ValidationError:
        return None

"""The definition of a model that was pulled under a name of its own."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from orchestrator import gguf_file, model_toml
from orchestrator.errors import ModelFileError, UsageError
from orchestrator.models import Format, ModelEntry, Variant
from orchestrator.plan import Method
from orchestrator.reading import folder
from orchestrator.store_files import write_text
from orchestrator.weights.choosing import Source
from orchestrator.weights.request import PullRequest
from orchestrator.weights.shelf import Held


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
        raise _a_drafter(f"{held.files[0].name} of {source.repository}", facts.drafter.method)
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
    outside = held.selection.outside
    facts = folder.read(str(held.folder), None if outside is None else str(held.root))
    if facts.drafter is not None:
        raise _a_drafter(source.repository, facts.drafter.method)
    quantisation = facts.quantisation or "unknown"
    return Variant(
        name=_name(quantisation),
        format=Format.SAFETENSORS,
        quantisation=quantisation,
        repository=source.repository,
        revision=held.commit,
        weight_bytes=facts.size,
        shape=facts.shape,
    )


def _a_drafter(what: str, method: Method) -> ModelFileError:
    return ModelFileError(
        f"{what} is a {method} drafter, not a model",
        hint="name it as a drafter in the definition of the model that it was made for, then pull that model",
    )


def _name(quantisation: str) -> str:
    text = "".join(c if c.isascii() and c.isalnum() else "-" for c in quantisation.lower()).strip("-")
    return text[:63] or "weights"

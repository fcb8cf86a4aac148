"""From a folder of safetensors with its config.json to `FileFacts`. Blocking; heads only, never the weights."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.errors import ModelFileError
from orchestrator.file_facts import FileFacts, Quantised
from orchestrator.models import Format, Shape
from orchestrator.reading import config_drafter, config_quantisation, config_shape, strict_json, tokenizer_file
from orchestrator.reading.config_layers import Unclear
from orchestrator.reading.opened import AGAIN, unreadable
from orchestrator.reading.safetensors_file import Tensor
from orchestrator.reading.safetensors_file import read as read_header
from orchestrator.reading.said import BadKey, Said
from orchestrator.reading.tensors import Told, told

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
LONGEST_CONFIG = 8 << 20
"""Bytes. Lists of layers that are left unquantised make some hundreds of kilobytes."""
LONGEST_INDEX = 64 << 20
LONGEST_HEADERS = 64 << 20
"""Bytes of all headers of a folder together."""
MOST_FILES = 4096
_PART = re.compile(r"^(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.safetensors$")
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_TYPE_WORDS = {"F8_E4M3": "FP8", "F8_E5M2": "FP8"}


@dataclass(frozen=True, slots=True)
class _Weights:
    """All tensors of a folder and the bytes of its files."""

    tensors: Mapping[str, Tensor]
    size: int
    files: tuple[str, ...]


def read(path: str, root: str | None = None) -> FileFacts:
    """What a folder of safetensors says of itself. `root` is the folder that an engine is given, where that is
    not `path`: links must not lead out of it.

    Raises `ModelFileError`, naming the file, and the key where a key is to blame.
    """
    folder = os.path.realpath(path)
    if not os.path.isdir(folder):
        what = "is no folder" if os.path.lexists(folder) else "does not exist"
        raise ModelFileError(f"{path} {what}", hint="safetensors models are folders with a config.json")
    within = os.path.realpath(root) if root is not None else folder
    names = _names(folder)
    weights_there = any(name.endswith(".safetensors") for name in names)
    if CONFIG not in names or not (weights_there or INDEX in names):
        raise ModelFileError(f"{path} holds no complete model", hint=f"*.safetensors and {CONFIG} are needed; {AGAIN}")
    place = _Folder(folder, within, names)
    outer = Said(place.json(CONFIG, LONGEST_CONFIG))
    try:
        said = config_shape.inner(outer)
        return _facts(place, outer, said, _weights(place))
    except BadKey as error:
        raise ModelFileError(f"{folder}/{CONFIG}: {error}", hint=AGAIN, evidence={"file": CONFIG}) from error


@dataclass(frozen=True, slots=True)
class _Folder:
    path: str
    within: str
    names: frozenset[str]

    def json(self, name: str, longest: int) -> strict_json.Object:
        return strict_json.read(f"{self.path}/{name}", longest, self.within)

    def maybe(self, name: str) -> Said | None:
        return Said(self.json(name, LONGEST_CONFIG), f"{name}: ") if name in self.names else None


def _names(folder: str) -> frozenset[str]:
    try:
        with os.scandir(folder) as entries:
            found = frozenset(entry.name for entry, _ in zip(entries, range(MOST_FILES + 1), strict=False))
    except OSError as error:
        raise unreadable(folder, error) from error
    if len(found) > MOST_FILES:
        raise ModelFileError(f"{folder} holds more than {MOST_FILES} files", hint="give the model's own folder")
    return found


# the weights


def _weights(place: _Folder) -> _Weights:
    files, promised = _files(place)
    missing = [name for name in files if name not in place.names]
    if missing:
        shown = ", ".join(missing[:3]) + ("..." if len(missing) > 3 else "")
        raise ModelFileError(f"{place.path} lacks {len(missing)} of {len(files)} weight files: {shown}", hint=AGAIN)
    tensors: dict[str, Tensor] = {}
    size, left = 0, LONGEST_HEADERS
    for name in files:
        header = read_header(f"{place.path}/{name}", place.within, longest=left)
        left -= header.length
        size += header.size
        for tensor, value in header.tensors.items():
            if tensor in tensors:
                raise ModelFileError(f"{place.path}/{name} holds {tensor[:120]}, which another file has", hint=AGAIN)
            tensors[tensor] = value
        for tensor in promised.get(name, ()):
            if tensor not in header.tensors:
                raise ModelFileError(
                    f"{place.path}/{INDEX} places {tensor[:120]} in {name}, which lacks it", hint=AGAIN
                )
    return _Weights(tensors, size, files)


def _files(place: _Folder) -> tuple[tuple[str, ...], Mapping[str, list[str]]]:
    """The weight files, and which tensors the index promises in each: those it names, else all there are."""
    if INDEX in place.names:
        mapped = place.json(INDEX, LONGEST_INDEX).get("weight_map")
        if not isinstance(mapped, dict) or not mapped:
            raise ModelFileError(f"{place.path}/{INDEX}: weight_map is no object", hint=AGAIN)
        promised: dict[str, list[str]] = {}
        for tensor, name in mapped.items():
            if not isinstance(name, str) or "/" in name or not name.endswith(".safetensors"):
                raise ModelFileError(f"{place.path}/{INDEX}: weight_map has {str(name)[:80]!r}", hint=AGAIN)
            promised.setdefault(name, []).append(tensor)
        return tuple(sorted(promised)), promised
    found = sorted(name for name in place.names if name.endswith(".safetensors"))
    plain = [name for name in found if not name.startswith("consolidated")]  # the same weights in another layout
    chosen = plain or found
    whole = set(chosen)
    for name in chosen:
        part = _PART.match(name)
        if part is not None and int(part["count"]) <= MOST_FILES:
            whole |= {f"{part['stem']}-{n:05}-of-{part['count']}.safetensors" for n in range(1, int(part["count"]) + 1)}
    return tuple(sorted(whole)), {}


# the facts


def _facts(place: _Folder, outer: Said, said: Said, weights: _Weights) -> FileFacts:
    drafter = config_drafter.drafter(outer, said, weights.tensors)
    depth = said.count("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    seen = told(weights.tensors.items(), None if drafter is not None else depth)
    declared = config_shape.declared_mtp(outer, said)
    shape, unclear = _shape(outer, said, seen, drafter is not None)
    if shape is not None and drafter is None:
        shape, unclear = _weighed(place, shape, seen, declared)
    quantised = config_quantisation.quantised(outer, said, place.maybe("hf_quant_config.json"))
    rows = config_shape.vocab(outer, said)
    vocabulary = None
    if "tokenizer.json" in place.names:
        vocabulary = tokenizer_file.read(f"{place.path}/tokenizer.json", rows, place.within)
    architectures = outer.words("architectures")
    return FileFacts(
        path=place.path,
        size=weights.size,
        format=Format.SAFETENSORS,
        architecture=architectures[0] if architectures else outer.word("model_type"),
        name=None,
        shape=shape,
        tensor_bytes=seen.portions.total,
        vocab=rows or (None if vocabulary is None else vocabulary.tokens),
        tokens_digest=None if vocabulary is None else vocabulary.digest,
        nextn_layers=0 if drafter is not None else _head_layers(seen),
        drafter=drafter,
        chat_template=_chat_template(place),
        quantisation=_quantisation(quantised, seen),
        quantised=quantised,
        portions=seen.portions,
        mtp_declared=declared,
        end_tokens=_end_tokens(place, outer, said),
        unclear=unclear,
    )


def _head_layers(seen: Told) -> int:
    return seen.mtp_layers or (1 if seen.portions.mtp else 0)


def _shape(outer: Said, said: Said, seen: Told, drafts: bool) -> tuple[Shape | None, str | None]:
    tied = None
    if config_shape.declared_tied(outer, said) is None and not drafts and seen.has_embedding:
        tied = not seen.has_head
    try:
        shape = config_shape.shape(outer, said, mtp_layers=0 if drafts else _head_layers(seen), tied=tied)
    except Unclear as error:
        return None, str(error)
    if shape is None:
        return None, f"{CONFIG} does not say how many layers there are, or how wide"
    if shape.dtype is None and seen.dtype in _DTYPES:
        shape = shape.model_copy(update={"dtype": _DTYPES[seen.dtype]})
    return shape, None


def _weighed(place: _Folder, shape: Shape, seen: Told, declared: int) -> tuple[Shape | None, str | None]:
    """The shape against the layers that have weights."""
    if seen.main_layers and seen.main_layers < shape.layers:
        raise ModelFileError(
            f"{place.path}/{CONFIG}: num_hidden_layers is {shape.layers}, the weights hold {seen.main_layers} layers",
            hint=AGAIN,
        )
    if seen.beyond and not declared:
        return None, "its weights are numbered beyond the layers that it says it has"
    return shape, None


def _quantisation(quantised: Quantised | None, seen: Told) -> str | None:
    if quantised is not None:
        return quantised.text
    return None if seen.most is None else _TYPE_WORDS.get(seen.most, seen.most)


def _end_tokens(place: _Folder, outer: Said, said: Said) -> tuple[int, ...]:
    generation = place.maybe("generation_config.json")
    found: set[int] = set()
    for one in (outer, said, *([] if generation is None else [generation])):
        for key in ("eos_token_id", "pad_token_id"):
            found |= {n for n in one.counts(key, least=-1) if n >= 0}
    return tuple(sorted(found))


def _chat_template(place: _Folder) -> bool:
    if place.names & {"chat_template.jinja", "chat_template.json"}:
        return True
    tokenizer = place.maybe("tokenizer_config.json")
    return tokenizer is not None and tokenizer.has("chat_template")

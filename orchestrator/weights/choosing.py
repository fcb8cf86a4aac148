"""Which files of a repository a variant or drafter is made of. Pure.

Safetensors and GGUF only: other formats of weights can run code when they are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from orchestrator.models import Drafter, Format, ModelEntry, Variant

_SPLIT = re.compile(r"^(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.(?P<end>gguf|safetensors)$")
_BESIDE = (".json", ".jinja", ".model", ".tiktoken")
"""What lies beside safetensors and belongs to the model: configuration, tokenizer, chat template."""
_BESIDE_NAMES = frozenset({"merges.txt", "vocab.txt"})
_NO_MODEL = re.compile(r"(^|[/_.-])(mmproj|imatrix|mtp)([_.-]|$)", re.IGNORECASE)
"""GGUF files beside a model: projectors, calibration data, heads to be merged."""
_TEMPLATES = "additional_chat_templates/"
MOST_SHOWN = 8
MOST = 2_000
"""Files of one model; the largest that are known have some two hundred."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for: the format, and for GGUF which of a repository's models, by file name
    or pattern, or by the tag of its quantisation."""

    format: Format
    tag: str | None = None
    file: str | None = None

    @property
    def key(self) -> str:
        """What the choice is remembered under."""
        return f"{self.format.value}:{self.file or self.tag or ''}"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a variant's or drafter's weights come from. `revision` is what its definition says."""

    repository: str
    revision: str
    wanted: Wanted


class NoChoice(ValueError):
    """The files do not tell what is meant; `candidates` are what there is."""

    def __init__(self, text: str, candidates: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.candidates = tuple(candidates[:MOST_SHOWN])


def things(entry: ModelEntry) -> tuple[Variant | Drafter, ...]:
    """A model's variants, then its drafters."""
    both: list[Variant | Drafter] = [*entry.variants, *entry.drafters]
    return tuple(both)


def source_of(thing: Variant | Drafter) -> Source | None:
    """A variant's or drafter's repository; None for one that has a path, or comes in a wheel."""
    if thing.repository is None or wheel_of(thing) is not None:
        return None
    name, _, tag = thing.repository.partition(":")
    return Source(name, thing.revision or "main", Wanted(thing.format, tag or None, thing.file))


def wheel_of(thing: Variant | Drafter) -> str | None:
    """The pinned wheel `NAME==VERSION` that a repository `wheels/NAME:VERSION` stands for."""
    if thing.repository is None or not thing.repository.startswith("wheels/"):
        return None
    name, _, version = thing.repository.removeprefix("wheels/").partition(":")
    return f"{name}=={version}" if name and version else None


def choose(paths: Iterable[str], wanted: Wanted) -> tuple[str, ...]:
    """The files, the first one first. Raises `NoChoice`."""
    known = sorted(paths)
    chosen = _safetensors(known) if wanted.format is Format.SAFETENSORS else _gguf(known, wanted)
    if len(chosen) > MOST:
        raise NoChoice(f"{len(chosen)} files would belong together, and no model has more than {MOST}")
    return chosen


def _safetensors(paths: list[str]) -> tuple[str, ...]:
    top = [p for p in paths if "/" not in p]
    weights = [p for p in top if p.endswith(".safetensors")]
    if any(not p.startswith("consolidated") for p in weights):
        weights = [p for p in weights if not p.startswith("consolidated")]  # the same weights in another layout
    if not weights:
        others = [p for p in paths if p.endswith((".bin", ".pt", ".pth", ".gguf", ".safetensors"))]
        raise NoChoice("it holds no safetensors in its folder, and other formats of weights are not taken", others)
    _all_parts(weights)
    beside = [p for p in top if p.endswith(_BESIDE) or p in _BESIDE_NAMES]
    beside += [p for p in paths if p.startswith(_TEMPLATES) and p.endswith(".jinja")]
    if "config.json" not in beside:
        raise NoChoice("it has no config.json", weights)
    return (*sorted(beside), *weights)


def _gguf(paths: list[str], wanted: Wanted) -> tuple[str, ...]:
    if wanted.file is not None and not wanted.file.lower().endswith((".gguf", "*")):
        raise NoChoice(f"{wanted.file} names no GGUF file: safetensors are taken whole, other formats not at all")
    files = [p for p in paths if p.lower().endswith(".gguf")]
    if not files:
        raise NoChoice("it holds no GGUF file", [p for p in paths if p.endswith(".safetensors")])
    groups: dict[str, list[str]] = {}
    for path in files:
        split = _SPLIT.match(path)
        groups.setdefault(path if split is None else f"{split['stem']}.gguf", []).append(path)
    fitting = {name: parts for name, parts in groups.items() if _fits(name, parts, wanted)}
    what = f"{wanted.file or wanted.tag or 'one model'}"
    if not fitting:
        raise NoChoice(f"no GGUF file of it is {what}", sorted(groups))
    if len(fitting) > 1:
        raise NoChoice(f"{len(fitting)} models of it could be meant with {what}", sorted(fitting))
    (parts,) = fitting.values()
    _all_parts(parts)
    return tuple(sorted(parts))


def _fits(name: str, parts: list[str], wanted: Wanted) -> bool:
    if wanted.file is not None:
        names = (name, *parts)
        return any(fnmatchcase(n, wanted.file) or fnmatchcase(n.rpartition("/")[2], wanted.file) for n in names)
    if _NO_MODEL.search(name) is not None:
        return False
    if wanted.tag is None:
        return True
    stem = name.rpartition("/")[2].removesuffix(".gguf")
    tag = re.escape(wanted.tag)
    if not wanted.tag.upper().startswith("UD-"):
        tag = rf"(?<!UD-)(?<!ud-){tag}"  # another recipe under the same quantisation's name
    return re.search(rf"(?<![A-Za-z0-9_]){tag}(?![A-Za-z0-9_])", stem, re.IGNORECASE) is not None


def _all_parts(paths: list[str]) -> None:
    parts: dict[tuple[str, int], set[int]] = {}
    for split in filter(None, map(_SPLIT.match, paths)):
        parts.setdefault((split["stem"], int(split["count"])), set()).add(int(split["part"]))
    for (stem, count), have in parts.items():
        absent = set(range(1, count + 1)) - have
        if absent:
            raise NoChoice(f"part {min(absent)} of {count} of {stem} is missing there", paths)

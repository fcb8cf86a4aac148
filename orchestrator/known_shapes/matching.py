"""Recognising a model in a text: whole words in a row, sizes that agree, and nothing that only builds on it.

`Qwen3-8B` is found in `Qwen/Qwen3-8B-FP8` and in `Medical_Qwen3_8B`, not in `Qwen3-80B`, in
`Qwen3-8B-DFlash` (a drafter) or in `Qwen3-VL-8B`. A version left open (`Qwen3.x-27B`) is found where all
models it may mean have one shape.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.known_shapes import Known

_WORD = re.compile(r"[a-z]+[0-9]+(?:\.[0-9x]+)*|[0-9]+(?:\.[0-9x]+)*[a-z]*|[a-z]+")
_SIZE = re.compile(r"a?\d+(?:\.\d+)?[bmt]|\d+x\d+b")
_CHUNK = re.compile(r"[\s/()\[\],:;+]+")
_OTHER = frozenset(
    {
        "assistant", "audio", "base64", "distill", "distilled", "dflash", "dflash2", "draft", "drafter", "dspark",
        "eagle", "eagle2", "eagle3", "embedding", "embeddings", "guard", "lora", "omni", "pruned", "reap", "rerank",
        "reranker", "reward", "speculator", "tts", "vision", "vl",
    }
)  # fmt: skip
"""Words after a model's name, in the same name, that make it another model."""


_CONTEXTS = frozenset({"1m", "2m"})
"""Lengths of context that look like sizes: `Qwen2.5-7B-Instruct-1M`."""


def words(text: str) -> tuple[str, ...]:
    """`Llama-3_1-8B` as (`llama`, `3`, `1`, `8b`), `Qwen3.8-27B` as (`qwen3.8`, `27b`)."""
    return tuple(_WORD.findall(text.lower().replace("_", "-")))


Names = Sequence[tuple["Known", tuple[str, ...]]]
"""Every name of every model, in words."""


def names_of(models: Sequence[Known]) -> Names:
    """What `match` looks for."""
    return [(model, words(name)) for model in models for name in model.names]


def match(text: str, names: Names) -> Known | None:
    """The one model that a text names, or None."""
    best: list[Known] = []
    rank = (0, 0)
    chunks = [words(chunk) for chunk in _CHUNK.split(text)]
    everything = words(text)
    present = set(everything)
    open_version = any(".x" in word for word in present)
    for model, wanted in names:
        if not open_version and not present.issuperset(wanted):
            continue
        at = _named(wanted, chunks, everything, model)
        if at is None or (len(wanted), -at) < rank:
            continue  # the longest name wins, then the one that is named first
        if (len(wanted), -at) > rank:
            best, rank = [], (len(wanted), -at)
        if model not in best:
            best.append(model)
    if not best or any(model.shape != best[0].shape for model in best):
        return None
    return best[0]


def _named(
    wanted: tuple[str, ...], chunks: Sequence[tuple[str, ...]], everything: tuple[str, ...], model: Known
) -> int | None:
    """At which part of the text a name stands; None when it does not."""
    for position, chunk in enumerate(chunks):
        at = _within(wanted, chunk)
        if at is not None:
            return None if _contradicted(chunk, wanted, at, model) else position
    at = _within(wanted, everything)  # a name in several words: `gemma 3 27b`
    return None if at is None or _contradicted(everything, wanted, at, model) else len(chunks)


def _contradicted(chunk: tuple[str, ...], wanted: tuple[str, ...], at: int, model: Known) -> bool:
    """Whether the rest of the name says that it is another model: other sizes, or what is made from it."""
    after = chunk[at + len(wanted) :]
    if any(word in _OTHER for word in after):
        return True
    mine = set(wanted) | model.tags | {word for name in model.names for word in words(name)}
    rest = chunk[:at] + after
    return any(_SIZE.fullmatch(word) and word not in mine and word not in _CONTEXTS for word in rest)


def _within(wanted: tuple[str, ...], have: tuple[str, ...]) -> int | None:
    for at in range(len(have) - len(wanted) + 1):
        if all(_same(want, got) for want, got in zip(wanted, have[at : at + len(wanted)], strict=True)):
            return at
    return None


def _same(want: str, got: str) -> bool:
    if want == got:
        return True
    if ".x" not in got:
        return False
    return re.fullmatch(re.escape(got).replace(r"\.x", r"\.\d+"), want) is not None

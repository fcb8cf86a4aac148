"""What somebody wants of a plan: the command line's `--what-if`, the model's entry, the host's defaults."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError
from orchestrator.kinds import KvType
from orchestrator.models import ModelEntry, Ngram, Runtime
from orchestrator.plan import Method

if TYPE_CHECKING:
    from orchestrator.config import EngineDefaults


@dataclass(frozen=True, slots=True)
class Preferences:
    """Wishes; None has none. `method` None means: the best that works."""

    context: int | None = None
    parallel: int | None = None
    threads: int | None = None
    method: Method | None = None
    draft_tokens: int | None = None
    drafter: str | None = None
    variant: str | None = None
    runtime: Runtime | None = None
    image: str | None = None
    kv: KvType | None = None
    attention_backend: str | None = None
    """vLLM's name, such as FLASH_ATTN."""
    ngram: Ngram | None = None
    tensor_parallel: int | None = None
    batch: int | None = None

    @classmethod
    def from_what_if(cls, given: Mapping[str, Any] | None) -> Preferences:
        """Read `--what-if` pairs (values as text or JSON). Raises `UsageError` naming the key.

        >>> Preferences.from_what_if({"ctx": "65536", "parallel": 8}).context
        65536
        """
        values: dict[str, Any] = {}
        for key, value in (given or {}).items():
            name = _SHORT.get(key, key)
            reader = _READERS.get(name)
            if reader is None:
                raise UsageError(f"what-if: {key!r} is unknown", hint=f"one of {', '.join(sorted(_READERS))}")
            if name in values:
                raise UsageError(f"what-if: {name!r} is given twice", hint=f"{key} is another word for it")
            values[name] = _read(key, value, reader)
        return cls(**values)

    @classmethod
    def of(cls, entry: ModelEntry) -> Preferences:
        """The wishes in a model's own definition."""
        spec = entry.speculation
        return cls(
            context=entry.context,
            parallel=entry.parallel,
            threads=entry.threads,
            method=None if spec.method == "auto" else spec.method,
            draft_tokens=spec.draft_tokens,
            drafter=spec.drafter,
            variant=entry.variant,
            runtime=entry.runtime,
            image=entry.image,
            kv=entry.kv,
            attention_backend=entry.attention_backend,
            ngram=spec.ngram,
            tensor_parallel=entry.tensor_parallel,
            batch=entry.batch,
        )

    @classmethod
    def of_host(cls, defaults: EngineDefaults) -> Preferences:
        """The wishes of a host for models that say nothing."""
        return cls(context=defaults.context, parallel=defaults.parallel, threads=defaults.threads, image=defaults.image)

    def over(self, other: Preferences) -> Preferences:
        """These wishes, and where there is none, the other's."""
        return Preferences(
            **{
                name: mine if (mine := getattr(self, name)) is not None else getattr(other, name)
                for name in self.__dataclass_fields__
            }
        )


def _read(key: str, value: Any, reader: Any) -> Any:
    """A value, by a function or by the words that may stand there. Raises `UsageError` with what may."""
    if callable(reader):
        try:
            return reader(value)
        except ValueError as error:
            raise UsageError(f"what-if: {key}={value!r} is no good: {error}") from error
    word = str(value).lower()
    word = _SAME.get(word, word)
    if word not in reader:
        near = difflib.get_close_matches(word, reader, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"what-if: {key}={value!r} is unknown", hint=f"{meant}(one of {', '.join(reader)})")
    return reader[word]


def _count(value: Any) -> int:
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 1 << 31:
        raise ValueError("a whole number above 0 is needed")
    return number


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a name is needed")
    return value


_SHORT = {
    "ctx": "context",
    "np": "parallel",
    "k": "draft_tokens",
    "spec": "method",
    "attention": "attention_backend",
    "tp": "tensor_parallel",
}
_SAME = {"bf16": "bfloat16", "fp16": "f16", "float16": "f16", "llamacpp": "llama.cpp", "llama-cpp": "llama.cpp"}
"""What people and engines write for the same thing."""
_READERS: Mapping[str, Any] = {
    "context": _count,
    "parallel": _count,
    "threads": _count,
    "draft_tokens": _count,
    "method": {**{m.value: m for m in Method}, "auto": None},
    "drafter": _name,
    "variant": _name,
    "runtime": {r.value: r for r in Runtime},
    "image": _name,
    "kv": {k.value: k for k in KvType},
    "attention_backend": _name,
    "tensor_parallel": _count,
    "batch": _count,
}

"""What somebody wants of a plan: the command line's `--what-if`, the model's entry, the host's defaults."""

from __future__ import annotations

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
            try:
                values[name] = reader(value)
            except (TypeError, ValueError) as error:
                raise UsageError(f"what-if: {key}={value!r} is no good: {error}") from error
        if values.get("method") == "auto":
            values["method"] = None
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


def _count(value: Any) -> int:
    number = int(value) if isinstance(value, str) else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 1 << 31:
        raise ValueError("a whole number above 0 is needed")
    return number


def _method(value: Any) -> Method | str:
    return "auto" if value == "auto" else Method(value)


_SHORT = {
    "ctx": "context",
    "np": "parallel",
    "k": "draft_tokens",
    "spec": "method",
    "attention": "attention_backend",
    "tp": "tensor_parallel",
}
_READERS: Mapping[str, Any] = {
    "context": _count,
    "parallel": _count,
    "threads": _count,
    "draft_tokens": _count,
    "method": _method,
    "drafter": str,
    "variant": str,
    "runtime": Runtime,
    "image": str,
    "kv": KvType,
    "attention_backend": str,
    "tensor_parallel": _count,
    "batch": _count,
}

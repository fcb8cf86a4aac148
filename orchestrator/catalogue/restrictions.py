"""What is known to go wrong, as data: which launches a known bug or limit of an engine concerns, and what follows.

A restriction speaks about a `Situation`; everything that it names must hold, what it does not name does not matter.
Pure.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from orchestrator.catalogue.versions import VersionRange, in_range
from orchestrator.kinds import Backend, KvType
from orchestrator.models import Format, Frozen, Runtime
from orchestrator.plan import Method
from orchestrator.settings import Settings


@dataclass(frozen=True, slots=True)
class Situation:
    """A launch that is being considered. Unknown is None: a restriction that names it does not hold then,
    except for the version, of which the worst is assumed."""

    runtime: Runtime
    model: str
    method: Method
    version: str | None = None
    image: str = ""
    backend: Backend | None = None
    arch: str | None = None
    architecture: str | None = None
    """The model's, in its file's words: `Qwen3_5ForConditionalGeneration`, `qwen35`."""
    drafter: str = ""
    format: Format | None = None
    quantisation: str | None = None
    hybrid: bool | None = None
    """Whether the model has recurrent layers."""
    mla: bool | None = None
    moe: bool | None = None
    unified: bool | None = None
    kv: KvType | None = None
    attention_backend: str | None = None
    prefix_caching: bool | None = None
    eager: bool | None = None
    context: int | None = None
    parallel: int | None = None
    draft_tokens: int | None = None
    batch: int | None = None
    tensor_parallel: int = 1
    memory: int | None = None
    """Bytes of all its devices together."""


Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{1,62}$")]
"""What an entry without a name of its own is called, so that a user's file can replace or drop it."""


class Limits(Frozen):
    """The most that is safe."""

    context: int | None = Field(default=None, gt=0)
    parallel: int | None = Field(default=None, gt=0)
    draft_tokens: int | None = Field(default=None, gt=0)
    batch: int | None = Field(default=None, gt=0)


class Restriction(Frozen):
    """One known bug or limit: where it holds, what follows from it, who says so.

    `refuse`: such a launch is not made. `limit`: not above `limits`. `set`: with these `settings` it is safe.
    `warn`: the plan carries a reason, nothing else. Patterns are file-name patterns; an empty tuple names nothing.
    """

    id: Identifier
    runtime: Runtime
    effect: Literal["refuse", "limit", "set", "warn"]
    versions: VersionRange | None = None
    image: str = "*"
    model: str = "*"
    architecture: str | None = None
    other_architecture: str | None = None
    """Any architecture but these; one that is not known does not count."""
    drafter: str | None = None
    backend: tuple[Backend, ...] = ()
    arch: tuple[str, ...] = ()
    methods: tuple[Method, ...] = ()
    format: Format | None = None
    quantisation: str | None = None
    kv: tuple[KvType, ...] = ()
    attention_backend: tuple[str, ...] = ()
    hybrid: bool | None = None
    mla: bool | None = None
    moe: bool | None = None
    unified: bool | None = None
    prefix_caching: bool | None = None
    eager: bool | None = None
    tensor_parallel_above: int | None = Field(default=None, ge=1)
    parallel_above: int | None = Field(default=None, ge=1)
    draft_tokens_above: int | None = Field(default=None, ge=0)
    context_above: int | None = Field(default=None, ge=1)
    batch_above: int | None = Field(default=None, ge=1)
    memory_below: int | None = Field(default=None, ge=1)
    """Bytes: all devices together have less."""
    limits: Limits = Limits()
    settings: Settings = Settings()
    text: str
    """What happens, and what to do instead: a sentence for a person."""
    source: str
    date: dt.date
    expires: dt.date | None = None

    @model_validator(mode="after")
    def _says_what_follows(self) -> Restriction:
        if self.effect == "limit" and self.limits == Limits():
            raise ValueError("effect 'limit' needs [limits]")
        if self.effect == "set" and self.settings == Settings():
            raise ValueError("effect 'set' needs [settings]")
        return self

    def holds(self, seen: Situation) -> bool:
        """Whether it speaks about this launch."""
        if self.runtime is not seen.runtime or not (seen.version is None or in_range(seen.version, self.versions)):
            return False
        named: tuple[tuple[object, object], ...] = (
            (self.format, seen.format), (self.hybrid, seen.hybrid), (self.mla, seen.mla), (self.moe, seen.moe),
            (self.unified, seen.unified), (self.prefix_caching, seen.prefix_caching), (self.eager, seen.eager),
        )  # fmt: skip
        if any(want is not None and want != have for want, have in named):
            return False
        among: tuple[tuple[tuple[object, ...], object], ...] = (
            (self.backend, seen.backend), (self.methods, seen.method), (self.kv, seen.kv),
            (self.attention_backend, seen.attention_backend),
        )  # fmt: skip
        if any(want and have not in want for want, have in among):
            return False
        if self.arch and not (seen.arch and any(fnmatchcase(seen.arch, pattern) for pattern in self.arch)):
            return False
        patterns = (
            (self.image, seen.image), (self.model, seen.model), (self.architecture, seen.architecture),
            (self.quantisation, seen.quantisation), (self.drafter, seen.drafter),
        )  # fmt: skip
        if self.other_architecture is not None and (
            seen.architecture is None or fnmatchcase(seen.architecture, self.other_architecture)
        ):
            return False
        if any(want is not None and not fnmatchcase(have or "", want) for want, have in patterns):
            return False
        if self.memory_below is not None and (seen.memory is None or seen.memory >= self.memory_below):
            return False
        above = (
            (self.tensor_parallel_above, seen.tensor_parallel), (self.parallel_above, seen.parallel),
            (self.draft_tokens_above, seen.draft_tokens), (self.context_above, seen.context),
            (self.batch_above, seen.batch),
        )  # fmt: skip
        return not any(bound is not None and (have is None or have <= bound) for bound, have in above)


def holding(restrictions: Iterable[Restriction], seen: Situation) -> tuple[Restriction, ...]:
    """Those that speak about a launch, in their order."""
    return tuple(r for r in restrictions if r.holds(seen))

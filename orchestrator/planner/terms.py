"""On what terms a candidate may be launched: what known bugs and limits refuse, limit and settle, and why. Pure.

A person's wish wins over a known combination, and that over a restriction's settings; a wish that a restriction
refuses is refused, for the engine would not start or not be right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.catalogue.restrictions import Limits, Restriction, Situation, holding
from orchestrator.kinds import KvType
from orchestrator.models import Runtime
from orchestrator.plan import Reason
from orchestrator.planner.candidates import Candidate
from orchestrator.planner.wishes import Preferences
from orchestrator.settings import Settings

_ANY = 1 << 40
"""Above every bound that a restriction may name."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a candidate is sized to. None is not settled yet; what speaks about it does not hold then."""

    context: int | None = None
    parallel: int | None = None
    draft_tokens: int | None = None
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What a candidate must keep to. `limits` carry the restriction that set each of them."""

    settings: Settings
    limits: tuple[tuple[Restriction, Limits], ...] = ()
    reasons: tuple[Reason, ...] = ()
    refused: Restriction | None = None
    sized: tuple[Restriction, ...] = ()
    """Those that speak about sizes: they are asked again for each size."""
    overridden: bool = False
    """Whether a wish stands against what a restriction would settle."""

    def most(self, what: str) -> tuple[int, Restriction] | None:
        """The lowest limit of `context`, `parallel`, `draft_tokens` or `batch`, and who set it."""
        found = [(bound, r) for r, limits in self.limits if (bound := getattr(limits, what)) is not None]
        return min(found, key=lambda pair: pair[0], default=None)


Known = tuple[tuple[Restriction, Restriction], ...]
"""Restrictions, each with what it says without the settings that are yet to be settled."""


def prepared(restrictions: Iterable[Restriction]) -> Known:
    """For `applicable`, once for all candidates."""
    return tuple((r, _bare(r)) for r in restrictions)


def _bare(r: Restriction) -> Restriction:
    unsettled = {"kv": (), "attention_backend": (), "prefix_caching": None, "eager": None}
    if all(getattr(r, name) == value for name, value in unsettled.items()):
        return r
    return r.model_copy(update=unsettled)


def applicable(known: Known, candidate: Candidate) -> tuple[Restriction, ...]:
    """Those that could hold for this candidate at some size and with some settings: a short list for `settle`."""
    image, method = candidate.image, candidate.method
    near = [
        (r, bare)
        for r, bare in known
        if r.runtime is image.runtime
        and (not r.methods or method in r.methods)
        and (not r.backend or image.backend in r.backend)
    ]
    if not near:
        return ()
    seen = situation(candidate, Settings(), Size(_ANY, _ANY, _ANY, _ANY))
    return tuple(r for r, bare in near if bare.holds(seen))


def settle(candidate: Candidate, wish: Preferences, known: Sequence[Restriction], size: Size) -> Terms:
    """The terms at this size. `known` are `applicable` ones."""
    wished = Settings(kv=wish.kv, attention_backend=wish.attention_backend, batch=wish.batch)
    settings = wished.over(_of_combination(candidate, wish))
    applied: dict[str, Restriction] = {}
    held = holding(known, situation(candidate, settings, size))
    for _ in range(len(known)):
        new = [r for r in held if r.effect == "set" and r.id not in applied]
        if not new:
            break
        for r in new:
            applied[r.id] = r
            settings = settings.over(r.settings)
        held = holding(known, situation(candidate, settings, size))
    refused = next((r for r in held if r.effect == "refuse"), None)
    limits = tuple((r, r.limits) for r in held if r.effect == "limit")
    reasons = [_set_reason(r, settings) for r in applied.values()]
    overridden = any(_other(r, settings) for r in applied.values())
    reasons += [Reason(r.id, r.text, r.source) for r in held if r.effect == "warn"]
    about_size = tuple(r for r in known if _speaks_of_size(r))
    return Terms(settings, limits, tuple(reasons), refused, about_size, overridden)


def refuses(terms: Terms, candidate: Candidate, size: Size) -> Restriction | None:
    """Who refuses this size, of those that speak about sizes."""
    if not terms.sized:
        return None
    held = holding(terms.sized, situation(candidate, terms.settings, size))
    return next((r for r in held if r.effect == "refuse"), None)


def kv_of(candidate: Candidate, settings: Settings) -> KvType:
    """What the KV cache is stored as: what was settled, else the runtime's own 16-bit type."""
    if settings.kv is not None:
        return settings.kv
    return KvType.F16 if candidate.image.runtime is Runtime.LLAMA_CPP else KvType.BF16


def prefix_caching_of(candidate: Candidate, settings: Settings) -> bool:
    """Whether prompts' beginnings are kept: what was settled, else not for hybrids, whose state is no cache of
    tokens (vLLM keeps it twice then)."""
    if settings.prefix_caching is not None:
        return settings.prefix_caching
    return candidate.shape is None or not candidate.shape.linear_layers


def situation(candidate: Candidate, settings: Settings, size: Size) -> Situation:
    """The launch as restrictions see it. An attention backend counts only where somebody settled it."""
    image, shape, device, file = candidate.image, candidate.shape, candidate.device, candidate.target
    return Situation(
        runtime=image.runtime,
        model=candidate.model,
        method=candidate.method,
        version=image.least_version,
        image=image.name,
        drafter="" if candidate.drafter is None else candidate.drafter.name,
        backend=image.backend,
        arch="cpu" if device is None else device.arch,
        architecture=None if file is None else file.architecture,
        format=candidate.variant.format,
        quantisation=candidate.variant.quantisation,
        hybrid=None if shape is None else shape.linear_layers > 0,
        mla=None if shape is None else shape.kv_lora_rank is not None,
        moe=None if shape is None or shape.experts is None else shape.experts > 1,
        unified=None if device is None else device.unified,
        kv=kv_of(candidate, settings),
        attention_backend=settings.attention_backend,
        prefix_caching=prefix_caching_of(candidate, settings),
        eager=bool(settings.eager),
        context=size.context,
        parallel=size.parallel,
        draft_tokens=size.draft_tokens,
        batch=size.batch,
        tensor_parallel=candidate.tensor_parallel,
        memory=None if device is None or not device.memory_total else candidate.tensor_parallel * device.memory_total,
    )


def _of_combination(candidate: Candidate, wish: Preferences) -> Settings:
    """Its KV type and attention backend: a pair, of which neither says anything beside another one than its own."""
    known = candidate.known
    if known is None:
        return Settings()
    own = kv_of(candidate, Settings(kv=known.kv))
    if wish.kv not in (None, own):
        return Settings()
    return Settings(kv=known.kv, attention_backend=known.attention_backend)


def _set_reason(r: Restriction, settings: Settings) -> Reason:
    """What was settled; and where a wish stood against it, that the wish stands."""
    other = _other(r, settings)
    kept = "" if not other else f" (not taken over: {', '.join(other)}, for something else was asked for or is known)"
    return Reason(r.id, f"{r.text}{kept}", r.source)


def _other(r: Restriction, settings: Settings) -> list[str]:
    """What a restriction would settle, and something that comes before it settled otherwise."""
    return [
        name
        for name in type(r.settings).model_fields
        if name != "env" and (asked := getattr(r.settings, name)) is not None and asked != getattr(settings, name)
    ]


def _speaks_of_size(r: Restriction) -> bool:
    bounds = (r.parallel_above, r.draft_tokens_above, r.context_above, r.batch_above)
    return any(bound is not None for bound in bounds)

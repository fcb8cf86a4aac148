"""What a fitted candidate is worth: the speed that is expected of it at the concurrency asked for. Pure.

    speed alone x what batching makes of it x the method's gain there x room for context x trust x quality

What this host has measured comes before what is known of the combination, and that before priors (`priors.toml`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.measured import Measured, Ran, Speed
from orchestrator.plan import Evidence, Method
from orchestrator.planner import priors
from orchestrator.planner.candidates import Candidate
from orchestrator.planner.priors import Seen

UNTRIED, REPORTED, PROVEN_BEFORE = 0.8, 0.85, 0.9
"""What expected speed is multiplied with where nobody is known to have run the combination: it may not work, and is
tried all the same; where the catalogue has a report of it without a proof; where another version was proven."""
PLAIN, PLAIN_REPORTED = 0.95, 0.85
"""The same without speculation: what loads the weights and decodes them seldom fails, unless a report says that it is
untried."""
NEAR = 1.5
"""Weights that are up to this much larger than a model's smallest decode as fast: kernels decide there (19.5 GB W4A16
on vLLM 45.5 tok/s, 17.9 GB Q4_K_XL on llama.cpp 43.9 on one RTX 3090). Beyond it, bytes do: decoding reads them all."""
EACH_DOUBLING = 0.85
"""What is left where twice the devices are taken that something else does with, at a usual context: another model could
have them."""
AGAINST_ADVICE = 0.6
"""What is left where a wish stands against settings that are known to be needed: 74 of 132 tok/s for DFlash2 with an
fp8 KV cache on two RTX 3090 (club-3090 @4a29ab57 BENCHMARKS.md)."""
TIGHT = 8192
"""A context below this is taken only where nothing that can be given up unasked makes it longer."""
SCHEDULED = 0.9
"""What is left above the crossover where the engine itself stops drafting there: the drafter still takes memory, and
the switch has been seen to fail (vllm#49548)."""


@dataclass(frozen=True, slots=True)
class Sized:
    """What scoring looks at: a candidate, its context, and whether its engine stops drafting by itself."""

    candidate: Candidate
    context: int
    asked_context: bool
    scheduled: bool
    overridden: bool = False
    lightest: int | None = None
    """Bytes of the smallest weights of this model that are no worse than usual."""
    fewest: int = 1
    """Devices that the most frugal plan with a usual context takes."""
    engine_proven: bool = False
    """Whether the same engine with these weights is proven on this device, with whatever method."""


def moe(candidate: Candidate) -> bool:
    """Whether few of many experts are active."""
    return candidate.shape is not None and (candidate.shape.experts or 0) > 1


def seen(candidate: Candidate) -> Seen:
    """What priors are looked up by."""
    image, device = candidate.image, candidate.device
    arch = "cpu" if device is None else device.arch or "unknown"
    return Seen(image.runtime, image.backend, arch, moe(candidate), candidate.method)


def ran(candidate: Candidate) -> Ran:
    """What a measurement of this candidate is filed under."""
    device = candidate.device
    return Ran(
        model=candidate.model,
        variant=candidate.variant.name,
        runtime=candidate.image.runtime.value,
        version=candidate.image.version,
        arch="cpu" if device is None else device.arch or "unknown",
        method=candidate.method,
        drafter=None if candidate.drafter is None else candidate.drafter.name,
    )


def gain(candidate: Candidate) -> tuple[float, int | None]:
    """The method's gain at one request and its crossover: the combination's word, else the prior's. Without
    speculation it is what the combination says of this runtime next to others."""
    known = candidate.known
    if candidate.method is Method.NONE:
        return 1.0 if known is None else known.gain or 1.0, None
    prior = priors.gain(seen(candidate))
    if known is None:
        return prior.gain, prior.crossover
    return known.gain or prior.gain, known.crossover or prior.crossover


def gain_at(candidate: Candidate, concurrency: int, *, scheduled: bool) -> float:
    """The method's gain at so many requests."""
    alone, crossover = gain(candidate)
    there = priors.at(alone, crossover, concurrency)
    return max(there, SCHEDULED) if scheduled and alone > 1 else there


def batched(candidate: Candidate, concurrency: int) -> float:
    """What all requests together decode next to one alone on one device."""
    shared = priors.sharing(seen(candidate)).factor(candidate.tensor_parallel)
    return priors.batching(seen(candidate)).factor(max(concurrency, 1)) * shared


def alone(sized: Sized) -> float:
    """Expected speed of one request without any measurement, next to llama.cpp without speculation."""
    candidate = sized.candidate
    return candidate.image.speed * gain(candidate)[0] * lightness(candidate, sized.lightest)


def lightness(candidate: Candidate, lightest: int | None) -> float:
    """What is left of the speed with heavier weights than the lightest."""
    if lightest is None or not candidate.weights:
        return 1.0
    return min(1.0, NEAR * lightest / candidate.weights)


def lightest(candidates: Iterable[Candidate]) -> int | None:
    """Bytes of the smallest of these weights that are no worse than usual."""
    sizes = [c.weights for c in candidates if c.weights and priors.quality(c.variant.quantisation) >= 1]
    return min(sizes, default=None)


def units(everything: Iterable[Sized], measured: Measured) -> float:
    """Tokens a second that a score of 1 means for this model here, by what was measured; 1 where nothing was."""
    logs = []
    for sized in everything:
        speed = measured.speed.get(ran(sized.candidate))
        if speed is not None and speed.tokens_s > 0:
            logs.append(math.log(speed.tokens_s / alone(sized)))
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def score(sized: Sized, concurrency: int, speed: Speed | None, unit: float) -> float:
    """Expected speed of all requests together, next to one request on llama.cpp without speculation."""
    candidate = sized.candidate
    there = gain_at(candidate, concurrency, scheduled=sized.scheduled) / gain(candidate)[0]
    base = alone(sized) if speed is None else speed.tokens_s / unit
    worth = 1.0 if speed is not None else _trust(sized)
    if sized.overridden:
        worth *= AGAINST_ADVICE
    if candidate.tensor_parallel > sized.fewest:
        worth *= math.pow(EACH_DOUBLING, math.log2(candidate.tensor_parallel / sized.fewest))
    return base * there * batched(candidate, concurrency) * _room(sized) * worth * _quality(candidate)


def _quality(candidate: Candidate) -> float:
    return priors.quality(candidate.variant.quantisation)


def _trust(sized: Sized) -> float:
    candidate = sized.candidate
    known = candidate.known
    if candidate.evidence is Evidence.PROVEN:
        return 1.0
    before = known is not None and known.evidence is Evidence.PROVEN
    if candidate.method is Method.NONE:
        if sized.engine_proven:
            return 1.0
        return PLAIN if known is None or before else PLAIN_REPORTED
    return UNTRIED if known is None else PROVEN_BEFORE if before else REPORTED


def _room(sized: Sized) -> float:
    if sized.asked_context:
        return 1.0
    longest = None if sized.candidate.shape is None else sized.candidate.shape.max_context
    return 1.0 if longest is not None and sized.context >= longest else priors.room(sized.context)


def load_s(candidate: Candidate, measured: Mapping[Ran, float], prior: float) -> float:
    """Seconds until it is ready: measured here, else usual. A tie-break only."""
    return measured.get(ran(candidate), prior)

"""The order of what could be launched, and the sentence that says why something stands where it stands. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.measured import Measured, Speed
from orchestrator.plan import Evidence, Method, Plan, Reason
from orchestrator.planner import priors
from orchestrator.planner.building import has_schedule
from orchestrator.planner.candidates import AUTO
from orchestrator.planner.fitting import Fitted
from orchestrator.planner.placing import ROOMY, cramped
from orchestrator.planner.scoring import Sized, gain_at, lightest, load_s, ran, score, seen, units
from orchestrator.planner.wishes import Preferences
from orchestrator.runtimes import adapter

Built = tuple[Fitted, Plan]


@dataclass(frozen=True, slots=True)
class Ranking:
    """By what plans of one model on one host are ordered."""

    wish: Preferences
    measured: Measured
    variants: Mapping[str, int]
    lightest: int | None
    proven: frozenset[tuple[object, ...]]
    """Engines that are proven with whatever method: image, weights and kind of device."""
    fewest: int
    unit: float = 1.0
    """See `scoring.units`."""

    @classmethod
    def of(cls, built: Sequence[Built], wish: Preferences, measured: Measured, variants: Mapping[str, int]) -> Ranking:
        """The order of these."""
        proven = frozenset(_engine(f) for f, _ in built if f.candidate.evidence is Evidence.PROVEN)
        roomy = [f.candidate.tensor_parallel for f, _ in built if not cramped(f, wish)]
        most = max((f.candidate.tensor_parallel for f, _ in built), default=1)  # where all are cramped, none is frugal
        made = cls(wish, measured, variants, lightest(f.candidate for f, _ in built), proven, min(roomy, default=most))
        return replace(made, unit=units((made._sized(*pair) for pair in built), measured))

    @property
    def concurrency(self) -> int:
        """Requests at once that speed is judged at: what was asked for; one where nobody says."""
        return self.wish.parallel or 1

    def speed(self, fitted: Fitted) -> Speed | None:
        """What this host measured of it."""
        return self.measured.speed.get(ran(fitted.candidate))

    def score(self, fitted: Fitted, plan: Plan, *, measured: bool = True) -> float:
        """See `scoring.score`; not `measured`: as if nothing had been."""
        speed = self.speed(fitted) if measured else None
        return score(self._sized(fitted, plan), self.concurrency, speed, self.unit)

    def _sized(self, fitted: Fitted, plan: Plan) -> Sized:
        return Sized(
            fitted.candidate,
            plan.context,
            self.wish.context is not None,
            has_schedule(fitted),
            fitted.overridden,
            self.lightest,
            self.fewest,
            _engine(fitted) in self.proven,
        )

    def key(self, fitted: Fitted, plan: Plan) -> tuple[object, ...]:
        """What can start now before what must be fetched first; then the score; the rest makes the order total."""
        candidate = fitted.candidate
        missing = candidate.target is None or (candidate.drafter is not None and candidate.drafter_file is None)
        methods = (*AUTO, Method.NONE, Method.NGRAM)
        backend, arch = candidate.image.backend, None if candidate.device is None else candidate.device.arch
        prior = adapter(candidate.image.runtime).load_prior_s(plan.expected_memory.weights, backend, arch)
        return (
            missing,
            candidate.evidence is Evidence.REFUTED,
            -round(self.score(fitted, plan), 6),
            -round(self.score(fitted, plan, measured=False), 6),
            candidate.tensor_parallel,
            self.variants[candidate.variant.name],
            load_s(candidate, self.measured.load_s, prior),
            methods.index(candidate.method),
            candidate.image.name,
            "" if candidate.drafter is None else candidate.drafter.name,
            tuple(device.pci for device in candidate.devices),
        )

    def told(self, built: Sequence[Built]) -> list[Built]:
        """The plans, best first, each with the reason for its place."""
        if not built:
            return []
        best = self.score(*built[0])
        fitted, plan = built[0][0], self._with(built[0], self._best(built))
        first = [(fitted, replace(plan, reasons=(*plan.reasons, *self._longer(built))))]
        return first + [(pair[0], self._with(pair, self._next(pair, best))) for pair in built[1:]]

    def _with(self, pair: Built, text: str) -> Plan:
        fitted, plan = pair
        reasons = [Reason("ranked", text)]
        speed = self.speed(fitted)
        if speed is not None:
            text = f"{speed.tokens_s:.1f} tokens a second of one request were measured here ({speed.seen})"
            reasons.append(Reason("speed_measured", text))
        if fitted.candidate.method not in (Method.NONE, Method.NGRAM):
            reasons.append(self._gain(fitted))
        return replace(plan, reasons=(*plan.reasons, *reasons))

    def _best(self, built: Sequence[Built]) -> str:
        others = len(built) - 1
        if not others:
            return "nothing else that was asked for fits"
        return f"the fastest to be expected {self._there()} of {others + 1} that could be launched"

    def _next(self, pair: Built, best: float) -> str:
        share = self.score(*pair) / best if best else 1.0
        candidate = pair[0].candidate
        if candidate.target is None and share > 1:
            return "its weights would have to be fetched first"
        return f"{share:.0%} of the chosen plan's worth {self._there()} (speed, room and evidence)"

    def _longer(self, built: Sequence[Built]) -> Iterator[Reason]:
        """Where the best has little context: what has more of it, and how to ask for that."""
        fitted, plan = built[0]
        if not cramped(fitted, self.wish):
            return
        enough = min(ROOMY, fitted.candidate.shape.max_context or ROOMY) if fitted.candidate.shape else ROOMY
        longer = [pair for pair in built[1:] if pair[1].context > plan.context]
        other = next((pair for pair in longer if pair[1].context >= enough), next(iter(longer), None))
        if other is None:
            return
        share = self.score(*other) / self.score(fitted, plan)
        named, context = other[1], min(other[1].context, enough)
        with_method = f"with {named.method}" if named.method is not Method.NONE else "without speculation"
        yield Reason(
            "little_context",
            f"{plan.context} tokens are little for agents; {named.runtime} {named.variant} {with_method} holds"
            f" {named.context} at {share:.0%} of the worth: `outrider plan {plan.model} --what-if context={context}`",
            priors.shipped().room.source,
        )

    def _there(self) -> str:
        return "for one request" if self.concurrency == 1 else f"at {self.concurrency} requests at once"

    def _gain(self, fitted: Fitted) -> Reason:
        """What drafting is expected to bring at this concurrency, and who says so."""
        candidate = fitted.candidate
        known = candidate.known if candidate.known is not None and candidate.known.gain is not None else None
        source = known.source if known is not None else priors.gain(seen(candidate)).source
        there = gain_at(candidate, self.concurrency, scheduled=has_schedule(fitted))
        text = f"{candidate.method} is expected to make {there:.2f} times the speed {self._there()}"
        return Reason("gain", text if known is not None else f"{text}, by a prior", source)


def _engine(fitted: Fitted) -> tuple[object, ...]:
    candidate = fitted.candidate
    arch = None if candidate.device is None else candidate.device.arch
    return candidate.image.name, candidate.variant.name, arch

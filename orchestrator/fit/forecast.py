"""A row's forecast: sizes in the row's own field names, a verdict, and what all of it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.fit import engines, verdict, words
from orchestrator.fit.demanding import Understood, understand
from orchestrator.fit.rows import GIB, Row
from orchestrator.plan import Reason


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a row takes. `figures` hold sizes in GiB and counts, only those that are known."""

    row: Row
    verdict: verdict.Verdict
    reasons: tuple[Reason, ...]
    figures: Mapping[str, float | int]
    model: str | None = None
    """The known model that the text names."""
    quantisation: str | None = None
    exact: tuple[str, ...] = ()
    calibrated: tuple[str, ...] = ()
    assumed: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: the row's identity, figures, verdict, reasons, and what they rest on."""
        identity = {
            "id": self.row.id, "engine": self.row.engine, "engine_version": self.row.engine_version,
            "gpu": self.row.gpu, "model": self.row.model,
        }  # fmt: skip
        return {
            **{key: value for key, value in identity.items() if value is not None},
            "verdict": self.verdict.value,
            "reasons": [
                {key: value for key, value in (("code", r.code), ("text", r.text), ("source", r.source)) if value}
                for r in self.reasons
            ],
            **{key: _rounded(value) for key, value in self.figures.items()},
            "known_model": self.model,
            "quantisation": self.quantisation,
            "exact": list(self.exact),
            "calibrated": list(self.calibrated),
            "assumed": dict(self.assumed),
            "unknown": dict(self.unknown),
            "sources": dict(self.sources),
            "ignored": list(self.row.ignored),
        }


def _rounded(value: float | int) -> float | int:
    return round(value, 4) if isinstance(value, float) else value


def in_gib(count: float) -> float:
    """Bytes as GiB."""
    return count / GIB


def fit(row: Row) -> Forecast:
    """What a row takes and whether it fits. Raises `RowError` for facts that contradict each other."""
    engine = words.engine(row.engine)
    if engine is None:
        judged = verdict.unknown([("engine", f"there are no formulas for {row.engine!r}")])
        return Forecast(row, judged.verdict, judged.reasons, {}, unknown={"engine": row.engine})
    runtime, fork = engine
    if row.engine_version is None:
        row = replace(row, engine_version=words.version(row.engine))
    understood = understand(row, runtime, fork)
    answered = engines.ANSWERS[runtime](understood)
    found = _forecast(understood, answered)
    if "tp" in understood.basis.assumed and found.verdict is verdict.Verdict.FITS:
        return _either_way(found, fit(replace(row, tp=1)))
    return found


def _either_way(shared: Forecast, alone: Forecast) -> Forecast:
    """It fits on all devices together. Where one alone would start and be too small, which of both it was decides."""
    if alone.verdict is not verdict.Verdict.TOO_BIG or alone.figures.get("available_gib", 0) <= 0:
        return shared
    judged = verdict.unknown([("tp", f"it fits where {shared.assumed['tp'].split(',')[0]} share it, and not on one")])
    return replace(shared, verdict=judged.verdict, reasons=judged.reasons)


def _forecast(understood: Understood, answered: engines.Answer) -> Forecast:
    basis, texts = understood.basis, understood.named
    figures = {name: value for name, value in answered.figures.items() if value is not None}
    reasons = answered.judged.reasons
    told = any(reason.code == "even_quantised" for reason in reasons)
    if understood.runtime.value != "llama.cpp" and "quant" in basis.assumed and not told:
        reasons += (Reason("quant_assumed", basis.assumed["quant"]),)
    return Forecast(
        row=understood.row,
        verdict=answered.judged.verdict,
        reasons=tuple(replace(r) for r in reasons),
        figures=figures,
        model=None if texts.known is None else texts.known.name,
        quantisation=None if texts.quantisation is None else str(texts.quantisation),
        exact=tuple(name for name in answered.exact if name in figures),
        calibrated=tuple(name for name in answered.calibrated if name in figures),
        assumed=basis.assumed,
        unknown=basis.unknown,
        sources=basis.sources,
    )

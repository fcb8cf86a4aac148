"""Whether it fits: `fits`, `too_big` or `unknown`, each with reasons. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.memory_fit import GIB, Estimate
from orchestrator.plan import Reason


class Verdict(StrEnum):
    """The answer."""

    FITS = "fits"
    TOO_BIG = "too_big"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict and why."""

    verdict: Verdict
    reasons: tuple[Reason, ...]


def gib(count: float) -> str:
    """`5.98 GiB`."""
    return f"{count / GIB:.2f} GiB"


def unknown(missing: Iterable[tuple[str, str]]) -> Judged:
    """Nothing can be said: what is missing, by code."""
    reasons = tuple(Reason(f"{code}_unknown", text) for code, text in missing)
    return Judged(Verdict.UNKNOWN, reasons or (Reason("unknown", "too little is known"),))


def pool(needed: int, available: Estimate, *, context: int, longest: int | None, kv_known: bool = True) -> Judged:
    """vLLM and SGLang: whether the pool that is left holds one sequence of the full length."""
    if available.mid <= 0:
        text = f"nothing is left for the KV cache: {gib(-available.mid)} short after weights and activation"
        return Judged(Verdict.TOO_BIG, (Reason("no_cache", text),))
    if not kv_known:
        return unknown([("kv_dtype", f"{gib(available.mid)} are left for a cache of unknown width")])
    text = f"a sequence of {context} tokens needs {gib(needed)} of KV cache, {gib(available.mid)} are left"
    if needed > available.mid:
        reasons = [Reason("kv_too_small", text)]
        if longest:
            reasons.append(Reason("max_len_estimate", f"about {longest} tokens would fit"))
        if needed <= available.high:
            reasons.append(Reason("close", f"between {gib(available.low)} and {gib(available.high)} may be left"))
        return Judged(Verdict.TOO_BIG, tuple(reasons))
    reasons = [Reason("kv_fits", text)]
    if needed > available.low:
        reasons.append(Reason("close", f"between {gib(available.low)} and {gib(available.high)} may be left"))
    return Judged(Verdict.FITS, tuple(reasons))


SINGLE_BUFFER = 4 * GIB
"""The largest single buffer that Vulkan drivers give, whatever is free; some give no more than half of it."""


def buffer(largest: float) -> tuple[Reason, ...]:
    """Why a driver would refuse a single buffer of that size with Vulkan; empty when it would not."""
    if largest <= SINGLE_BUFFER / 2:
        return ()
    text = f"a single compute buffer of {gib(largest)}"
    if largest > SINGLE_BUFFER:
        return (Reason("buffer_limit", f"{text}: Vulkan drivers give 4 GiB at most, however much is free"),)
    return (Reason("buffer_close", f"{text}: some Vulkan drivers give no more than 2 GiB"),)


TIGHT = GIB
"""What llama.cpp's own --fit keeps free on a device."""


def total(low: float, likely: float, high: float, usable: int, what: str = "the device") -> Judged:
    """llama.cpp: whether everything fits on the device. Too big is what is likelier to be too much than not, half of
    what is only estimated granted."""
    text = f"{gib(likely)} of {gib(usable)} on {what}"
    if (low + likely) / 2 > usable:
        return Judged(
            Verdict.TOO_BIG,
            (
                Reason("too_big", f"{text}: {gib(likely - usable)} too much"),
                Reason("partial_offload", "llama.cpp would leave layers to the CPU, and be slow"),
            ),
        )
    reasons = [Reason("fits", text)]
    if likely + TIGHT > usable or high > usable:
        reasons.append(
            Reason("tight", f"{gib(usable - likely)} stay free; llama.cpp itself keeps 1 GiB", "llama.cpp --fit")
        )
    return Judged(Verdict.FITS, tuple(reasons))

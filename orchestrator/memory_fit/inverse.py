"""The inverse: the largest context and parallelism that fit a budget, and what to give up first.

Forecasts grow with every one of these, so bisection over them is exact. The order of what to give up is that of the
best yield seen: llama.cpp slots (a hybrid's state is a slot's), drafted tokens, ubatch, context, KV type; vLLM
batched tokens, vision, running sequences, KV type, and context last, for its pool does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from orchestrator.kinds import KvType
from orchestrator.memory_fit.demand import DRAFTING, Demand
from orchestrator.memory_fit.forecasts import forecast
from orchestrator.models import Runtime
from orchestrator.plan import ExpectedMemory

STEP = 256
"""Contexts are multiples of it: llama.cpp pads to it, and it is a whole number of vLLM's blocks."""
LONGEST = 1 << 20
"""The context tried where the model says no longest one."""
MOST_PARALLEL = 256
LEAST_CONTEXT = 4096
LEAST_BATCH = {Runtime.LLAMA_CPP: 128, Runtime.VLLM: 2048, Runtime.SGLANG: 2048}


@dataclass(frozen=True, slots=True)
class Concession:
    """One thing given up, on top of those before it."""

    what: str
    """`parallel`, `draft_tokens`, `batch`, `vision`, `context` or `kv`."""
    before: str
    after: str
    frees: int
    """Bytes of the total on each device."""
    enough: bool
    """Whether the demand fits from here on."""
    demand: Demand


@dataclass(frozen=True, slots=True)
class Largest:
    """What a budget holds."""

    context: int | None
    """The longest context for the sequences that were asked for. None: not even the shortest fits."""
    parallel: int | None
    """The most sequences of the context that was asked for. None: not even one fits."""
    expected: ExpectedMemory
    """Of the demand as it was asked for."""
    concessions: tuple[Concession, ...]
    """What to give up first, in order, up to what is enough; empty when it fits."""


def largest(runtime: Runtime, demand: Demand, budget: int, *, correction: int = 0) -> Largest:
    """The largest context and parallelism of a demand within `budget` bytes a device, each with the other as asked.

    `correction` is what this host's measurements add to a forecast (`ExpectedMemory.correction`).
    """
    expected = forecast(runtime, demand, budget=budget)

    def within(candidate: Demand) -> bool:
        return forecast(runtime, candidate).total + correction <= budget

    shape = demand.shape
    longest = LONGEST if shape is None or shape.max_context is None else shape.max_context
    steps = _most(lambda n: within(replace(demand, context=n * STEP, cells=None)), max(longest // STEP, 1))
    many = _most(lambda n: within(replace(demand, parallel=n, cells=None)), MOST_PARALLEL)
    given = () if within(demand) else tuple(_give_up(runtime, demand, budget, correction))
    return Largest(None if steps == 0 else steps * STEP, many or None, expected, given)


def _most(holds: Callable[[int], bool], limit: int) -> int:
    """The largest n in 1..limit for which it holds, 0 if for none; it holds for all smaller ones."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _give_up(runtime: Runtime, demand: Demand, budget: int, correction: int) -> Iterator[Concession]:
    before = forecast(runtime, demand).total
    for step in _ORDER[runtime]:
        while True:
            change = step(runtime, demand)
            if change is None:
                break
            what, old, new, demand = change
            after = forecast(runtime, demand).total
            enough = after + correction <= budget
            yield Concession(what, old, new, before - after, enough, demand)
            if enough:
                return
            before = after


_Change = tuple[str, str, str, Demand]
_Step = Callable[[Runtime, Demand], _Change | None]


def _halved(name: str, least: int) -> _Step:
    def step(_runtime: Runtime, demand: Demand) -> _Change | None:
        old: int = getattr(demand, name)
        new = max(old // 2, least)
        if new >= old:
            return None
        change: dict[str, int | None] = {name: new}
        if name in ("parallel", "context"):
            change["cells"] = None
        return name, str(old), str(new), replace(demand, **change)  # type: ignore[arg-type]

    return step


def _drafts(_runtime: Runtime, demand: Demand) -> _Change | None:
    if demand.method not in DRAFTING or demand.draft_tokens <= 1:
        return None
    new = demand.draft_tokens // 2
    return "draft_tokens", str(demand.draft_tokens), str(new), replace(demand, draft_tokens=new)


def _batch(runtime: Runtime, demand: Demand) -> _Change | None:
    new = max(demand.batch // 2, LEAST_BATCH[runtime])
    return None if new >= demand.batch else ("batch", str(demand.batch), str(new), replace(demand, batch=new))


def _vision(_runtime: Runtime, demand: Demand) -> _Change | None:
    return ("vision", "on", "off", replace(demand, vision=False)) if demand.vision else None


def _context(_runtime: Runtime, demand: Demand) -> _Change | None:
    new = max(demand.context // 2 // STEP * STEP, LEAST_CONTEXT)
    if new >= demand.context:
        return None
    return "context", str(demand.context), str(new), replace(demand, context=new, cells=None)


_SMALLER = {
    Runtime.LLAMA_CPP: {KvType.F32: KvType.F16, KvType.F16: KvType.Q8_0, KvType.BF16: KvType.Q8_0,
                        KvType.Q8_0: KvType.Q4_0},
    Runtime.VLLM: {KvType.F16: KvType.FP8, KvType.BF16: KvType.FP8},
    Runtime.SGLANG: {KvType.F16: KvType.FP8_E4M3, KvType.BF16: KvType.FP8_E4M3},
}  # fmt: skip


def _kv(runtime: Runtime, demand: Demand) -> _Change | None:
    if not demand.flash_attention:
        return None  # llama.cpp quantises values only with flash attention
    new = _SMALLER[runtime].get(demand.kv)
    return None if new is None else ("kv", demand.kv.value, new.value, replace(demand, kv=new, kv_v=None))


_ORDER: dict[Runtime, tuple[_Step, ...]] = {
    Runtime.LLAMA_CPP: (_halved("parallel", 1), _drafts, _batch, _context, _kv),
    Runtime.VLLM: (_batch, _vision, _halved("parallel", 1), _kv, _drafts, _context),
    Runtime.SGLANG: (_batch, _halved("parallel", 1), _kv, _drafts, _context),
}

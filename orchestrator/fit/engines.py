"""What each engine makes of an understood row: figures and a verdict. All bytes are `memory_fit`'s."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.fit import budget, printed, verdict
from orchestrator.fit.demanding import Understood
from orchestrator.fit.quantisation import Quantisation, weighs
from orchestrator.fit.rows import GIB
from orchestrator.fit.verdict import Judged, Verdict
from orchestrator.kinds import Backend
from orchestrator.memory_fit import Demand, Estimate, Split, llama_cpp, pool_tokens, sglang_pool, split
from orchestrator.memory_fit import weights as loading
from orchestrator.memory_fit.sglang_pool import draft_token_bytes, token_bytes
from orchestrator.memory_fit.vllm_layers import grouped
from orchestrator.models import Runtime
from orchestrator.plan import Reason


@dataclass(frozen=True, slots=True)
class Answer:
    """Figures by field name (None: not known), and whether it fits."""

    judged: Judged
    figures: Mapping[str, float | int | None]
    exact: tuple[str, ...] = ()
    calibrated: tuple[str, ...] = ()


def _gib(count: float | None) -> float | None:
    return None if count is None else count / GIB


# ---- vLLM


@dataclass(slots=True)
class _Pool:
    """What a device leaves for vLLM's cache, and what is made of it."""

    split: Split | None = None
    available: Estimate | None = None
    figures: dict[str, float | int | None] = field(default_factory=dict)


def vllm(row: Understood) -> Answer:
    """vLLM: the pool by what is printed or left, the need of one sequence, the split of the device."""
    counted = printed.pool(row)
    demand = row.demand if counted is None else counted.demand
    if counted is not None and counted.told is not None:
        row.basis.assumed["configuration"] = counted.told
    left = _left(row, demand)
    told = row.row.launch.get("kv_cache_memory_bytes", row.row.launch.get("kv_cache_memory"))
    pool = counted.bytes if counted is not None else told
    available = left.available if told is None else Estimate(told, told, told)
    figures = left.figures
    if available is not None and available.mid <= 0 and not row.quantisation_said:
        # in 16 bit it does not fit at all: then it is quantised, and nothing of this is known
        row.basis.unknown["weights"] = "no quantisation is given, and in 16 bit it would not fit"
        figures = {key: value for key, value in figures.items() if key == "budget_gib"}
        return Answer(_judge(row, demand, available), figures, ("budget_gib",))
    if pool is None and available is not None and _share_said(row):
        pool = int(available.mid)
    if row.shape is not None and row.kv_known:
        figures |= _held(demand, pool if pool is not None or available is None else int(available.mid), row)
    printed_parts = row.row.stated.activation is not None
    if pool is not None and (pool > 0 or printed_parts):  # by its own parts vLLM prints less than nothing as well
        figures["kv_gib"] = _gib(pool)
    if available is not None:
        figures["short_gib"] = _short(figures.get("needed_gib"), available.mid)
    if row.weights is not None and not row.named.experts_in_ram:
        figures["weights_gib"] = _gib(loading.sharded(row.weighing(row.weights.mid)).device + _drafter(row))
    judged = _judge(row, demand, available)
    exact = ("needed_gib", "attn_block_size", "budget_gib", *(("kv_gib", "max_concurrency") if counted else ()))
    calibrated = ("available_gib", "activation_peak_gib", "non_torch_gib", "cudagraph_gib", "total_gib")
    return Answer(judged, figures, exact, calibrated + (() if counted else ("kv_gib", "kv_tokens")))


def _share_said(row: Understood) -> bool:
    return row.row.stated.budget is not None or budget.utilisation(row.row).said


def _short(needed: float | int | None, available: float) -> float | None:
    """GiB that lack for one sequence, or for anything at all; None when nothing lacks."""
    lacking = (needed or 0) - available / GIB
    return lacking if lacking > 0 else None


def _drafter(row: Understood) -> int:
    return -(-row.demand.drafter_bytes // row.ranks)


def _held(demand: Demand, pool: int | None, row: Understood) -> dict[str, float | int | None]:
    layout = grouped(demand)
    if layout is None:
        return {}
    figures: dict[str, float | int | None] = {"attn_block_size": layout.block_tokens}
    if "context" in row.basis.unknown:
        return figures
    holds = pool_tokens(demand, 0 if pool is None else pool)
    if holds is None:
        return figures
    figures["needed_gib"] = _gib(holds.needed)
    if pool is not None and pool > 0:
        figures |= {
            "kv_tokens": row.row.stated.kv_tokens or holds.tokens, "max_concurrency": holds.concurrency,
            "gpu_blocks": holds.blocks,
        }  # fmt: skip
        if not holds.enough:
            figures["max_len_estimate"] = holds.longest
    return figures


def _stages(row: Understood) -> list[tuple[int | None, float]]:
    """Each pipeline stage's usable memory and share of the weights; one of all without pipeline parallelism."""
    count = row.row.launch.get("pipeline_parallel_size", 1)
    each = row.device.each if len(row.device.each) == count else (row.device.usable,) * count
    told = [int(n) for n in re.findall(r"\d+", str(row.row.launch.get("VLLM_PP_LAYER_PARTITION", "")))]
    layers = told if len(told) == count and sum(told) else [1] * count
    return [(memory, part / sum(layers)) for memory, part in zip(each, layers, strict=True)]


def _left(row: Understood, demand: Demand) -> _Pool:
    """What the tightest stage leaves: vLLM holds the need of the whole model against one rank (vllm#34076)."""
    stages = [_of_stage(row, demand, usable, share) for usable, share in _stages(row)[:MOST_STAGES]]
    return min(stages, key=lambda stage: math.inf if stage.available is None else stage.available.mid)


def _of_stage(row: Understood, demand: Demand, usable: int | None, stage: float) -> _Pool:
    """vLLM's split of the device, with parts that the row states in the place of those that are estimated."""
    stated = row.row.stated
    share = budget.utilisation(row.row)
    requested = stated.budget
    found = _Pool()
    if usable is not None:
        if not share.said and stated.budget is None:
            row.basis.assumed["gpu_memory_utilization"] = f"{share.value:g}, vLLM's default"
        requested = requested if requested is not None else int(usable * share.value)
    if requested is None or row.device.backend is Backend.CPU:
        return found
    found.figures["budget_gib"] = _gib(requested)
    if row.weights is None:
        return found
    # the split with the likely weights; a range of weights widens what is left
    whole = usable if usable is not None else requested
    ratio = requested / whole
    demand = replace(demand, weights=int(row.weights.mid * stage), drafter_bytes=row.demand.drafter_bytes)
    parts = split(demand, whole, min(ratio, 1.0))
    spread = Estimate(
        (row.weights.low - row.weights.mid) * stage / row.ranks,
        0,
        (row.weights.high - row.weights.mid) * stage / row.ranks,
    )
    context = _told(stated.non_torch, parts.context)
    activation = _told(stated.activation, parts.activation)
    graphs = _told(stated.graphs, parts.graphs)
    if stated.graphs is None and stated.activation is not None and stated.non_torch is not None:
        graphs = Estimate(0, 0, 0)  # a log that prints the other parts has these in none of them, or not in the budget
    within = parts.kv.mid + parts.context.mid + parts.activation.mid + parts.weights + parts.drafter - parts.requested
    inside = abs(within) > 1  # the graphs are taken out of the request
    held = parts.weights + parts.drafter
    taken = context.plus(activation, held)
    if inside:
        taken = taken.plus(graphs)
    low, high = requested - taken.high - spread.high, requested - taken.low - spread.low
    found.split, found.available = parts, Estimate(low, requested - taken.mid, high)
    ends = Estimate(parts.ends.low, parts.ends.mid, parts.ends.high).plus(requested - parts.requested)
    found.figures |= {
        "available_gib": _gib(found.available.mid), "activation_peak_gib": _gib(activation.mid),
        "non_torch_gib": _gib(context.mid), "cudagraph_gib": _gib(graphs.mid), "total_gib": _gib(ends.mid),
    }  # fmt: skip
    return found


def _told(stated: int | None, estimated: Estimate) -> Estimate:
    return estimated if stated is None else Estimate(stated, stated, stated)


MOST_STAGES = 64
_LEAST = Quantisation("int4", False)
"""The narrowest that vLLM and SGLang run a model in, as far as it is common."""


_APART = verdict.unknown([("weights", "which tensors are on the device is not said: some are in system memory")])


def _judge(row: Understood, demand: Demand, available: Estimate | None) -> Judged:
    missing = _missing(row, ("model", "facts", "context", "gpu_mem_gib", "weights", "quant", "drafter", "draft"))
    if row.named.experts_in_ram:
        return _APART
    if row.weights is not None and available is not None and available.mid <= 0 and row.quantisation_said:
        return verdict.pool(0, available, context=0, longest=None)
    if row.shape is None or available is None or "context" in row.basis.unknown:
        return verdict.unknown(missing)
    holds = pool_tokens(demand, max(int(available.mid), 0))
    if holds is None:
        return verdict.unknown(missing)
    judged = verdict.pool(holds.needed, available, context=demand.context, longest=holds.longest, kv_known=row.kv_known)
    if judged.verdict is Verdict.TOO_BIG and not row.quantisation_said and available.mid <= 0:
        judged = _quantised(row, demand, available, holds.needed)
    if judged.verdict is Verdict.TOO_BIG and not row.context_said:
        return verdict.unknown([("context", f"the model's longest, {demand.context} tokens, would not fit")])
    if judged.verdict is Verdict.FITS and row.device.smallest is not None and row.device.usable is not None:
        less = (row.device.usable - row.device.smallest) * budget.utilisation(row.row).value
        if available.mid - less < holds.needed:
            return verdict.unknown([("gpu_mem_gib", row.basis.assumed["gpu_mem_gib"])])
    return judged


def _quantised(row: Understood, demand: Demand, available: Estimate, needed: int) -> Judged:
    """No quantisation is said, and in 16 bit the model would not fit at all: then it is quantised, somehow."""
    known, before = row.named.known, row.weights
    least = None if known is None else weighs(known, _LEAST, None, row.ranks)
    if least is None or before is None or not row.kv_known:
        return verdict.unknown([("quant", "no quantisation is given")])
    most = available.mid + (before.mid - least.bytes.low) / row.ranks
    if needed > most:
        judged = verdict.pool(needed, Estimate(most, most, most), context=demand.context, longest=None)
        text = f"no quantisation is given: so much would be left with the weights in {_LEAST}, the narrowest"
        return replace(judged, reasons=(*judged.reasons, Reason("even_quantised", text)))
    return verdict.unknown([("quant", "no quantisation is given, and in 16 bit it would not fit")])


def _missing(row: Understood, keys: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(key, row.basis.unknown[key]) for key in keys if key in row.basis.unknown]


# ---- llama.cpp


def llama(row: Understood) -> Answer:
    """llama.cpp: every buffer of the fullest device; weights, KV and state over all devices, as its log sums them."""
    demand = row.weighing(0 if row.weights is None else row.weights.mid)
    expected = llama_cpp(demand)
    held = loading.llama_cpp(demand)
    devices = row.ranks
    per = 1 if row.device.per_device else devices
    context = "context" not in row.basis.unknown
    in_host = bool(row.row.launch.get("no_kv_offload"))
    figures: dict[str, float | int | None] = {}
    known = row.weights is not None and not row.named.experts_in_ram
    if known:
        figures |= {"weights_gib": _gib(held.device * per), "host_weights_gib": _gib(held.host)}
    if row.shape is not None and context:
        if row.kv_known:
            figures["kv_gib"] = _gib(expected.kv * per)
        if row.shape.linear_layers:
            figures["rs_gib"] = _gib(expected.state * per)
        figures["compute_gib"] = _gib(expected.compute)
        if expected.drafter:
            figures["draft_gib"] = _gib(expected.drafter)
    complete = known and row.shape is not None and context and row.kv_known and "drafter" not in row.basis.unknown
    taken = expected.total - expected.margin - (expected.kv if in_host else 0)
    if complete:
        figures |= {"total_gib": _gib(taken), "total_high_gib": _gib(expected.total)}
        if demand.method.value not in ("none", "ngram"):
            without = llama_cpp(replace(demand, method=type(demand.method).NONE, draft_tokens=0, drafter_bytes=0))
            figures["total_without_draft_gib"] = _gib(without.total - without.margin)
    least = expected.total - expected.margin if expected.low is None else expected.low
    judged = _judge_llama(row, (least, taken, expected.total), complete, expected.kv + expected.compute)
    if row.device.backend is Backend.VULKAN and not row.device.metal and row.shape is not None and context:
        judged = _with_buffer(judged, expected.compute)
    return Answer(judged, figures, ("kv_gib", "rs_gib"), ("compute_gib", "total_gib", "total_high_gib"))


def _judge_llama(row: Understood, range_: tuple[int, int, int], complete: bool, cache: int) -> Judged:
    low, taken, high = range_
    usable = row.device.usable
    missing = _missing(
        row, ("model", "facts", "context", "kv_dtype", "gpu_mem_gib", "weights", "quant", "drafter", "draft")
    )
    if usable is None or row.device.backend is Backend.CPU:
        return verdict.unknown(missing or [("gpu_mem_gib", "the device's memory is not known")])
    if row.named.experts_in_ram:
        if cache > usable:
            return verdict.total(cache, cache, cache, usable)
        return _APART
    if not complete:
        least = 0 if row.weights is None else int(row.weights.low) // max(row.ranks, 1)
        if least > usable:
            return verdict.total(least, least, least, usable)
        return verdict.unknown(missing)
    if row.weights is not None:
        high += int(row.weights.high - row.weights.mid) // max(row.ranks, 1)
    return verdict.total(low, taken, high, usable)


def _with_buffer(judged: Judged, largest: int) -> Judged:
    refused = verdict.buffer(largest)
    if refused and largest > verdict.SINGLE_BUFFER:
        return Judged(Verdict.TOO_BIG, (*refused, *judged.reasons))
    return Judged(judged.verdict, (*judged.reasons, *refused))


# ---- SGLang


def _sglang_room(row: Understood) -> tuple[int | None, dict[str, float | int | None]]:
    """What the static share leaves for pools, negative when the weights alone are more; and the figures it is of."""
    figures: dict[str, float | int | None] = {}
    share = budget.sglang_share(row.row, row.device, row.ranks)
    if row.weights is None or row.named.experts_in_ram:
        return None, figures
    held = loading.sharded(row.weighing(row.weights.mid)).device + _drafter(row)
    figures["weights_gib"] = _gib(held)
    if share is None or row.device.usable is None:
        return None, figures
    if share.value > 0:  # the reserve alone is more than a very small card
        figures |= {"mem_fraction_static": share.value, "budget_gib": _gib(row.device.usable * share.value)}
    return int(row.device.usable * share.value) - held, figures


def sglang(row: Understood) -> Answer:
    """SGLang: pools by printed tokens or by what its static share leaves."""
    demand = row.demand
    tokens = row.row.stated.kv_tokens or row.row.launch.get("max_total_num_tokens")
    room, figures = _sglang_room(row)
    judged = verdict.unknown(
        _missing(row, ("model", "facts", "context", "kv_dtype", "gpu_mem_gib", "weights", "quant"))
    )
    if row.shape is not None and row.kv_known:
        each = token_bytes(demand, row.shape)
        draft = draft_token_bytes(demand)
        left = None if room is None else sglang_pool(demand, max(room, 0))
        count = tokens if tokens is not None else None if left is None else left.tokens
        if "context" not in row.basis.unknown:
            figures["needed_gib"] = _gib(demand.context * (each + draft))
        if count:
            figures |= {
                "kv_tokens": count, "kv_gib": _gib(count * each), "k_gib": _gib(count * each / 2),
                "v_gib": _gib(count * each / 2),
            }  # fmt: skip
            if draft:
                figures |= {"draft_k_gib": _gib(count * draft / 2), "draft_v_gib": _gib(count * draft / 2)}
        if row.shape.linear_layers and left is not None:
            figures["rs_gib"] = _gib(left.state_bytes)
        if left is not None and room is not None and "context" not in row.basis.unknown:
            spare = max(room - left.state_bytes, 0) if room > 0 else room
            figures |= {"available_gib": _gib(spare), "short_gib": _short(figures.get("needed_gib"), spare)}
            around = Estimate(spare * 0.95, spare, spare * 1.05) if spare > 0 else Estimate(spare, spare, spare)
            judged = verdict.pool(demand.context * (each + draft), around, context=demand.context, longest=left.tokens)
            judged = _of_context(row, judged, spare)
    return Answer(
        _APART if row.named.experts_in_ram else judged, figures, ("k_gib", "v_gib", "kv_gib"), ("available_gib",)
    )


def _of_context(row: Understood, judged: Judged, left: int) -> Judged:
    """A longest context that nobody asked for is no refusal, as long as there is a pool at all."""
    if judged.verdict is Verdict.TOO_BIG and left > 0 and not row.context_said:
        return verdict.unknown([("context", f"the model's longest, {row.demand.context} tokens, would not fit")])
    return judged


ANSWERS: Mapping[Runtime, Callable[[Understood], Answer]] = {
    Runtime.VLLM: vllm, Runtime.LLAMA_CPP: llama, Runtime.SGLANG: sglang,
}  # fmt: skip

"""From a demand to the bytes it takes on each device, by runtime."""

from __future__ import annotations

from orchestrator.kinds import Backend
from orchestrator.memory_fit import drafter as drafters
from orchestrator.memory_fit import host as hosts
from orchestrator.memory_fit import llama_compute, llama_kv, overhead, recurrent, sglang_pool, vllm_peak, weights
from orchestrator.memory_fit.calibration import CALIBRATION, NONE, Estimate
from orchestrator.memory_fit.demand import DRAFTING, Demand
from orchestrator.memory_fit.vllm_layers import Grouped
from orchestrator.memory_fit.vllm_pool import vllm_pool
from orchestrator.models import Runtime
from orchestrator.plan import ExpectedMemory


def _expected(  # each kind has its place
    demand: Demand,
    budget: int | None,
    *,
    exact: tuple[int, int, int, int],
    compute: Estimate,
    graphs: Estimate,
    process: Estimate,
    host: int,
) -> ExpectedMemory:
    held, kv, state, drafter = exact
    mids = (int(compute.mid), int(graphs.mid), int(process.mid))
    likely = held + kv + state + drafter + sum(mids)
    high = held + kv + state + drafter + int(compute.high) + int(graphs.high) + int(process.high)
    low = held + kv + state + drafter + int(compute.low) + int(graphs.low) + int(process.low)
    return ExpectedMemory(
        weights=held, kv=kv, state=state, drafter=drafter, compute=mids[0], total=max(high, likely), budget=budget,
        graphs=mids[1], overhead=mids[2], margin=max(high - likely, 0), host=host,
        devices=demand.tensor_parallel, low=low,
    )  # fmt: skip


def llama_cpp(demand: Demand, *, budget: int | None = None) -> ExpectedMemory:
    """llama-server. `context` cells a slot, unless `cells` says how many there are for all slots together."""
    held = weights.llama_cpp(demand)
    state = recurrent.llama_cpp(demand)
    drafter = llama_kv.drafter(demand)
    if demand.method in DRAFTING:
        drafter += drafters.llama_cpp(demand)
    one = 0
    if demand.shape is not None and demand.shape.linear_layers:
        one = demand.shape.linear_layers * recurrent.state_layer(demand.shape)
    process = overhead.llama_cpp(demand).plus(llama_compute.dequantised(demand))
    own, fills = held.device, hosts.prompt_cache(demand) + hosts.checkpoints(one, demand)
    host = held.host + fills
    if demand.shares_system_memory:
        # one memory: what would stay in system memory takes from the same budget, past prompts as they come
        cached = hosts.prompt_cache(demand)
        if demand.backend is Backend.CPU:
            own += held.host
        else:
            cached += held.host  # pages of the file, which the system may drop and read again
        process, host = process.plus(Estimate(0, 0, cached)), 0
    return _expected(
        demand,
        budget,
        exact=(own, llama_kv.target(demand), state, drafter),
        compute=llama_compute.target(demand).plus(llama_compute.drafter(demand)),
        graphs=NONE,
        process=process,
        host=host,
    )


def vllm(demand: Demand, *, budget: int | None = None, layout: Grouped | None = None) -> ExpectedMemory:
    """vLLM V1 with an absolute KV pool that holds all sequences at full length; graphs come on top."""
    pool = vllm_pool(demand, layout)
    kv = state = 0
    if pool is not None:
        state = demand.parallel * pool.state_blocks * pool.block_bytes
        kv = pool.bytes - state
    return _expected(
        demand,
        budget,
        exact=(weights.sharded(demand).device, kv, state, drafters.sharded(demand)),
        compute=vllm_peak.activation(demand),
        graphs=vllm_peak.graphs(demand),
        process=overhead.vllm(demand),
        host=0,
    )


def sglang(demand: Demand, *, budget: int | None = None) -> ExpectedMemory:
    """SGLang with pools for all sequences at full length; its default reserve is for activation and graphs."""
    pool = sglang_pool.sglang_pool(demand)
    kv = state = draft = 0
    if pool is not None:
        kv, state, draft = pool.kv, pool.state_bytes, pool.draft_kv
    kept = 0 if demand.backend is Backend.CPU else sglang_pool.default_reserve(demand)
    peak = vllm_peak.activation(demand)
    compute = Estimate(min(peak.low, kept), min(peak.mid, kept), max(peak.high, kept)) if kept else peak
    return _expected(
        demand,
        budget,
        exact=(weights.sharded(demand).device, kv, state, drafters.sharded(demand) + draft),
        compute=compute,
        graphs=NONE if demand.eager or kept else vllm_peak.graphs(demand),
        process=CALIBRATION.sglang_context,
        host=0,
    )


_BY_RUNTIME = {Runtime.LLAMA_CPP: llama_cpp, Runtime.VLLM: vllm, Runtime.SGLANG: sglang}


def forecast(
    runtime: Runtime, demand: Demand, *, budget: int | None = None, layout: Grouped | None = None
) -> ExpectedMemory:
    """What the demand takes on each device, with this runtime. Pure; some tens of microseconds.

    `layout` is `vllm_layout` of this demand at any size.
    """
    if runtime is Runtime.VLLM:
        return vllm(demand, budget=budget, layout=layout)
    return _BY_RUNTIME[runtime](demand, budget=budget)


def reserve(backend: Backend, *, unified: bool, total: int | None) -> int:
    """Bytes of the free memory that a plan leaves alone.

    Discrete GPU: 1 GiB (llama.cpp's own `--fit` keeps as much). Unified memory: 4 GiB, for everything else lives in
    it. CPU: 5 % of the machine, at least 384 MiB.
    """
    if backend is Backend.CPU:
        return max(384 << 20, (total or 0) // 20)
    return 4 << 30 if unified else 1 << 30


def fits(expected: ExpectedMemory) -> bool:
    """Whether the total, its margin included, is within the budget; an unknown budget refuses nothing."""
    return expected.budget is None or expected.total <= expected.budget

"""vLLM's own split of a device: what it requests, and what is left of that for the KV cache.

`requested = ceil(total x gpu_memory_utilization)`; the cache gets what weights, non-torch memory, the activation peak
and, since 0.21, the estimate for CUDA graphs leave of it (0.32.0 v1/worker/gpu_worker.py
`determine_available_memory`). Before 0.21 graphs come on top. Refused when less than `requested` is free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.memory_fit import overhead, vllm_peak, weights
from orchestrator.memory_fit.calibration import CALIBRATION, NONE, Estimate
from orchestrator.memory_fit.demand import Demand, older
from orchestrator.memory_fit.drafter import sharded

GRAPHS_WITHIN = (0, 21)
"""The version since which the graphs' estimate is taken out of the request."""
UTILISATION = 0.9
"""gpu_memory_utilization when nobody says (0.92 since 0.21)."""


@dataclass(frozen=True, slots=True)
class Split:
    """Bytes of one device. `kv` may be negative: then nothing is left, and the start is refused."""

    requested: int
    weights: int
    drafter: int
    context: Estimate
    activation: Estimate
    graphs: Estimate
    kv: Estimate
    """What is left for the cache: `Available KV cache memory`."""
    ends: Estimate
    """What the process takes in the end, when the cache takes all that is left."""


def split(demand: Demand, device_total: int, utilisation: float = UTILISATION) -> Split:
    """How vLLM would split a device of `device_total` bytes."""
    requested = math.ceil(device_total * utilisation)
    held = weights.sharded(demand).device
    drafts = sharded(demand)
    context, peak, graphs = overhead.vllm(demand), vllm_peak.activation(demand), vllm_peak.graphs(demand)
    within = NONE if older(demand.version, GRAPHS_WITHIN) else graphs
    taken = context.plus(peak, within, held + drafts)
    kv = Estimate(requested - taken.high, requested - taken.mid, requested - taken.low)
    outside = graphs if older(demand.version, GRAPHS_WITHIN) else NONE
    ends = CALIBRATION.vllm_beyond.plus(requested, outside)
    return Split(requested, held, drafts, context, peak, graphs, kv, ends)

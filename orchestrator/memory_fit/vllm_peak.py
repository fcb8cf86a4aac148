"""What vLLM takes while it computes: the activation peak that it profiles, and CUDA graphs.

The peak is one forward of `max_num_batched_tokens`: in each layer gate and up, their product, and a few widths of
residual, in the model's two bytes: 2 x (3 x intermediate / ranks + 3 x width) a token, which is 0.1055 MiB on
Llama-3.1-8B where two logs show 0.106 (vllm#10517). After it the sampler is profiled with `max_num_seqs` rows, top-k
and top-p on (0.20.0 v1/worker/gpu_model_runner.py:5622): the larger of both is the peak. V0 kept logits of both.
"""

from __future__ import annotations

from orchestrator.kinds import Backend
from orchestrator.memory_fit.calibration import CALIBRATION, NONE, Estimate
from orchestrator.memory_fit.demand import Demand, older
from orchestrator.memory_fit.sizes import whole

SECOND_ENGINE = (0, 8)
"""The version since which V1 is the engine."""
SORTED = (0, 11)
"""Up to 0.10 the profiled sampler sorted all logits."""
WIDTH = 5120
"""Of a model whose width is not known."""
FAN_OUT = 3.5
"""Intermediate over width, where it is not known: dense models of 8B to 32B."""


def activation(demand: Demand) -> Estimate:
    """The activation peak on one device."""
    shape = demand.shape
    width = WIDTH if shape is None else shape.hidden or WIDTH
    inner = int(width * FAN_OUT) if shape is None else shape.intermediate or int(width * FAN_OUT)
    if shape is not None and shape.experts_used is not None and shape.intermediate is None:
        inner = width  # experts are narrow: 8 of 512 to 1024 numbers each, and fused
    token = 2 * (3 * whole(inner, demand.tensor_parallel) + 3 * width)
    hybrid = shape is not None and shape.linear_layers > 0
    factor = CALIBRATION.vllm_activation_hybrid if hybrid else CALIBRATION.vllm_activation_tokens
    vocab = 0 if shape is None else shape.vocab or 0
    logits = (demand.sequences or demand.parallel) * vocab
    peak = factor.times(token * demand.batch)
    sorts = older(demand.version, SORTED)
    sampler = (CALIBRATION.vllm_sort_bytes if sorts else CALIBRATION.vllm_sampler_bytes).times(logits)
    if older(demand.version, SECOND_ENGINE):
        peak = peak.plus(CALIBRATION.vllm_logit_bytes.times(logits))
        if demand.batch < demand.context:
            sampler = NONE  # a prompt in chunks was profiled without sampling
    peak = Estimate(max(peak.low, sampler.low), max(peak.mid, sampler.mid), max(peak.high, sampler.high))
    return peak.plus(CALIBRATION.vllm_vision) if demand.vision else peak


def graphs(demand: Demand) -> Estimate:
    """CUDA graphs on one device: some for the common sizes, more with the tokens that a drafting batch has."""
    if demand.eager or demand.backend is Backend.CPU:
        return NONE
    batch = demand.parallel * (1 + demand.drafted) if demand.drafted else demand.parallel
    estimate = CALIBRATION.vllm_graphs.plus(CALIBRATION.vllm_graphs_token.times(batch))
    most = CALIBRATION.vllm_graphs_most.mid
    return Estimate(min(estimate.low, most), min(estimate.mid, most), min(estimate.high, most))

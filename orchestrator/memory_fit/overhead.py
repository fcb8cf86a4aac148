"""What a process takes besides what it was asked for: its context on the device, workspaces, what unified memory
loses. Calibrated throughout."""

from __future__ import annotations

from orchestrator.kinds import Backend
from orchestrator.memory_fit.calibration import CALIBRATION, Estimate
from orchestrator.memory_fit.demand import Demand

WIDTH = 5120


def llama_cpp(demand: Demand) -> Estimate:
    """llama-server's context on one device, and what it grows by once it serves (with the model's width)."""
    if demand.backend is Backend.CPU:
        return CALIBRATION.llama_context_cpu
    if demand.shares_system_memory:
        return CALIBRATION.llama_unified
    width = WIDTH if demand.shape is None else demand.shape.hidden or WIDTH
    contexts = {
        Backend.CUDA: (CALIBRATION.llama_context_cuda, CALIBRATION.llama_growth_cuda),
        Backend.ROCM: (CALIBRATION.llama_context_rocm, CALIBRATION.llama_growth_cuda),
        Backend.VULKAN: (CALIBRATION.llama_context_vulkan, CALIBRATION.llama_growth_vulkan),
    }
    context, growth = contexts[demand.backend]
    return context.plus(growth.times(width / WIDTH))


def vllm(demand: Demand) -> Estimate:
    """vLLM's non-torch memory on one device."""
    if demand.backend is not Backend.CPU and demand.shares_system_memory:
        return CALIBRATION.vllm_context.plus(CALIBRATION.vllm_unified)
    return CALIBRATION.vllm_context

"""How many bytes a plan will take, by kind and on each device, before anything is loaded. Pure arithmetic.

Exact in form: weights (file bytes), KV cache, recurrent state, drafter, vLLM's blocks, SGLang's pools; a file each.
Calibrated: compute buffers, activation, CUDA graphs, a process's own share; their numbers stand in
`calibration.toml`, each with its source and the range it was seen in. A forecast says both, and a margin for the
second; what this host has measured corrects it (`correction.py`). The inverse is in `inverse.py`.
"""

from orchestrator.memory_fit.absolute import Limits, limits
from orchestrator.memory_fit.calibration import CALIBRATION, Calibration, Estimate
from orchestrator.memory_fit.correction import Corrected, corrected
from orchestrator.memory_fit.demand import DRAFTING, SNAPSHOTS, Demand
from orchestrator.memory_fit.forecasts import fits, forecast, llama_cpp, reserve, sglang, vllm
from orchestrator.memory_fit.host import PROMPT_CACHE
from orchestrator.memory_fit.inverse import Concession, Largest, largest
from orchestrator.memory_fit.recurrent import state_layer
from orchestrator.memory_fit.sglang_pool import SglangPool, sglang_pool
from orchestrator.memory_fit.sizes import GIB, MIB, explain, gibibytes
from orchestrator.memory_fit.vllm_budget import Split, split
from orchestrator.memory_fit.vllm_layers import Grouped, unpackable
from orchestrator.memory_fit.vllm_pool import Holds, Pool, pool_bytes, pool_tokens, vllm_layout, vllm_pool
from orchestrator.memory_fit.widths import attention_token

__all__ = [
    "CALIBRATION",
    "DRAFTING",
    "GIB",
    "MIB",
    "PROMPT_CACHE",
    "SNAPSHOTS",
    "Calibration",
    "Concession",
    "Corrected",
    "Demand",
    "Estimate",
    "Grouped",
    "Holds",
    "Largest",
    "Limits",
    "Pool",
    "SglangPool",
    "Split",
    "attention_token",
    "corrected",
    "explain",
    "fits",
    "forecast",
    "gibibytes",
    "largest",
    "limits",
    "llama_cpp",
    "pool_bytes",
    "pool_tokens",
    "reserve",
    "sglang",
    "sglang_pool",
    "split",
    "state_layer",
    "unpackable",
    "vllm",
    "vllm_layout",
    "vllm_pool",
]

"""System memory that an engine takes besides its device's: the token embedding, past prompts, checkpoints.

Sources: llama.cpp common/common.h (`cache_ram_mib` 8192, `n_ctx_checkpoints` a slot), CPU_Mapped buffers of logs.
"""

from __future__ import annotations

from orchestrator.kinds import Backend
from orchestrator.memory_fit.demand import Demand
from orchestrator.memory_fit.sizes import MIB

PROMPT_CACHE = {Backend.CPU: 256 * MIB, Backend.CUDA: 2048 * MIB, Backend.ROCM: 512 * MIB, Backend.VULKAN: 512 * MIB}
"""What llama.cpp may keep of past prompts, in system memory, when we start it; its own default is 8 GiB."""


def prompt_cache(demand: Demand) -> int:
    """Bytes that past prompts may take."""
    return PROMPT_CACHE[demand.backend]


CHECKPOINTS = 32
CHECKPOINT_STEP = 8192
"""Tokens between two checkpoints of one slot, at least."""


def checkpoints(state: int, demand: Demand) -> int:
    """Bytes that llama.cpp's checkpoints may grow to: a copy of a sequence's recurrent state each. `state` is one
    sequence's, without snapshots."""
    each_slot = min(CHECKPOINTS, demand.context // CHECKPOINT_STEP + 1)
    return each_slot * state * demand.parallel if state else 0

"""Recurrent state of hybrid models (gated delta nets, Kimi's linear attention).

A layer keeps, a sequence, a window of the convolution's inputs and the outer product of keys and values. Sources:
`n_embd_r`, `n_embd_s` (llama.cpp src/llama-hparams.cpp) and `gated_delta_net_state_shape` (vLLM 0.32.0,
model_executor/layers/mamba/mamba_utils.py:280). Independent of the context. Logs agree to 0.01 %: a sequence takes
149.62 MiB on 27B and 62.81 MiB on 35B-A3B in f32.
"""

from __future__ import annotations

from orchestrator.memory_fit.demand import SNAPSHOTS, Demand
from orchestrator.memory_fit.sizes import whole
from orchestrator.models import Shape


def state_layer(shape: Shape, *, extra_conv: int = 0, conv_bytes: int = 4, state_bytes: int = 4, ranks: int = 1) -> int:
    """Bytes of one sequence's recurrent state in one linear layer on one rank.

    llama.cpp keeps all of it in f32; vLLM the window in the model's dtype, longer by the drafted tokens.
    """
    values = shape.linear_value_dim or shape.linear_head_dim
    inner = shape.linear_value_heads * values
    channels = inner + 2 * shape.linear_key_heads * shape.linear_head_dim
    window = (shape.conv_kernel - 1 + extra_conv) * whole(channels, ranks) * conv_bytes
    return window + whole(shape.linear_value_heads, ranks) * values * shape.linear_head_dim * state_bytes


def llama_cpp(demand: Demand) -> int:
    """Bytes of llama.cpp's state on one device: rows for every slot and, for methods that roll back, one more a
    drafted token (`n_rows = mem_size * (1 + n_rs_seq)`, src/llama-memory-recurrent.cpp)."""
    shape = demand.shape
    if shape is None or not shape.linear_layers:
        return 0
    snapshots = demand.draft_tokens if demand.method in SNAPSHOTS else 0
    rows = demand.parallel * (1 + snapshots)
    layers = whole(shape.linear_layers, demand.tensor_parallel)
    return int(layers * min(demand.weights_on_device, 1.0)) * state_layer(shape) * rows


def vllm_page(demand: Demand, shape: Shape) -> int:
    """Bytes of one state of one layer on one rank of vLLM: its mamba page before it is padded."""
    return state_layer(
        shape,
        extra_conv=demand.drafted,
        conv_bytes=2,
        state_bytes=demand.state_bits // 8,
        ranks=demand.tensor_parallel,
    )

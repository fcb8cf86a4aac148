"""Weights on one device and in system memory.

llama.cpp keeps the token embedding in system memory (CPU_Mapped, seen on every log that prints both buffers). A tied
embedding is loaded twice: there, and on the device as the output layer (gemma-4-26b QAT: device + host = 104 % of the
file). The MTP head is skipped unless it drafts (`load_mtp`, llama.cpp src/models/qwen35.cpp; an MTP arm takes a
head's bytes more in sudoingX/qwen38-mtp). vLLM and SGLang shard embeddings too, and load the head only to draft.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.memory_fit.demand import Demand
from orchestrator.memory_fit.sizes import whole
from orchestrator.plan import Method


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes on each device, and in system memory besides."""

    device: int
    host: int


def head_bytes(demand: Demand) -> int:
    """Bytes of the MTP head: as told, or a layer's share of what is not embedding (its projection of two widths
    to one makes up for what a block without experts lacks)."""
    if demand.head is not None:
        return demand.head
    shape = demand.shape
    if shape is None or not shape.mtp_layers:
        return 0
    body = demand.weights - 2 * (demand.embedding or 0)
    return max(body, 0) * shape.mtp_layers // (shape.layers + shape.mtp_layers)


def loaded(demand: Demand) -> int:
    """Bytes of the files that are loaded at all: without the head where it does not draft and is told apart."""
    if demand.method is Method.MTP or demand.head is None:
        return demand.weights
    return demand.weights - min(demand.head, demand.weights)


def llama_cpp(demand: Demand) -> Weights:
    """llama.cpp: layers are spread whole over the devices; the embedding stays in system memory."""
    body, embedding = loaded(demand), demand.embedding or 0
    tied = demand.shape is not None and demand.shape.tied_embeddings is True
    on_device = body if tied else max(body - embedding, 0)
    share = on_device if demand.weights_on_device >= 1 else int(on_device * max(demand.weights_on_device, 0))
    device = whole(share, demand.tensor_parallel)
    return Weights(device, body - share + (embedding if tied else 0))


def sharded(demand: Demand) -> Weights:
    """vLLM and SGLang: each rank holds its share of every layer, the embedding's too."""
    return Weights(whole(loaded(demand), demand.tensor_parallel), 0)

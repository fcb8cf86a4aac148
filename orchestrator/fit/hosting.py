"""What a host holds of a model: the longest context and the most sequences, and what to give up first. Pure.

For models of the catalogue by their variants, and for public models whose files are nowhere here by what they are known
to weigh (`known_shapes`). Without restrictions and images: whether something can be launched is the planner's question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hosts.facts import Accelerator, HostFacts
from orchestrator.fit.demanding import USUAL_DRAFT
from orchestrator.fit.quantisation import embedding_bytes, parse
from orchestrator.kinds import Backend, KvType
from orchestrator.known_shapes import Known, drafter_for, find
from orchestrator.memory_fit import GIB, Demand, Largest, largest, reserve
from orchestrator.models import Drafter, Format, ModelEntry, Runtime, Shape
from orchestrator.plan import Method

USUAL_CONTEXT = 32768


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants of it. None takes what is usual; `parallel` sequences of `context` tokens."""

    context: int | None = None
    parallel: int = 1
    method: Method = Method.NONE
    draft_tokens: int | None = None
    kv: KvType | None = None
    runtime: Runtime | None = None
    devices: int = 1


@dataclass(frozen=True, slots=True)
class Weights:
    """One set of weights: a variant of the catalogue's, or a known file."""

    name: str
    gguf: bool
    bytes: int
    shape: Shape | None
    embedding: int | None = None
    drafter_bytes: int = 0
    drafter_shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class Hosted:
    """One set of weights with one runtime on the host's devices."""

    weights: Weights
    runtime: Runtime
    demand: Demand
    budget: int
    held: Largest

    @property
    def fits(self) -> bool:
        """Whether what was asked for fits."""
        return not self.held.concessions and self.held.expected.total <= self.budget

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, sizes in GiB."""
        expected = self.held.expected
        return {
            "variant": self.weights.name,
            "runtime": self.runtime.value,
            "fits": self.fits,
            "context": self.demand.context,
            "parallel": self.demand.parallel,
            "method": self.demand.method.value,
            "kv_dtype": self.demand.kv.value,
            "weights_gib": round(expected.weights / GIB, 3),
            "kv_gib": round(expected.kv / GIB, 3),
            "rs_gib": round(expected.state / GIB, 3),
            "total_gib": round(expected.total / GIB, 3),
            "budget_gib": round(self.budget / GIB, 3),
            "largest_context": self.held.context,
            "largest_parallel": self.held.parallel,
            "give_up": [
                {
                    "what": c.what, "before": c.before, "after": c.after, "frees_gib": round(c.frees / GIB, 3),
                    "enough": c.enough,
                }
                for c in self.held.concessions
            ],
        }  # fmt: skip


def device_of(facts: HostFacts) -> tuple[Accelerator | None, Backend]:
    """The GPU with the most memory, and what computes on it; without one the CPU."""
    known = [gpu for gpu in facts.accelerators if gpu.memory_total is not None]
    if not known:
        return None, Backend.CPU
    best = max(known, key=lambda gpu: gpu.memory_total or 0)
    backend = {"nvidia": Backend.CUDA, "amd": Backend.ROCM}.get(best.vendor, Backend.VULKAN)
    return best, backend


def budget_of(facts: HostFacts) -> int:
    """Bytes that an engine may take on the best device: what is free, less what is left alone."""
    gpu, backend = device_of(facts)
    if gpu is None:
        return max(facts.memory.available - reserve(backend, unified=False, total=facts.memory.total), 0)
    free = gpu.memory_free if gpu.memory_free is not None else gpu.memory_total or 0
    return max(free - reserve(backend, unified=gpu.unified, total=gpu.memory_total), 0)


def weights_of(entry: ModelEntry | None, known: Known | None, method: Method) -> tuple[Weights, ...]:
    """All weights of a model whose bytes are known."""
    if entry is not None:
        return tuple(_variants(entry, method))
    return tuple(_files(known, method)) if known is not None else ()


def _variants(entry: ModelEntry, method: Method) -> Iterator[Weights]:
    for variant in entry.variants:
        if variant.weight_bytes is None:
            continue
        gguf = variant.format is Format.GGUF
        public = find(variant.repository or entry.name)
        shape = variant.shape or (None if public is None else public.shape)
        embedding = None if public is None or not gguf else embedding_bytes(public, parse(variant.quantisation))
        drafter = _drafter(entry, variant.name, variant.format, method)
        if method in (Method.DFLASH, Method.DSPARK, Method.EAGLE3, Method.DRAFT) and drafter is None:
            continue
        yield Weights(
            variant.name, gguf, variant.weight_bytes, shape, embedding,
            drafter_bytes=0 if drafter is None else drafter.weight_bytes or 0,
            drafter_shape=None if drafter is None else drafter.shape,
        )  # fmt: skip


def _drafter(entry: ModelEntry, variant: str, format_: Format, method: Method) -> Drafter | None:
    fitting = [d for d in entry.drafters if d.method is method and d.format is format_]
    return next((d for d in fitting if not d.variants or variant in d.variants), None)


def _files(known: Known, method: Method) -> Iterator[Weights]:
    drafter = drafter_for(known.name, method)
    for size in known.sizes:
        quantisation = parse(size.words)
        if quantisation is None:
            continue
        name = size.words if size.by is None else f"{size.words} ({size.by})"
        gguf = quantisation.gguf or size.words.endswith("-gguf")
        yield Weights(
            name, gguf, size.bytes, known.shape, embedding_bytes(known, quantisation) if gguf else None,
            drafter_bytes=drafter.sizes[-1 if gguf else 0].bytes if drafter is not None and drafter.sizes else 0,
            drafter_shape=None if drafter is None else drafter.shape,
        )  # fmt: skip


def hold(weights: Sequence[Weights], facts: HostFacts, asked: Asked) -> tuple[Hosted, ...]:
    """What the host's best device holds of each of the weights, the largest that fit first."""
    gpu, backend = device_of(facts)
    budget = budget_of(facts)
    found = []
    for one in weights:
        for runtime in _runtimes(one, backend):
            if asked.runtime not in (None, runtime):
                continue
            demand = _demand(one, runtime, asked, backend, gpu)
            found.append(Hosted(one, runtime, demand, budget, largest(runtime, demand, budget)))
    return tuple(sorted(found, key=lambda h: (not h.fits, -h.weights.bytes, h.runtime.value)))


def _runtimes(weights: Weights, backend: Backend) -> tuple[Runtime, ...]:
    if weights.gguf:
        return (Runtime.LLAMA_CPP,)
    return {
        Backend.CUDA: (Runtime.VLLM, Runtime.SGLANG), Backend.ROCM: (Runtime.VLLM,), Backend.CPU: (Runtime.VLLM,),
        Backend.VULKAN: (),
    }[backend]  # fmt: skip


def _demand(one: Weights, runtime: Runtime, asked: Asked, backend: Backend, gpu: Accelerator | None) -> Demand:
    longest = None if one.shape is None else one.shape.max_context
    usual = min(USUAL_CONTEXT, longest or USUAL_CONTEXT)
    tokens = 0 if asked.method is Method.NONE else asked.draft_tokens or USUAL_DRAFT[asked.method]
    kv = asked.kv or (KvType.F16 if runtime is Runtime.LLAMA_CPP else KvType.BF16)
    demand = Demand(
        weights=one.bytes, shape=one.shape, context=asked.context or usual, parallel=asked.parallel,
        method=asked.method, draft_tokens=tokens, drafter_bytes=one.drafter_bytes if tokens else 0,
        drafter_shape=one.drafter_shape if tokens else None, backend=backend, kv=kv, embedding=one.embedding,
        batch=512 if runtime is Runtime.LLAMA_CPP else 2048, tensor_parallel=asked.devices,
    )  # fmt: skip
    return replace(
        demand,
        unified=None if gpu is None else gpu.unified,
        device_total=None if gpu is None else gpu.memory_total,
    )

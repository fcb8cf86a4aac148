"""From a row to a `memory_fit.Demand`: what is known, what is an engine's default, what is assumed and said so."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.fit import budget, words
from orchestrator.fit import quantisation as quantising
from orchestrator.fit.devices import Device, device
from orchestrator.fit.facts import shape_of
from orchestrator.fit.naming import Named, named
from orchestrator.fit.quantisation import Quantisation, Weighs
from orchestrator.fit.rows import Row
from orchestrator.kinds import Backend, KvType
from orchestrator.known_shapes import KnownDrafter, drafter_for
from orchestrator.memory_fit import Demand, Estimate
from orchestrator.models import Runtime, Shape
from orchestrator.plan import Method

USUAL_DRAFT = {Method.MTP: 3, Method.DFLASH: 7, Method.DSPARK: 7, Method.EAGLE3: 3, Method.DRAFT: 4, Method.NGRAM: 4}
"""Drafted tokens where a row does not say how many (recipes of vLLM and llama.cpp)."""
MIB = 1 << 20
FIRST_ENGINE = "V0 engine"
FORK_BUILD = "b4000"
"""ik_llama.cpp counts its own builds, below those of llama.cpp."""


@dataclass(slots=True)
class Basis:
    """What a forecast rests on besides exact forms: facts that were assumed, and what is unknown."""

    assumed: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Understood:
    """A row with everything that its texts name. `weights` are of all files; None where nothing tells."""

    row: Row
    runtime: Runtime
    fork: bool
    named: Named
    shape: Shape | None
    device: Device
    ranks: int
    """vLLM, SGLang: tensor parallel ranks; llama.cpp: devices that share the layers."""
    demand: Demand
    """With the likely weights."""
    weights: Estimate | None
    kv_known: bool
    context_said: bool
    quantisation_said: bool
    basis: Basis

    def weighing(self, weights: float) -> Demand:
        """The demand as if the files weighed so much."""
        return replace(self.demand, weights=int(weights))


def understand(row: Row, runtime: Runtime, fork: bool) -> Understood:
    """Everything that can be known of a row. Raises `RowError` for facts that contradict each other."""
    basis = Basis()
    texts = named(row.model, row.quant or _flag_text(row, "quantization"), log_units=runtime is not Runtime.LLAMA_CPP)
    texts = _as_run(texts, row, runtime)
    shape, missing = shape_of(row.facts, None if texts.known is None else texts.known.shape)
    if missing:
        basis.unknown["facts"] = f"facts lack {', '.join(missing)}"
    elif shape is None:
        basis.unknown["model"] = f"no shape is known for {row.model!r}"
    if shape is not None and texts.known is not None:
        basis.sources["shape"] = texts.known.source
    place = device(row.gpu, row.gpu_mem, runtime, row.engine_version)
    _device_basis(place, row, basis)
    ranks = _ranks(row, runtime, place, shape, basis)
    version = row.engine_version
    if version is None and runtime is Runtime.VLLM and row.stated.gpu_blocks is not None:
        version = FIRST_ENGINE
        row = replace(row, engine_version=version)
        basis.assumed["engine_version"] = "V0: later ones print tokens, not blocks"
    elif version is None and fork:
        version = FORK_BUILD  # it reserves logits for a whole ubatch, as builds of its age do
    demand = Demand(weights=0, shape=shape, context=1, parallel=1, tensor_parallel=ranks, version=version)
    demand = replace(demand, backend=place.backend, unified=place.unified, device_total=place.usable)
    context = budget.engine_context(row, runtime, shape)
    if context is None:
        basis.unknown["context"] = "no context is given"
    elif not context.said:
        basis.assumed["context"] = f"{int(context.value)} tokens, the model's longest"
    demand = replace(demand, context=int(context.value) if context else 1, parallel=row.parallel or 1)
    demand, kv_known = _cache(row, runtime, shape, demand, basis)
    demand, drafter = _drafting(row, runtime, texts, demand, basis)
    demand = _engine(row, (runtime, fork), texts, place=place, demand=demand, basis=basis)
    weights, demand, said = _weights(row, runtime, texts, place=place, demand=demand, basis=basis)
    if drafter is not None and drafter.sizes:
        demand = replace(demand, drafter_bytes=_drafter_bytes(drafter, row, runtime))
    return Understood(
        row, runtime, fork, texts, shape, place, ranks, demand, weights, kv_known,
        bool(context and context.said), said, basis,
    )  # fmt: skip


_IN_GGUF = {"bf16": "BF16", "f32": "F32", "mxfp4": "MXFP4"}
_ELSEWHERE = ("cpu_moe", "n_cpu_moe", "override_tensor", "ot", "kt_method", "kt_weight_path", "cpu_offload_gb")
"""Flags that leave tensors, experts for the most part, to system memory; which of them is not said."""


def _as_run(texts: Named, row: Row, runtime: Runtime) -> Named:
    """The texts as the runtime takes them: llama.cpp has files of its own kinds; experts may be left to the CPU."""
    elsewhere = texts.experts_in_ram or any(row.launch.get(key) for key in _ELSEWHERE)
    kind = texts.quantisation
    if runtime is Runtime.LLAMA_CPP and kind is not None and not kind.gguf:
        kind = Quantisation(_IN_GGUF[kind.kind], True, kind.qat) if kind.kind in _IN_GGUF else None
    return replace(texts, quantisation=kind, experts_in_ram=elsewhere)


def _device_basis(place: Device, row: Row, basis: Basis) -> None:
    if place.usable is None and place.backend is not Backend.CPU:
        basis.unknown["gpu_mem_gib"] = "the device's memory is not known"
    elif place.how == "assumed" and place.nominal is not None:
        basis.assumed["gpu_mem_gib"] = f"{place.nominal:g} GiB: {row.gpu} is sold with less as well"
    elif place.how == "nominal":
        basis.assumed["gpu_mem_gib"] = "98.5 % of the nominal size are usable"


_OTHER_SPREADS = ("pipeline_parallel_size", "data_parallel_size", "pp", "dp", "dp_size")


def _ranks(row: Row, runtime: Runtime, place: Device, shape: Shape | None, basis: Basis) -> int:
    """Devices that share the model: as told, else all that the row's text counts, where its heads divide by them."""
    if runtime is Runtime.LLAMA_CPP:
        return max(place.count, 1)
    told = row.tp or row.launch.get("tensor_parallel_size") or row.launch.get("tp") or row.launch.get("tp_size")
    if told:
        return int(told)
    heads = None if shape is None else shape.heads
    spread = any(row.launch.get(flag) for flag in _OTHER_SPREADS)
    if place.count < 2 or place.per_device or place.each or spread or heads is None or heads % place.count:
        return 1
    if " + " in (row.gpu or ""):
        return 1
    basis.assumed["tp"] = f"{place.count} devices, all that are named"
    return place.count


def _cache(row: Row, runtime: Runtime, shape: Shape | None, demand: Demand, basis: Basis) -> tuple[Demand, bool]:
    text = row.kv_dtype or _flag_text(row, "kv_cache_dtype")
    keys, values = _flag_text(row, "cache_type_k"), _flag_text(row, "cache_type_v")
    if text is None and keys is not None:
        text = f"K {keys} / V {values or 'f16'}"
    own = KvType.F16 if runtime is Runtime.LLAMA_CPP or _half(row, shape) else KvType.BF16
    if words.dtype_bits(row.dtype) == 32:
        own = KvType.F32
    if text is None:
        basis.assumed["kv_dtype"] = f"{own}, the engine's default"
        return replace(demand, kv=own), True
    understood = words.kv(text)
    if understood is None:
        basis.unknown["kv_dtype"] = f"no width is known for a cache in {text!r}"
        return replace(demand, kv=own), False
    state = understood.state_bits or demand.state_bits
    if shape is not None and shape.kv_lora_rank is not None and not understood.latent and runtime is Runtime.LLAMA_CPP:
        demand = replace(demand, latent=True)
    return replace(demand, kv=understood.keys or own, kv_v=understood.values, state_bits=state), True


def _flag_text(row: Row, key: str) -> str | None:
    value = row.launch.get(key)
    return value if isinstance(value, str) else None


def _half(row: Row, shape: Shape | None) -> bool:
    text = row.dtype or (shape.dtype if shape is not None else None) or "bfloat16"
    return text.lower() in ("float16", "fp16", "half", "f16")


def _drafting(
    row: Row, runtime: Runtime, texts: Named, demand: Demand, basis: Basis
) -> tuple[Demand, KnownDrafter | None]:
    if row.draft is None:
        return demand, None
    said = " ".join(part for part in (row.draft.method, row.draft.model) if part)
    understood = (words.drafting(row.draft.method) if row.draft.method else None) or words.drafting(said)
    if understood is None:
        basis.unknown["draft"] = f"no method is known by {said or 'nothing'!r}"
        return demand, None
    if understood.method is Method.NONE:
        return demand, None
    tokens = row.draft.tokens or row.launch.get("spec_draft_n_max")
    if tokens is None:
        tokens = USUAL_DRAFT[understood.method]
        if not (runtime is Runtime.VLLM and understood.method is Method.NGRAM):
            basis.assumed["draft_tokens"] = f"{tokens}, as recipes have it"
    drafter = None
    if understood.external and texts.known is not None:
        drafter = drafter_for(texts.known.name, understood.method, said)
        if drafter is None:
            basis.unknown["drafter"] = f"no {understood.method} drafter is known for {texts.known.name}"
    shape = None if drafter is None else drafter.shape
    return replace(demand, method=understood.method, draft_tokens=int(tokens), drafter_shape=shape), drafter


def _drafter_bytes(drafter: KnownDrafter, row: Row, runtime: Runtime) -> int:
    text = f"{row.draft.model or ''} {row.draft.method or ''}".lower() if row.draft else ""
    kind = quantising.parse(text)
    wanted = "Q4_K_M" if runtime is Runtime.LLAMA_CPP else kind.kind if kind is not None else "bf16"
    chosen = next((size for size in drafter.sizes if size.words == wanted), drafter.sizes[0])
    return chosen.bytes


def _engine(
    row: Row, engine: tuple[Runtime, bool], texts: Named, *, place: Device, demand: Demand, basis: Basis
) -> Demand:
    runtime, fork = engine
    launch = row.launch
    if runtime is Runtime.LLAMA_CPP:
        return _llama(row, fork, demand, basis)
    eager = bool(launch.get("enforce_eager") or launch.get("disable_cuda_graph"))
    if runtime is Runtime.SGLANG:
        chunk = launch.get("chunked_prefill_size")
        running = launch.get("max_running_requests")
        return replace(
            demand, batch=chunk if chunk and chunk > 0 else 8192, sequences=running,
            prefix_caching=not launch.get("disable_radix_cache", False), eager=eager,
        )  # fmt: skip
    batch = budget.batched_tokens(row, demand.context, place)
    many = budget.sequences(row, place)
    prefix = budget.prefix_caching(row, demand.shape)
    if not batch.said:
        basis.assumed["max_num_batched_tokens"] = f"{int(batch.value)}, vLLM's default"
    if not prefix.said and demand.shape is not None and demand.shape.linear_layers:
        basis.assumed["enable_prefix_caching"] = f"{'on' if prefix.value else 'off'}, vLLM's default"
    return replace(
        demand, batch=int(batch.value), sequences=int(many.value), prefix_caching=bool(prefix.value), eager=eager,
        vision=budget.profiles_vision(texts.known, budget.vision(row, texts.known, texts.no_vision)),
    )  # fmt: skip


def _llama(row: Row, fork: bool, demand: Demand, basis: Basis) -> Demand:
    launch = row.launch
    count, unified, guessed = budget.slots(row)
    if guessed:
        basis.assumed["parallel"] = f"{count} slots" + (" that share one cache" if unified and count > 1 else "")
    total = launch.get("n_ctx", launch.get("ctx_size"))
    if total is None and unified:
        total = demand.context
    layers = demand.shape.layers if demand.shape is not None else 0
    offloaded = launch.get("ngl", launch.get("n_gpu_layers"))
    share = 1.0
    if offloaded is not None and 0 <= offloaded <= layers:
        share = offloaded / (layers + 1)
    cap = launch.get("attn_max_b")
    return replace(
        demand, parallel=count, kv_unified=unified and count > 1, cells=total, batch=launch.get("n_ubatch", 512),
        flash_attention=budget.flash_attention(row, fork), swa_full=bool(launch.get("swa_full", False)),
        trims_windows=not fork, attention_cap=cap * MIB if cap else None, weights_on_device=share,
    )  # fmt: skip


def _weights(
    row: Row, runtime: Runtime, texts: Named, *, place: Device, demand: Demand, basis: Basis
) -> tuple[Estimate | None, Demand, bool]:
    """Bytes of all files, with what of them llama.cpp keeps elsewhere; and whether a quantisation was said."""
    ranks = demand.tensor_parallel
    if row.stated.weights is not None:
        basis.sources["weights"] = "stated by the row"
        return _exactly(row.stated.weights * ranks), demand, True
    known = texts.known
    embedding = None
    apart = place.backend is not Backend.CPU and not place.metal
    if known is not None and runtime is Runtime.LLAMA_CPP and apart:
        embedding = quantising.embedding_bytes(known, texts.quantisation)
    demand = replace(demand, embedding=embedding)
    if row.weight_bytes is not None or texts.stated is not None:
        count = row.weight_bytes or texts.stated or 0
        loaded = row.weight_bytes is None and texts.loaded
        basis.sources["weights"] = "stated by the row"
        if known is not None and texts.quantisation is not None and not loaded:
            demand = replace(demand, head=quantising.head_of(known, texts.quantisation) or None)
        return _exactly(count * (ranks if loaded else 1)), demand, True
    if known is None:
        return _from_facts(row, texts, basis), demand, texts.quantisation is not None
    chosen = texts.quantisation
    said = chosen is not None
    if chosen is None:
        chosen = _unsaid(runtime)
        if chosen is None:
            basis.unknown["quant"] = "no quantisation is given"
            return None, demand, False
        basis.assumed["quant"] = f"{chosen}: no quantisation is given"
    found = quantising.weighs(known, chosen, texts.publisher, ranks)
    if found is None:
        basis.unknown["weights"] = "neither files nor parameters are known"
        return None, demand, said
    basis.sources["weights"] = found.source
    if found.how == "parameters":
        basis.assumed["weights"] = f"{chosen}: from its parameters"
    left_out = 0 if runtime is not Runtime.VLLM or budget.vision(row, known, texts.no_vision) else found.vision
    head = found.head or None
    return _less(found, left_out), replace(demand, head=head), said


def _unsaid(runtime: Runtime) -> Quantisation | None:
    """What a name without a quantisation means: for vLLM and SGLang as it was published; a GGUF file can be any."""
    return None if runtime is Runtime.LLAMA_CPP else Quantisation("bf16", False)


def _exactly(count: int) -> Estimate:
    return Estimate(count, count, count)


def _less(found: Weighs, count: int) -> Estimate:
    return found.bytes if not count else found.bytes.plus(-count)


def _from_facts(row: Row, texts: Named, basis: Basis) -> Estimate | None:
    parameters = row.facts.get("parameters")
    if parameters is None or texts.quantisation is None:
        basis.unknown["weights"] = "neither files nor parameters are known"
        return None
    basis.assumed["weights"] = f"{texts.quantisation}: from its parameters"
    return quantising.of_parameters(parameters, texts.quantisation)

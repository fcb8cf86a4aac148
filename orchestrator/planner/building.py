"""From a fitted candidate to a plan: container paths, argv, environment, mounts, reasons."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, replace

from hosts.facts import HostFacts
from orchestrator.catalogue import ImageEntry
from orchestrator.file_facts import stored_at
from orchestrator.kinds import Backend
from orchestrator.measured import NOTHING, Measured
from orchestrator.memory_fit import PROMPT_CACHE, explain, gibibytes, vllm_pool
from orchestrator.models import Drafter, Format, ModelEntry, Ngram, Runtime, Variant
from orchestrator.plan import MODEL_FOLDER, PORT, Evidence, Limits, Method, Plan, PlanMount, Reason, Rejected
from orchestrator.planner.candidates import Candidate
from orchestrator.planner.fitting import Fitted
from orchestrator.planner.places import CUSTOM
from orchestrator.planner.terms import prefix_caching_of
from orchestrator.planner.wishes import Preferences
from orchestrator.runtimes import LaunchRequest, adapter
from orchestrator.runtimes.vllm_speculation import can_schedule
from orchestrator.shared_memory import shared_memory
from orchestrator.weights.meter import amount

MOST_THREADS = 16
_IMAGE_ID = re.compile(r"^(sha256:)?[0-9a-f]{64}$")


@dataclass(frozen=True, slots=True)
class Site:
    """Where the plan is to run: the host, the store's folder there, the model and the wishes."""

    entry: ModelEntry
    facts: HostFacts
    store: str
    wish: Preferences
    measured: Measured = NOTHING


@dataclass(frozen=True, slots=True)
class _Mounted:
    """A model's place in the container."""

    mount: PlanMount
    path: str


def build(site: Site, fitted: Fitted) -> Plan | Rejected:
    """The plan, or why its engine would not start."""
    candidate = fitted.candidate
    target = _mounted(site.store, candidate.variant, candidate, "target")
    drafter = None if candidate.drafter is None else _mounted(site.store, candidate.drafter, candidate, "drafter")
    request = _request(site, fitted, target, drafter)
    runtime = adapter(candidate.image.runtime)
    refusal = runtime.refuses(request)
    if refusal is not None:
        return candidate.reject(refusal.code, refusal.text, refusal.source)
    command = runtime.command(request)
    image = candidate.image
    return Plan(
        model=site.entry.name,
        variant=candidate.variant.name,
        runtime=image.runtime.value,
        runtime_version=image.version,
        image=image.reference,
        method=candidate.method,
        draft_tokens=fitted.draft_tokens,
        drafter=None if candidate.drafter is None else candidate.drafter.name,
        context=fitted.context,
        parallel=fitted.parallel,
        argv=command.argv,
        env=dict(command.env),
        devices=tuple(dict.fromkeys(name for device in candidate.devices for name in device.devices)),
        groups=tuple(sorted({group for device in candidate.devices for group in device.groups})),
        mounts=tuple(m.mount for m in (target, drafter) if m is not None),
        caches=tuple((_volume(purpose, image.reference, request.arch), path) for purpose, path in command.caches),
        limits=Limits(memory=None, shm=shared_memory(image.shm, candidate.tensor_parallel)),
        profile=image.profile,
        socket=runtime.socket,
        expected_memory=fitted.expected,
        evidence=candidate.evidence,
        reasons=_reasons(site, fitted),
        image_resolved=bool(_IMAGE_ID.match(image.reference)),
        deterministic=site.entry.deterministic,
    )


def resolve(plan: Plan, image_id: str) -> Plan:
    """The same plan with the image's id in place of its reference: this fixes the digest."""
    caches = tuple((_renamed(name, image_id), path) for name, path in plan.caches)
    reasons = tuple(r for r in plan.reasons if r.code != "image_unresolved")
    return replace(plan, image=image_id, image_resolved=True, caches=caches, reasons=reasons)


def _volume(purpose: str, image: str, arch: str | None) -> str:
    """A compile cache's volume: kernels belong to one image and one architecture."""
    return f"outrider-{purpose}-{hashlib.sha256(image.encode()).hexdigest()[:12]}-{arch or 'any'}"


def _renamed(name: str, image: str) -> str:
    """`_volume`'s name for another image."""
    _, purpose, _, arch = name.split("-", 3)
    return _volume(purpose, image, arch)


def _mounted(store: str, thing: Variant | Drafter, candidate: Candidate, role: str) -> _Mounted:
    """The folder of a GGUF file, or the folder that safetensors are; never the root of the file system."""
    file = candidate.target if role == "target" else candidate.drafter_file
    source = stored_at(store, thing) if file is None else file.path
    inside = f"{MODEL_FOLDER}/{role}"
    if file is not None and file.root is not None and source.startswith(f"{file.root}/"):
        return _Mounted(PlanMount(file.root, inside), f"{inside}/{source.removeprefix(file.root + '/')}")
    if thing.format is not Format.GGUF:
        return _Mounted(PlanMount(source, inside), inside)
    folder, _, name = source.rpartition("/")
    if not folder:
        return _Mounted(PlanMount(source, f"{inside}/{name}"), f"{inside}/{name}")
    return _Mounted(PlanMount(folder, inside), f"{inside}/{name}")


def _request(site: Site, fitted: Fitted, target: _Mounted, drafter: _Mounted | None) -> LaunchRequest:
    candidate, demand = fitted.candidate, fitted.demand
    device, wish = candidate.device, site.wish
    ngram = wish.ngram or Ngram()
    if candidate.method is Method.NGRAM:
        ngram = ngram.model_copy(update={"longest": fitted.draft_tokens})
    threads = None
    if candidate.image.backend is Backend.CPU:
        threads = wish.threads or default_threads(site.facts)
    pool = vllm_pool(demand) if candidate.image.runtime is Runtime.VLLM else None
    settings = fitted.settings
    if settings.batch is not None:
        settings = settings.model_copy(update={"batch": demand.batch})  # as far as it is safe
    return LaunchRequest(
        model=target.path,
        names=(site.entry.name, *site.entry.aliases),
        method=candidate.method,
        drafter=None if drafter is None else drafter.path,
        draft_tokens=fitted.draft_tokens,
        context=fitted.context,
        parallel=fitted.parallel,
        backend=candidate.image.backend,
        arch=None if device is None else device.arch,
        threads=threads,
        ngram=ngram,
        prefix=candidate.image.prefix,
        kv=demand.kv,
        attention_backend=settings.attention_backend,
        kv_pool=None if pool is None else pool.bytes,
        memory_share=_share(fitted),
        state_bits=demand.state_bits,
        batch=demand.batch if candidate.image.runtime is Runtime.VLLM else None,
        eager=bool(settings.eager),
        mla=candidate.shape is not None and candidate.shape.kv_lora_rank is not None,
        hybrid=candidate.shape is not None and candidate.shape.linear_layers > 0,
        prefix_caching=prefix_caching_of(candidate, settings),
        prompt_cache=PROMPT_CACHE[candidate.image.backend] if candidate.image.runtime is Runtime.LLAMA_CPP else None,
        schedule=_schedule(fitted),
        version=_version(candidate.image),
        tensor_parallel=candidate.tensor_parallel,
        draft_tensor_parallel=None if candidate.draft_ranks == candidate.tensor_parallel else candidate.draft_ranks,
        trust_remote_code=candidate.variant.trust_remote_code,
        settings=settings,
        port=None if adapter(candidate.image.runtime).socket else PORT,
    )


def _version(image: ImageEntry) -> str | None:
    """What is known of the image's version: `0.26.0+` where only the oldest that it can be is."""
    return image.version if image.version or not image.at_least else f"{image.at_least}+"


def has_schedule(fitted: Fitted) -> bool:
    """Whether the engine itself stops drafting above the crossover."""
    return bool(_schedule(fitted))


def _schedule(fitted: Fitted) -> tuple[tuple[int, int, int], ...]:
    """vLLM's table of draft lengths by running requests, where there are as many sequences as the crossover."""
    candidate = fitted.candidate
    crossover = None if candidate.known is None else candidate.known.crossover
    image = candidate.image
    if image.runtime is not Runtime.VLLM or candidate.method in (Method.NONE, Method.NGRAM):
        return ()
    if not can_schedule(candidate.method, image.backend, _version(image)):
        return ()
    if crossover is None or not 1 < crossover <= fitted.parallel:
        return ()
    return ((1, crossover - 1, fitted.draft_tokens), (crossover, fitted.parallel, 0))


def default_threads(facts: HostFacts) -> int:
    """Half of what the host offers (its cores, where there are two threads a core): the gateway needs
    the rest, and spinning threads of llama.cpp on a shared machine cost it a factor of ten."""
    return max(1, min(facts.cpu.threads // 2, MOST_THREADS))


def _share(fitted: Fitted) -> float | None:
    """vLLM refuses to start when less than this share of the device is free; the pool has its own size."""
    device = fitted.candidate.device
    if fitted.candidate.image.runtime is not Runtime.VLLM or device is None or not device.memory_total:
        return None
    return min(max(math.floor(100 * fitted.expected.total / device.memory_total) / 100, 0.05), 0.95)


def _reasons(site: Site, fitted: Fitted) -> tuple[Reason, ...]:
    candidate, known, wish = fitted.candidate, fitted.candidate.known, site.wish
    reasons = [_method_reason(candidate, wish), _evidence_reason(candidate)]
    reasons.append(Reason("fits", f"takes {explain(fitted.expected)}{_range(fitted)}", candidate.variant.source))
    said = wish.context is not None and wish.parallel is not None
    sequences = "one sequence" if fitted.parallel == 1 else f"each of {fitted.parallel} sequences"
    text = f"{fitted.context} tokens for {sequences}" + ("" if said else ": the largest usual size that fits")
    reasons.append(Reason("size", text))
    reasons += fitted.reasons
    ordered = None if candidate.target is None or candidate.target.quantised is None else candidate.target.quantised.kv
    if ordered is not None and ordered is not fitted.demand.kv:
        text = f"the checkpoint orders {ordered} for the KV cache; {fitted.demand.kv} is said, which comes before it"
        reasons.append(Reason("checkpoint_kv", text, "vllm-project/vllm#44879: forced fp8 crashed with MTP"))
    if fitted.expected.budget is None:
        text = "how much memory there is is not known: nothing was compared with it, and little is taken"
        reasons.append(Reason("memory_unknown", text))
    if candidate.image.name == CUSTOM:
        text = (
            f"{candidate.image.reference} is taken to be {candidate.image.runtime} of the usual kind, for nothing is"
            " known of it: `runtime` says which it is, an [[image]] in catalog.d all of it"
        )
        reasons.append(Reason("image_assumed", text))
    if candidate.shape is None:
        reasons.append(Reason("shape_unknown", "KV cache and compute are not counted: the model's shape is not known"))
    if known is not None and known.crossover is not None and candidate.method is not Method.NONE:
        text = f"drafting stops paying at about {known.crossover} running requests"
        reasons.append(Reason("crossover", text, known.source))
    if candidate.device is None:
        reasons.append(Reason("cpu_only", _cpu_text(site)))
    if candidate.target is None:
        size = _size(candidate.variant.weight_bytes)
        text = f"the weights{size} are not on this host: `outrider model pull {site.entry.name}` fetches them"
        reasons.append(Reason("weights_missing", text))
    if candidate.drafter is not None and candidate.drafter_file is None:
        name, size = candidate.drafter.name, _size(candidate.drafter.weight_bytes)
        text = f"its drafter {name}{size} is not on this host: `outrider model pull {site.entry.name}` fetches it"
        reasons.append(Reason("drafter_missing", text))
    if not _IMAGE_ID.match(candidate.image.reference):
        text = f"{candidate.image.reference} is resolved to an image id before the start, which fixes the digest"
        reasons.append(Reason("image_unresolved", text))
    return tuple(reasons)


def _range(fitted: Fitted) -> str:
    """What is expected, next to the high side that was decided on."""
    expected = fitted.expected
    if expected.low is None or not expected.margin:
        return ""
    low, high = gibibytes(expected.low), gibibytes(expected.total)
    return f"; {gibibytes(expected.likely)} are expected, {low} to {high} were seen of such"


def _size(size: int | None) -> str:
    return "" if size is None else f" ({amount(size)})"


def _cpu_text(site: Site) -> str:
    if site.facts.accelerators:
        return "runs on the CPU, for its image was asked for; this host has a GPU"
    return "runs on the CPU: this host has no GPU that was found"


def _method_reason(candidate: Candidate, wish: Preferences) -> Reason:
    if wish.method is not None:
        return Reason("method", f"{candidate.method} was asked for")
    if candidate.method is Method.NONE:
        return Reason("method", "no speculation")
    drafter = "" if candidate.drafter is None else f" with {candidate.drafter.name}"
    source = None if candidate.known is None else candidate.known.source
    return Reason("method", f"{candidate.method}{drafter}", source)


def _evidence_reason(candidate: Candidate) -> Reason:
    known = candidate.known
    if known is None:
        return Reason("evidence", "untried: nobody is known to have run this combination")
    when = f"{candidate.evidence} ({known.date.isoformat()})"
    if candidate.evidence is Evidence.UNTRIED and known.evidence is Evidence.PROVEN:
        when = f"untried here: proven {known.date.isoformat()} for versions {known.versions or 'of then'}"
    if known.model == "*":
        when += " for this engine and method, whatever the model"
    return Reason("evidence", when if known.note is None else f"{when}: {known.note}", known.source)

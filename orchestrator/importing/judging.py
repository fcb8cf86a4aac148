"""What is known against a recipe on this host: an adapter's refusal, restrictions that refuse, limit or warn. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hosts.facts import Accelerator, HostFacts
from orchestrator.catalogue.restrictions import Restriction, Situation, holding
from orchestrator.catalogue.types import Catalogue, ImageEntry
from orchestrator.importing.recipe import Recipe
from orchestrator.kinds import Backend, KvType
from orchestrator.models import ModelEntry, Runtime
from orchestrator.plan import NEEDS_DRAFTER, Method
from orchestrator.runtimes import ADAPTERS, LaunchRequest
from orchestrator.settings import Settings


@dataclass(frozen=True, slots=True)
class Here:
    """What sharpens an answer: the catalogue, the host (None: unknown), the name that the model is to have."""

    catalogue: Catalogue
    facts: HostFacts | None = None
    name: str | None = None

    @property
    def device(self) -> Accelerator | None:
        """The first accelerator."""
        return None if self.facts is None or not self.facts.accelerators else self.facts.accelerators[0]


def our_image(runtime: Runtime, here: Here) -> ImageEntry | None:
    device = here.device
    fitting = [i for i in here.catalogue.images if i.runtime is runtime]
    if device is not None:
        fitting = [i for i in fitting if i.serves(device.vendor, device.arch)]
    return fitting[0] if fitting and (device is not None or len(fitting) == 1) else None


def judged(recipe: Recipe, entry: ModelEntry, here: Here) -> ModelEntry:
    """The entry within what the runtime's adapter and the known restrictions say, as the planner would hear it.

    A size of an entry is a wish, and the planner refuses a wish that is not safe: so sizes are cut here, aloud.
    """
    device = here.device
    image = our_image(recipe.runtime, here)
    backend = _backend(device, image)
    method = entry.speculation.method if isinstance(entry.speculation.method, Method) else Method.NONE
    if method in NEEDS_DRAFTER and not entry.drafters:
        recipe.refuse("no_drafter", f"{method} needs a drafter, and none is named")
        return entry
    default = KvType.F16 if recipe.runtime is Runtime.LLAMA_CPP else KvType.BF16
    request = LaunchRequest(
        model="/models/target",
        names=(entry.name,),
        method=method,
        drafter="/models/drafter" if entry.drafters else None,
        draft_tokens=entry.speculation.draft_tokens or (0 if method is Method.NONE else 1),
        context=entry.context or 4096,
        parallel=entry.parallel or 1,
        backend=backend,
        arch=None if device is None else device.arch,
        kv=entry.kv or default,
        attention_backend=entry.attention_backend,
        batch=entry.batch,
        port="{port}" if recipe.runtime is Runtime.SGLANG else None,
        version=None if image is None or entry.image not in (None, image.reference) else image.version,
        tensor_parallel=entry.tensor_parallel or 1,
        settings=Settings(attention_backend=entry.attention_backend),
    )
    adapter = ADAPTERS.get(recipe.runtime)
    reason = None if adapter is None or device is None else adapter.refuses(request)
    if reason is not None:
        recipe.refuse(reason.code, reason.text, reason.source)
    if device is not None and image is None and entry.image is None:
        where = f"{device.vendor} {device.arch or 'of unknown architecture'}"
        recipe.refuse("no_image", f"no image of the catalogue runs {recipe.runtime} on {where}")
    if device is None:
        return entry
    held = holding(here.catalogue.restrictions, _situation(recipe, entry, request, device, image))
    for restriction in held:
        if restriction.effect == "refuse":
            recipe.refuse(restriction.id, restriction.text, restriction.source)
        elif restriction.effect != "limit":
            recipe.change("known_limit", restriction.id, None, restriction.text, restriction.source)
    return _within(recipe, entry, [restriction for restriction in held if restriction.effect == "limit"])


def _backend(device: Accelerator | None, image: ImageEntry | None) -> Backend:
    if image is not None:
        return image.backend
    if device is None:
        return Backend.CPU
    return Backend.CUDA if device.vendor == "nvidia" else Backend.ROCM


def _situation(
    recipe: Recipe, entry: ModelEntry, request: LaunchRequest, device: Accelerator, image: ImageEntry | None
) -> Situation:
    variant = entry.variants[0]
    shape = variant.shape
    return Situation(
        runtime=recipe.runtime,
        model=entry.name,
        method=request.method,
        version=request.version if image is None or request.version is not None else image.least_version,
        image="" if image is None else image.name,
        drafter=entry.drafters[0].name if entry.drafters else "",
        memory=device.memory_total,
        backend=request.backend,
        arch=device.arch,
        format=variant.format,
        quantisation=variant.quantisation,
        hybrid=None if shape is None else shape.linear_layers > 0,
        mla=None if shape is None else shape.kv_lora_rank is not None,
        unified=device.unified,
        kv=request.kv,
        attention_backend=entry.attention_backend,
        context=entry.context,
        parallel=entry.parallel,
        draft_tokens=entry.speculation.draft_tokens,
        batch=entry.batch,
        tensor_parallel=request.tensor_parallel,
    )


def _within(recipe: Recipe, entry: ModelEntry, limits: Sequence[Restriction]) -> ModelEntry:
    """The entry with no size above the lowest limit for it."""
    drafted = entry.speculation.draft_tokens
    sizes = {"context": entry.context, "parallel": entry.parallel, "draft_tokens": drafted, "batch": entry.batch}
    cut: dict[str, int] = {}
    for what, asked in sizes.items():
        bounds = [(most, r) for r in limits if (most := getattr(r.limits, what)) is not None]
        if asked is None or not bounds:
            continue
        most, by = min(bounds, key=lambda bound: bound[0])
        if asked > most:
            said = what.replace("_", " ")
            recipe.change("known_limit", f"{said} {asked}", f"{said} {most}", by.text, by.source)
            cut[what] = most
    if "draft_tokens" in cut:
        shorter = entry.speculation.model_copy(update={"draft_tokens": cut.pop("draft_tokens")})
        entry = entry.model_copy(update={"speculation": shorter})
    return entry.model_copy(update=cut)

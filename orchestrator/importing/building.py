"""From what a command line asks for to a deployment: known models, drafters, images; legal pairs; clamps. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from orchestrator import known_shapes
from orchestrator.catalogue.types import Catalogue
from orchestrator.importing.container import Container
from orchestrator.importing.judging import Here, judged, our_image
from orchestrator.importing.naming import REPOSITORY, full_name, is_path, quantisation, slug
from orchestrator.importing.recipe import Recipe, placeholder
from orchestrator.importing.values import Item, Outcome
from orchestrator.models import Drafter, Format, ModelEntry, Speculation, Variant
from orchestrator.plan import Method

MOST_BATCH = 8192
"""Scratch of gated delta nets grows with it; 4096 to 8192 is the most on 24 GB (club-3090#838). The restriction
`vllm-hybrid-batch` says so to plans; here it counts for hosts and models that are not known as well."""
ROOMY = 40 << 30
"""A device with more than this takes larger batches."""
_FLOATING = re.compile(r"^(?:latest|nightly|stable|main|dev|edge|server(?:-(?:cuda|cuda12|cuda13|rocm|vulkan))?|)$")
_BLOCKS: Mapping[Method, int] = {Method.DFLASH: 15}
"""What a drafter of the usual block (16) drafts at most, where its own length is not known."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class _Found:
    """A model of the catalogue, and which of its variants it is (None: one of its kind that is not there)."""

    entry: ModelEntry | None = None
    variant: Variant | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where weights are: one of both."""

    path: str | None
    repository: str | None


def item(recipe: Recipe, container: Container | None, here: Here, line: int, text: str) -> Item:
    """The deployment, or the first reason against it; what is different here in both cases."""
    if container is not None:
        recipe.image = container.image
        recipe.changes[:0] = container.changes
    entry = _entry(recipe, container, here)
    if entry is not None and recipe.refusal is None:
        entry = judged(recipe, entry, here)
    if recipe.refusal is not None or entry is None:
        return Item(
            Outcome.REFUSED, recipe.runtime.value, line, text, reason=recipe.refusal, changes=tuple(recipe.changes)
        )
    return Item(Outcome.DEPLOYMENT, recipe.runtime.value, line, text, entry, None, tuple(recipe.changes))


def _entry(recipe: Recipe, container: Container | None, here: Here) -> ModelEntry | None:
    for what, said in (("model", recipe.model), ("drafter", recipe.drafter)):
        if placeholder(said):
            recipe.refuse("placeholder", f"the {what} {said} is to be filled in: name a repository or a file")
    if recipe.model is None:
        recipe.refuse("no_model", "options without a model: say which, as a repository or a path")
    if recipe.refusal is not None or recipe.model is None:
        _clamp(recipe, None)  # said all the same, for whoever mends the line
        return None
    found = _known(here.catalogue, recipe.model, recipe.format or Format.SAFETENSORS)
    variant = _variant(recipe, container, found)
    if variant is None:
        return None
    drafters = _drafter(recipe, container, found, variant)
    _clamp(recipe, drafters[0] if drafters else None)
    _sizes(recipe, here)
    image = _image(recipe, here)
    name = here.name or (found.entry.name if found.entry is not None else slug(_title(recipe.model)))
    repository = recipe.model if variant.repository is not None else None
    names = [*recipe.aliases, *([repository] if repository else [])]
    known = () if found.entry is None else found.entry.aliases
    aliases = tuple(dict.fromkeys(n for n in (*known, *names) if re.fullmatch(r"[A-Za-z0-9][\w.:/@-]{0,127}", n)))
    try:
        return ModelEntry(
            name=name,
            aliases=tuple(alias for alias in aliases if alias != name),
            variants=(variant,),
            drafters=drafters,
            speculation=_speculation(recipe, drafters),
            variant=variant.name,
            runtime=recipe.runtime,
            image=image,
            context=recipe.context,
            parallel=recipe.parallel,
            threads=recipe.threads,
            kv=recipe.kv,
            attention_backend=recipe.attention_backend,
            tensor_parallel=recipe.tensor_parallel,
            batch=recipe.batch,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        recipe.refuse("bad_value", f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
        return None


def _title(model: str) -> str:
    base, _, tag = model.rstrip("/").rpartition("/")[2].partition(":")
    return f"{base.removesuffix('.gguf')}-{tag}" if tag else base.removesuffix(".gguf")


def _known(catalogue: Catalogue, model: str, form: Format) -> _Found:
    base = model.partition(":")[0]
    for entry in catalogue.models:
        for variant in entry.variants:
            theirs = variant.repository or ""
            if theirs == model or (":" not in model and theirs.partition(":")[0] == model and variant.format is form):
                return _Found(entry, variant)
    for entry in catalogue.models:
        if base in entry.aliases or any((v.repository or "").partition(":")[0] == base for v in entry.variants):
            return _Found(entry)
    return _Found()


def _variant(recipe: Recipe, container: Container | None, found: _Found) -> Variant | None:
    assert recipe.model is not None
    trust = _trust(recipe)
    if found.variant is not None:
        update = {"trust_remote_code": trust, "revision": recipe.revision or found.variant.revision}
        return found.variant.model_copy(update=update)
    form = recipe.format or Format.SAFETENSORS
    shape = next((v.shape for v in found.entry.variants if v.shape), None) if found.entry is not None else None
    if shape is None and (public := known_shapes.find(recipe.model)) is not None:
        shape = public.shape
    where = _place(recipe, container, recipe.model, "model")
    if where is None:
        return None
    base, _, tag = recipe.model.partition(":")
    word = quantisation(base, _tag(recipe.file or "") or tag or _tag(recipe.model))
    if form is Format.GGUF and word == "BF16" and not re.search("bf16", recipe.model, re.IGNORECASE):
        # of a repository llama-server takes Q4_K_M where nothing is said (common/arg.cpp); a file says it itself
        word = "Q4_K_M" if where.path is None and recipe.file is None else "unknown"
    try:
        return Variant(
            name=slug(word, "given"),
            format=form,
            quantisation=word,
            revision=recipe.revision,
            file=recipe.file,
            shape=shape,
            runtimes=(),
            trust_remote_code=trust,
            source="an imported command line",
            path=where.path,
            repository=where.repository,
        )
    except ValidationError as error:
        recipe.refuse("bad_value", f"model: {error.errors(include_url=False)[0]['msg']}")
        return None


def _tag(model: str) -> str | None:
    match = re.search(r"[-.]((?:UD-)?(?:I?Q\d\w*|F16|BF16|F32|MXFP4\w*))\.gguf$", model, re.IGNORECASE)
    return match[1] if match else None


def _trust(recipe: Recipe) -> bool:
    if not recipe.trust_remote_code:
        return False
    if recipe.revision is not None and _COMMIT.fullmatch(recipe.revision):
        return True
    why = "code of a repository runs only at a pinned commit (`revision`, 40 hexadecimal digits): it is left off"
    recipe.change("needs_revision", "--trust-remote-code", None, why, "Outrider")
    return False


def _place(recipe: Recipe, container: Container | None, text: str, what: str) -> _Place | None:
    """`path` or `repository` of a model or drafter."""
    if is_path(text):
        path = text if container is None else container.host_path(text)
        if not path.startswith("/"):
            recipe.refuse(
                "relative_path", f"the {what} {text} has no absolute path: the daemon has a folder of its own"
            )
            return None
        return _Place(path, None)
    if not REPOSITORY.fullmatch(text):
        recipe.refuse("model_unclear", f"the {what} {text[:200]!r} is neither a repository nor an absolute path")
        return None
    return _Place(None, text)


def _drafter(recipe: Recipe, container: Container | None, found: _Found, variant: Variant) -> tuple[Drafter, ...]:
    if recipe.drafter is None:
        return ()
    if recipe.method is None:
        recipe.method = _inferred(recipe.drafter)
        why = "the method is always said: an engine guesses it from the drafter's name"
        recipe.change("method_said", "no method", recipe.method.value, why, "vLLM 0.33.0 config/speculative.py")
    if recipe.method in (Method.NONE, Method.NGRAM):
        recipe.change("drafter_unused", recipe.drafter, None, f"method {recipe.method} takes no drafter")
        return ()
    if recipe.method is Method.MTP and variant.format is not Format.GGUF:
        why = "the head is looked for in the model's own files"
        recipe.change("drafter_unused", recipe.drafter, None, why)
        return ()
    known = () if found.entry is None else found.entry.drafters
    for drafter in known:
        if drafter.repository == recipe.drafter:
            return (drafter.model_copy(update={"variants": (), "method": recipe.method}),)
    where = _place(recipe, container, recipe.drafter, "drafter")
    if where is None:
        return ()
    try:
        return (
            Drafter(
                name=slug(_title(recipe.drafter)),
                method=recipe.method,
                format=variant.format,
                path=where.path,
                repository=where.repository,
            ),
        )
    except ValidationError as error:
        recipe.refuse("bad_value", f"drafter: {error.errors(include_url=False)[0]['msg']}")
        return ()


def _inferred(drafter: str) -> Method:
    name = drafter.lower()
    for word, method in (("dflash", Method.DFLASH), ("dspark", Method.DSPARK), ("eagle", Method.EAGLE3)):
        if word in name:
            return method
    return Method.DRAFT


def _clamp(recipe: Recipe, drafter: Drafter | None) -> None:
    """A draft is never longer than the block that the drafter was trained for."""
    asked = recipe.draft_tokens
    if asked is None or recipe.method is None:
        return
    limit = drafter.draft_tokens if drafter is not None and drafter.draft_tokens else _BLOCKS.get(recipe.method)
    if limit is not None and asked > limit:
        why = "a block's first token is the one it starts from; engines cut longer drafts off, or fail"
        recipe.change(
            "draft_clamped", f"{asked} draft tokens", str(limit), why, "llama.cpp b11434 speculative.cpp:1077"
        )
        recipe.draft_tokens = limit


def _sizes(recipe: Recipe, here: Here) -> None:
    total = None if here.device is None else here.device.memory_total
    if recipe.batch is not None and recipe.batch > MOST_BATCH and (total is None or total <= ROOMY):
        why = "scratch memory grows with it: 4096 to 8192 is the most on 24 GB"
        recipe.change("batch_risky", f"{recipe.batch} batched tokens", str(MOST_BATCH), why, "noonghunna/club-3090#838")
        recipe.batch = MOST_BATCH
    if recipe.parallel is not None and recipe.parallel > 256:
        recipe.change("parallel_capped", f"{recipe.parallel} sequences", "256", "an engine has at most 256")
        recipe.parallel = 256


def _image(recipe: Recipe, here: Here) -> str | None:
    """The image to pin by name; None leaves it to the planner."""
    if recipe.image is None:
        return None
    image = full_name(recipe.image)
    name, at, _ = image.partition("@")
    tag = name.rpartition(":")[2] if ":" in name.rpartition("/")[2] else ""
    ours = our_image(recipe.runtime, here)
    if not at and _FLOATING.match(tag.lower()):
        becomes = "the image that the planner chooses" if ours is None else ours.reference
        why = "what a floating tag means changes under you: images are pinned to a digest once, and shown"
        recipe.change("image_latest", recipe.image, becomes, why, "Outrider")
        return None
    if any(known.reference == image for known in here.catalogue.images):
        if image != recipe.image:
            recipe.change(
                "image_named", recipe.image, image, "the registry is always said: none is searched", "Outrider"
            )
        return image
    recipe.change(
        "image_kept", recipe.image, image, "an image that the catalogue does not know: what it needs is not known"
    )
    return image


def _speculation(recipe: Recipe, drafters: tuple[Drafter, ...]) -> Speculation:
    if recipe.method is None:
        why = 'nothing was said: the planner chooses; `method = "none"` keeps it off'
        recipe.change("speculation_auto", "no speculation", "auto", why, "Outrider")
        return Speculation()
    values: dict[str, object] = {"method": recipe.method}
    if drafters:
        values["drafter"] = drafters[0].name
    if recipe.draft_tokens is not None and recipe.method is not Method.NONE:
        values["draft_tokens"] = recipe.draft_tokens
    if recipe.method is Method.NGRAM and recipe.ngram is not None:
        values["ngram"] = recipe.ngram
    return Speculation.model_validate(values)

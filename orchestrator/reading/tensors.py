"""What a model's tensors are for, by their names: embedding, output head, vision tower, MTP head. Pure.

Names as checkpoints on the hub have them; vLLM 0.33.0's loaders (model_executor/models) map the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.file_facts import Portions
from orchestrator.reading.safetensors_file import Tensor

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,6})\.")
_MTP_LAYER = re.compile(r"(?:^|\.)(?:mtp|mtp_layers|mtp_block|nextn)(?:\.layers)?\.(\d{1,6})(?:\.|$)")
_MTP = re.compile(r"(?:^|\.)(?:mtp|mtp_layers|mtp_block|mtp_emb_norm|mtp_linear_proj|nextn)(?:\.|$)")
_SENSES = frozenset({
    "visual", "vision_tower", "vision_model", "vision_encoder", "vision_embed_tokens", "vit", "vpm", "resampler",
    "multi_modal_projector", "mm_projector", "embed_vision", "vision_adapter", "vision_language_adapter",
    "patch_merger", "audio_tower", "audio_model", "audio_encoder", "embed_audio", "speech_encoder", "mlp1",
})  # fmt: skip
_OTHERS = frozenset({"talker", "code2wav", "token2wav"})
"""Parts of speaking models that text engines do not load."""
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings|embeddings)\.")
_HEAD = re.compile(r"^(?:model\.|language_model\.|thinker\.)*(?:lm_head|output)\.")
_WIDE = ("F", "B")
"""Types of weights that are no packed integers start with one of these."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the tensors of a model tell."""

    portions: Portions
    mtp_layers: int
    """Layers of an MTP head that have weights."""
    beyond: int
    """Of these, layers that are numbered on from the model's own."""
    main_layers: int
    """Layers of the model that have weights, the MTP head's not counted."""
    has_embedding: bool
    has_head: bool
    dtype: str | None
    """The type that most bytes of wide weights have, as safetensors name it."""
    most: str | None
    """The type that most bytes have."""


def told(tensors: Iterable[tuple[str, Tensor]], layers: int | None) -> Told:
    """Sort tensors by what they are for. `layers` is how many layers the configuration gives the model: what is
    numbered from there on is an MTP head, as DeepSeek, GLM and Ling store theirs."""
    sums: Counter[str] = Counter()
    types: Counter[str] = Counter()
    heads: set[int] = set()
    beyond: set[int] = set()
    main: set[int] = set()
    for name, tensor in tensors:
        part = _part(name, layers, (heads, beyond, main))
        sums[part] += tensor.bytes
        types[tensor.dtype] += tensor.bytes
    wide = {t: n for t, n in types.items() if t.startswith(_WIDE) and not t.startswith(("F8", "F4", "F6", "BOOL"))}
    portions = Portions(
        embedding=sums["embedding"], head=sums["head"], vision=sums["vision"], mtp=sums["mtp"], rest=sums["rest"]
    )
    return Told(
        portions=portions,
        mtp_layers=len(heads) + len(beyond),
        beyond=len(beyond),
        main_layers=len(main),
        has_embedding=sums["embedding"] > 0,
        has_head=sums["head"] > 0,
        dtype=_most(wide),
        most=_most(types),
    )


def _part(name: str, layers: int | None, seen: tuple[set[int], set[int], set[int]]) -> str:
    """What a tensor is for; the layer it belongs to is added to those seen: of an MTP head, beyond, of the model."""
    heads, beyond, main = seen
    words = name.split(".")[:5]
    if not _SENSES.isdisjoint(words):
        return "vision"
    if not _OTHERS.isdisjoint(words):
        return "vision"
    if _MTP.search(name):
        numbered = _MTP_LAYER.search(name)
        if numbered is not None:
            heads.add(int(numbered[1]))
        return "mtp"
    layer = _LAYER.search(name)
    if layer is not None:
        number = int(layer[1])
        if layers is not None and number >= layers:
            beyond.add(number)
            return "mtp"
        main.add(number)
        return "rest"
    if _HEAD.search(name):
        return "head"
    return "embedding" if _EMBEDDING.search(name) else "rest"


def _most(weights: Mapping[str, int]) -> str | None:
    return max(sorted(weights), key=lambda one: weights[one]) if weights else None

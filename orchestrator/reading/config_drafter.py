"""Whether a configuration is a drafter's, and what it says of its target. Pure.

Architectures and keys: vLLM 0.33.0 (model_executor/models/registry.py, qwen3_dflash.py, qwen3_dflash2.py,
qwen3_dspark.py, transformers_utils/configs/speculators/algos.py), llama.cpp (conversion/qwen.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.file_facts import DrafterFacts
from orchestrator.plan import Method
from orchestrator.reading.safetensors_file import Tensor
from orchestrator.reading.said import Said

_KINDS = (("dspark", Method.DSPARK), ("dflash", Method.DFLASH), ("eagle3", Method.EAGLE3))
DEFAULT_BLOCK = 16
"""DFlash's block where nothing is said (llama.cpp's converter, SGLang)."""
_FEATURES = 3
"""Hidden states that an EAGLE-3 head reads where it does not say which."""


def drafter(outer: Said, said: Said, tensors: Mapping[str, Tensor]) -> DrafterFacts | None:
    """A drafter's facts; None for a model that stands for itself. Raises `BadKey`."""
    method = _method(outer, tensors)
    if method is None:
        return None
    part = outer.part("dflash_config", "eagle_config", "dspark_config") or Said({})
    return DrafterFacts(
        method=method,
        block_size=None if method is Method.EAGLE3 else _block(outer, part, method),
        target_layers=_target_layers(outer, part, method),
        target_hidden=_width(outer, part, said, tensors, method),
        target_depth=outer.count("num_target_layers") or part.count("num_target_layers"),
        mask_token=next((n for one in (part, outer) if (n := one.count("mask_token_id", least=0)) is not None), None),
        version=2 if _second(outer, part, tensors) else 1,
        markov_rank=outer.count("markov_rank", least=0) or part.count("markov_rank", least=0) or _markov(tensors),
        draft_vocab=outer.count("draft_vocab_size") or None,
    )


def _method(outer: Said, tensors: Mapping[str, Tensor]) -> Method | None:
    """DSpark's heads make a DSpark of what is called DFlash, as in llama.cpp."""
    part = outer.part("dflash_config")
    dspark = _markov(tensors) is not None or (part is not None and part.raw("projector_type") == "dspark")
    names = [*outer.words("architectures"), outer.raw("speculators_model_type"), outer.raw("model_type")]
    for name in (str(n).lower() for n in names if isinstance(n, str)):
        for word, method in _KINDS:
            if word in name.replace("-", "").replace("_", ""):
                return Method.DSPARK if method is Method.DFLASH and dspark else method
    if part is not None:
        return Method.DSPARK if dspark else Method.DFLASH
    return Method.EAGLE3 if "fc.weight" in tensors and any(n.startswith("midlayer.") for n in tensors) else None


def _block(outer: Said, part: Said, method: Method) -> int | None:
    block = part.count("block_size") or outer.count("block_size")
    return block or (DEFAULT_BLOCK if method is Method.DFLASH else None)


def _target_layers(outer: Said, part: Said, method: Method) -> tuple[int, ...]:
    """As the states that enter a layer. DFlash and DSpark count the layers that states leave, from 0; the
    speculators format and EAGLE-3 count as llama.cpp does."""
    entered = outer.counts("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
    entered = entered or part.counts("eagle_aux_hidden_state_layer_ids")
    left = part.counts("target_layer_ids") or outer.counts("target_layer_ids")
    if method is Method.EAGLE3:
        return entered
    return tuple(n + 1 for n in left) if left else entered


def _width(outer: Said, part: Said, said: Said, tensors: Mapping[str, Tensor], method: Method) -> int | None:
    """The target's width: said, else from the projection that takes its hidden states side by side."""
    width = outer.count("target_hidden_size") or part.count("target_hidden_size")
    if width is not None:
        return width
    fc = tensors.get("fc.weight") or tensors.get("model.fc.weight")
    features = len(_target_layers(outer, part, method)) or _FEATURES
    if fc is not None and len(fc.dims) == 2 and fc.dims[1] % features == 0:
        return fc.dims[1] // features
    return said.count("hidden_size") if method is not Method.EAGLE3 else None


def _second(outer: Said, part: Said, tensors: Mapping[str, Tensor]) -> bool:
    """Whether it is a DFlash 2: a selector among candidates and grouped convolutions."""
    if any("dflash2" in name.lower() for name in outer.words("architectures")):
        return True
    return part.has("selector_rank", "conv_kernel_size") or any(
        n.startswith(("selector", "candidate_selector", "model.selector")) for n in tensors
    )


def _markov(tensors: Mapping[str, Tensor]) -> int | None:
    """The rank of DSpark's Markov head, by its first matrix."""
    for name, tensor in tensors.items():
        if name.endswith("markov_w1.weight") and len(tensor.dims) == 2:
            return min(tensor.dims)
    return None

"""What a row's model and quantisation texts name: a known model, a quantisation, bytes that they state."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.fit import quantisation as quantising
from orchestrator.fit.quantisation import Quantisation
from orchestrator.known_shapes import Known, find

_PUBLISHER = re.compile(r"(?:^|\s)([A-Za-z0-9][\w.-]*)/[A-Za-z0-9]")
_OFFLOADED = re.compile(r"experts in ram|cpu-moe|experts (on|in|to) cpu|experts in (system )?memory|ktransformers")
_MAKERS = frozenset(
    {
        "01-ai", "codellama", "deepseek-ai", "google", "huggingfacetb", "ibm-granite", "internlm", "meta-llama",
        "microsoft", "mistralai", "moonshotai", "openai", "qwen", "thudm", "tinyllama", "zai-org",
    }
)  # fmt: skip
"""Publishers of their own models: a repository of theirs without a quantisation in its name is not quantised."""
_NO_VISION = re.compile(r"no vision|text[- ]only|language[- ]model[- ]only")
_LOADED = re.compile(r"loading took|weights? (?:took )?\d|loaded")


@dataclass(frozen=True, slots=True)
class Named:
    """What the texts say. `stated` are bytes of the files, or of what one device loaded where `loaded`."""

    known: Known | None
    quantisation: Quantisation | None
    publisher: str | None
    stated: int | None
    loaded: bool = False
    experts_in_ram: bool = False
    no_vision: bool = False


@lru_cache(maxsize=4096)
def named(model: str, quant: str | None, *, log_units: bool = False) -> Named:
    """Read the texts. `log_units`: where they say GB they quote a log that means GiB."""
    known = find(model)
    stated, text = None, model
    for text in (quant or "", model):
        stated = quantising.stated_bytes(text, gigabyte_is_gib=log_units)
        if stated is not None:
            break
    publisher = _PUBLISHER.search(model)
    low = f"{model} {quant or ''}".lower()
    understood = quantising.parse(quant) if quant is not None else None
    mentioned = quantising.parse(model)
    if understood is not None and mentioned is not None and mentioned.gguf and understood.gguf:
        understood = _telling(understood, mentioned)
    understood = understood or mentioned
    if understood is None and known is not None:
        understood = _by_default(known, low)
    if understood is None and log_units and publisher is not None and publisher[1].lower() in _MAKERS:
        understood = Quantisation("bf16", False)
    if understood is not None and "qat" in low and not understood.qat:
        understood = Quantisation(understood.kind, understood.gguf, True, understood.unsloth)
    return Named(
        known,
        understood,
        publisher[1] if publisher else None,
        stated,
        stated is not None and bool(_LOADED.search(text.lower())),
        bool(_OFFLOADED.search(low)),
        bool(_NO_VISION.search(low)),
    )


def _telling(quant: Quantisation, model: Quantisation) -> Quantisation:
    """llama.cpp calls Unsloth's UD-Q4_K_XL `Q4_K - Medium`: the file's own name tells more."""
    return model if model.unsloth and not quant.unsloth else quant


def _by_default(known: Known, low: str) -> Quantisation | None:
    if "ollama" in low and known.ollama is not None:
        return Quantisation(known.ollama, True)
    if known.native is not None:
        return Quantisation(known.native, False)
    return None

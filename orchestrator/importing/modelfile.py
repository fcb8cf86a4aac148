"""Ollama's Modelfile. Outrider does not run Ollama: the answer says what the file asks for. Pure."""

from __future__ import annotations

import re

from orchestrator.importing import elsewhere
from orchestrator.importing.values import Change, Item

_LINE = re.compile(r"^\s*(FROM|DRAFT|PARAMETER|TEMPLATE|SYSTEM|ADAPTER|LICENSE|MESSAGE)\s+(.*)$", re.IGNORECASE)


def looks(text: str) -> bool:
    """Whether a text is a Modelfile: its first word of weight is FROM, and it is no Containerfile."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return (
        bool(lines)
        and bool(re.match(r"\s*FROM\s+\S", lines[0]))
        and not re.search(r"^(RUN|COPY|CMD)\s", text, re.MULTILINE)
    )


def read(text: str) -> Item:
    """The refusal, with what its lines would be here."""
    outcome, what, reason, _ = elsewhere.runtime("ollama")
    changes: list[Change] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        word, value = match[1].upper(), match[2].strip()[:200]
        if word == "FROM":
            why = "weights are a repository or a file: `outrider model pull NAME --repository ORG/REPO`"
            changes.append(Change("model", f"FROM {value}", "a variant", why))
        elif word == "DRAFT":
            why = "a drafter of its own format: llama.cpp takes GGUF, vLLM safetensors"
            changes.append(Change("drafter", f"DRAFT {value}", "a drafter with method dflash", why, "ollama#17865"))
        elif word == "PARAMETER" and value.startswith("num_ctx"):
            changes.append(Change("context", value, "context", "tokens of each sequence"))
        else:
            changes.append(Change("not_carried", f"{word} {value}"[:120], None, "Outrider has no setting for it"))
    return Item(outcome, what, 1, "Modelfile", None, reason, tuple(changes))

"""What is a secret in a recipe: it is named, and neither carried over nor printed. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from orchestrator.importing.values import HIDDEN

_NAME = re.compile(
    r"token$|token_|_token|secret|passw|passphrase|credential|api[-_]?key|_key$|-key$|auth$", re.IGNORECASE
)
_NOT_SECRET = re.compile(r"tokens|token[-_]?id|key[-_]file|cert|tokenizer|per[-_]token", re.IGNORECASE)
_FLAGS = frozenset({"--api-key", "--hf-token", "-hft", "--admin-api-key", "--password"})
_VALUE = re.compile(
    r"\b(?:hf_\w{6,}|gh[pousr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|sk-[\w-]{8,}|nvapi-[\w-]{8,}|eyJ[\w-]{8,}\.[\w.-]+)"
)
_LOGIN = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{0,31}://)[^\s/@'\"]{1,512}@")
LONGEST = 2000


def is_secret(name: str) -> bool:
    """Whether a flag or a variable of this name holds a secret."""
    return name in _FLAGS or (bool(_NAME.search(name)) and not _NOT_SECRET.search(name))


def hidden(text: str) -> str:
    """The text without values that look like keys, and without logins in addresses."""
    return _LOGIN.sub(rf"\1{HIDDEN}@", _VALUE.sub(HIDDEN, text))


def shown(words: Iterable[str], env: Mapping[str, str] | None = None) -> str:
    """A command line as a person may see it, cut off where it is long."""
    said: list[str] = [f"{name}={HIDDEN if is_secret(name) else hidden(value)}" for name, value in (env or {}).items()]
    conceal = False
    for word in words:
        name, equals, value = word.partition("=")
        if conceal and not word.startswith("-"):
            said.append(HIDDEN)
            conceal = False
        elif equals and is_secret(name.lstrip("-") if not name.startswith("-") else name):
            said.append(f"{name}={HIDDEN}")
            conceal = False
        else:
            said.append(hidden(word))
            conceal = word.startswith("-") and is_secret(word)
        del value
    text = " ".join(word if HIDDEN in word else shlex.quote(word) for word in said)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."

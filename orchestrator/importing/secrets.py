"""What is a secret in a recipe: it is named, and neither carried over nor printed. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from orchestrator.importing.values import HIDDEN

_NAME = re.compile(
    r"token$|token_|_token|secret|passw|passphrase|(?:^|_)(?:pass|pwd|pat)$|credential|api[-_]?key|access[-_]?key"
    r"|_key$|-key$|auth$|authorization|cookie|bearer",
    re.IGNORECASE,
)
_NOT_SECRET = re.compile(r"tokens|token[-_]?id|key[-_]file|cert|tokenizer|per[-_]token", re.IGNORECASE)
_FLAGS = frozenset({"--api-key", "--hf-token", "-hft", "--admin-api-key", "--password"})
_VALUE = re.compile(
    r"\b(?:hf_\w{6,}|gh[pousr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|sk-[\w-]{8,}|nvapi-[\w-]{8,}|eyJ[\w-]{8,}\.[\w.-]+)"
)
_LOGIN = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{0,31}://)[^\s/'\"]{1,512}@")
_HEADER = re.compile(r"\b(bearer|basic|token|x-api-key:|api-key:)(\s+)[\w.~+/=-]{6,}", re.IGNORECASE)
_QUERY = re.compile(r"([?&;](?:[\w.-]{0,40}(?:token|key|secret|passw\w*|signature)|sig)=)[^&;\s'\"]+", re.IGNORECASE)
_GIVEN = re.compile(
    r"(?<![\w.-])(?:(?P<flag>--?[A-Za-z][\w-]{0,80})[ \t\\\n]{1,8}"
    r"|(?P<name>-{0,2}[A-Za-z_][\w.-]{0,80})[\"']?\s{0,8}[=:]\s{0,8})"
    r"(?=(?P<value>\"[^\"\n]{1,2000}\"|'[^'\n]{1,2000}'|[^\s\"'\\]{1,2000}))"
)
_LEAST = 6
"""A shorter value is a word like `EMPTY`, and stands in every text."""
_CLIENTS = {"curl": ("-u", "--user"), "wget": ("--user",), "login": ("-p", "-u")}
"""What is followed by a login, by program or verb."""
LONGEST = 2000


def is_secret(name: str) -> bool:
    """Whether a flag or a variable of this name holds a secret."""
    return name in _FLAGS or (bool(_NAME.search(name)) and not _NOT_SECRET.search(name))


def hidden(text: str) -> str:
    """The text without values that look like keys, and without logins and keys in addresses and headers."""
    text = _HEADER.sub(rf"\1\2{HIDDEN}", _VALUE.sub(HIDDEN, text))
    return _QUERY.sub(rf"\1{HIDDEN}", _LOGIN.sub(rf"\1{HIDDEN}@", text))


def given(text: str) -> tuple[str, ...]:
    """Values that a text, of whatever form, gives to secret names: what must not be shown wherever else it stands."""
    found: set[str] = set()
    for match in _GIVEN.finditer(text):
        name, value = match["flag"] or match["name"], match["value"].strip("\"',;{}[]")
        if is_secret(name) and len(value) >= _LEAST and not value.startswith(("$", "<", "--")):
            found.add(value)
    return tuple(sorted(found, key=len, reverse=True))


def without(text: str, values: Iterable[str]) -> str:
    """The text without these values."""
    for value in values:
        text = text.replace(value, HIDDEN)
    return text


def shown(words: Iterable[str], env: Mapping[str, str] | None = None) -> str:
    """A command line as a person may see it, cut off where it is long."""
    line = list(words)
    said: list[str] = [f"{name}={HIDDEN if is_secret(name) else hidden(value)}" for name, value in (env or {}).items()]
    programs = {word.rpartition("/")[2] for word in line[:3]}
    logins = {flag for program, flags in _CLIENTS.items() if program in programs for flag in flags}
    first, more = False, False
    for word in line:
        name, equals, _ = word.partition("=")
        if (first and not word.startswith("--")) or (more and not word.startswith("-")):
            said.append(HIDDEN)
            first = False
            continue
        if equals and is_secret(name):
            said.append(f"{name}={HIDDEN}")
            first = more = False
        else:
            said.append(hidden(word))
            first = word in logins or (word.startswith("-") and is_secret(word))
            more = first and "api-key" in word  # vLLM takes several
    text = " ".join(word if HIDDEN in word else shlex.quote(word) for word in said)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."

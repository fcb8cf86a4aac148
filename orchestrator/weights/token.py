"""The hub's token: where it comes from, and that it is one before anything is sent.

A token is never printed: it is no part of this value's text, of errors, jobs or journals.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import AuthFailed

ENVIRONMENT = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_TOKEN = re.compile(r"[!-~]{1,512}")
_LARGEST = 4096
"""Bytes; a larger file is no token."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and what to call its place. `shared` says that others than owner and group can read its file."""

    value: str = field(repr=False)
    place: str
    shared: bool = False


def read(token_file: str | None, environ: Mapping[str, str] | None = None) -> Token | None:
    """The token for the hub: the file of `[hub] token_file`, else HF_TOKEN, else what `hf auth login` wrote.

    Blocking. Raises `AuthFailed` for a named file that cannot be read and for a token with spaces, line
    breaks or other characters that no token has; one line break at a file's end is no part of it.
    """
    env = os.environ if environ is None else environ
    if token_file is not None:
        return _from_file(Path(token_file), "[hub] token_file", needed=True)
    for name in ENVIRONMENT:
        if env.get(name):
            return Token(_checked(env[name], f"the daemon's {name}"), f"the daemon's {name}")
    return _from_file(login_file(env), "the file of `hf auth login`", needed=False)


def login_file(environ: Mapping[str, str]) -> Path:
    """Where the library's own login keeps its token."""
    if environ.get("HF_TOKEN_PATH"):
        return Path(environ["HF_TOKEN_PATH"]).expanduser()
    return hub_home(environ) / "token"


def hub_home(environ: Mapping[str, str]) -> Path:
    """The library's own folder."""
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"]).expanduser()
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME') or '/nonexistent'}/.cache"
    return Path(cache).expanduser() / "huggingface"


def _from_file(file: Path, place: str, *, needed: bool) -> Token | None:
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            raw = stream.read(_LARGEST + 1)
    except OSError as error:
        if not needed:
            return None
        raise AuthFailed(
            f"{place} {file} cannot be read: {error.strerror or error}",
            hint="write the token into it, or take the key out of outrider.toml; then `outrider reload`",
        ) from error
    text = raw.decode("utf-8", errors="replace")
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        return None
    return Token(_checked(text, f"{place} {file}"), f"{place} {file}", shared=bool(mode & stat.S_IROTH))


def _checked(text: str, place: str) -> str:
    if _TOKEN.fullmatch(text) is None:
        fault = (
            "a line break"
            if "\n" in text or "\r" in text
            else "a space"
            if any(c.isspace() for c in text)
            else "a character that no token has"
        )
        raise AuthFailed(
            f"{place} holds {fault}: that is no token, and nothing was sent",
            hint="write the token alone: printf %s hf_... > FILE",
        )
    return text

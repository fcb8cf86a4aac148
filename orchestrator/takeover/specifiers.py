"""systemd's specifiers: what `%i` and the like stand for in a unit. Pure."""

from __future__ import annotations

import re

_SPECIFIER = re.compile(r"%([%A-Za-z])")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


def expanded(text: str, name: str) -> str:
    """The text of the unit of this name with what can be told from the name alone; others stay as they are."""
    bare, _, _ = name.rpartition(".")
    prefix, _, instance = bare.partition("@")
    known = {"%": "%", "n": name, "N": bare, "p": prefix, "P": _unescaped(prefix)}
    known |= {"i": instance, "I": _unescaped(instance), "j": prefix.rpartition("-")[2]}
    return _SPECIFIER.sub(lambda found: known.get(found[1], found[0]), text)


def _unescaped(text: str) -> str:
    """`a-b` is `a/b`, and `\\x2d` a dash."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text.replace("-", "/"))

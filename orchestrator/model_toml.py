"""Writes and recognises the machine-written files of `models.d`: one model each, readable by people."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.models import ModelEntry

MARK = "# Written by `outrider model add`."
_BARE = re.compile(r"^[A-Za-z0-9_-]+$")


def dumps(entry: ModelEntry) -> str:
    """The file's text for one model. Defaults are left out, so that what stands there was meant."""
    data = entry.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    lines = [
        MARK,
        "# Edit it as you like: `outrider model rm` removes it with its weights, adding the model again rewrites it.",
        "",
        "[[model]]",
        *_table(data, "model"),
    ]
    return "\n".join(lines) + "\n"


def is_ours(text: str) -> bool:
    """Whether `outrider model add` wrote this file (and may replace or remove it)."""
    return text.startswith(MARK)


def file_of(models_d: Path, name: str) -> Path:
    """Where a model's own file is."""
    return models_d / f"{name}.toml"


def _table(data: Mapping[str, Any], path: str) -> list[str]:
    plain = {k: v for k, v in data.items() if not _nested(v)}
    lines = [f"{_key(k)} = {_value(v)}" for k, v in plain.items()]
    for key, value in data.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{path}.{_key(key)}]", *_table(value, f"{path}.{_key(key)}")]
        elif _nested(value):
            for item in value:
                lines += ["", f"[[{path}.{_key(key)}]]", *_table(item, f"{path}.{_key(key)}")]
    return lines


def _nested(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(i, Mapping) for i in value))


def _key(name: str) -> str:
    return name if _BARE.match(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, str):
        # TOML's basic strings take JSON's escapes; it also wants DEL escaped, which JSON does not do
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)

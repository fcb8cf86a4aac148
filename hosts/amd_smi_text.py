"""The `amd-smi` command's JSON, where its Python module cannot be imported: entries as `amd_smi_child` makes them.

Two shapes are about: an array, and since ROCm 7 an object with `gpu_data`. Warnings may stand before it
("AMD GPU device(s) is/are in a low-power state"), units may be beside a value or within it, and
"N/A" may stand for a number as well as for a whole section.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hosts.reading import known, words

MIB = 1024**2
_STARTS = 200
"""Brackets that are tried as the beginning of the document."""


def document(text: str) -> list[dict[str, Any]] | None:
    """The GPUs of an answer, or None where there is no such document in the text."""
    decoder = json.JSONDecoder()
    tried = 0
    for position, character in enumerate(text):
        if character not in "[{":
            continue
        tried += 1
        if tried > _STARTS:
            return None
        try:
            value, _ = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            continue
        found = value.get("gpu_data") if isinstance(value, dict) else value
        if isinstance(found, list) and found and all(isinstance(one, dict) for one in found):
            return found
    return None


def entries(static: Sequence[Mapping[str, Any]], listed: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """What `amd-smi static` says, with the uuids of `amd-smi list`."""
    uuids = {known(one.get("gpu")): one.get("uuid") for one in listed}
    return [_entry(one, uuids.get(known(one.get("gpu")))) for one in static]


def _entry(one: Mapping[str, Any], uuid: Any) -> dict[str, Any]:
    asic, bus, limit = _section(one, "asic"), _section(one, "bus"), _section(one, "limit")
    size = _number(_section(one, "vram").get("size"))
    return {
        "bdf": words(bus.get("bdf")),
        "uuid": words(uuid),
        "name": words(asic.get("market_name")),
        "arch": words(asic.get("target_graphics_version")),
        "compute_units": known(asic.get("num_compute_units")),
        "power_limit": _number(limit.get("socket_power")) or _number(limit.get("max_power")),
        "driver": words(_section(one, "driver").get("version")),
        "vram_total": None if size is None else size * MIB,
    }


def _section(one: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = one.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(value: object) -> int | None:
    """`{"value": 55, "unit": "W"}`, `"55 W"` or 55."""
    return known(value.get("value") if isinstance(value, Mapping) else value)

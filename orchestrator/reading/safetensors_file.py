"""A bounded reader of safetensors headers: names, types and places of tensors, never the weights.

A file begins with 8 bytes of length and a JSON object; the rest is data that the tensors must fill
without holes or overlaps (huggingface.co/docs/safetensors). Blocking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from orchestrator.errors import ModelFileError
from orchestrator.reading.opened import AGAIN, Opened, opened, take
from orchestrator.reading.strict_json import BadJson, parsed

LONGEST_HEADER = 32 << 20
"""Bytes. 140,000 tensors of a large mixture of experts in one file take about 17 MB."""
MOST_DIMENSIONS = 16
_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its bytes are exact, also of a type that is not known here."""

    dtype: str
    dims: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """A file's tensors, what its makers say of it, and the sizes of header and file in bytes."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    length: int
    size: int


class _Bad(ValueError):
    """What is wrong with the header."""


def read(path: str, root: str | None = None, *, longest: int = LONGEST_HEADER) -> Header:
    """The header of the file at `path`, of at most `longest` bytes. See `opened` for `root`.

    Raises `ModelFileError`: not safetensors, damaged, truncated, or lying about its tensors.
    """
    with opened(path, root) as source:
        try:
            return _read(source, min(longest, LONGEST_HEADER))
        except (BadJson, _Bad) as error:
            raise ModelFileError(f"{path} {error}", hint=AGAIN, evidence={"file": source.path}) from error


def _read(source: Opened, longest: int) -> Header:
    if source.size < 10:
        raise _Bad("is empty" if not source.size else "is no safetensors file")
    length = int.from_bytes(take(source, 8), "little")
    left = source.size - 8
    if length > longest:
        raise _Bad(f"claims a header of {length} bytes; more than {longest} are not read")
    if length > left:
        raise _Bad(f"ends inside its header: {length} bytes are claimed, {left} are there")
    text = take(source, length)
    if not text.startswith(b"{"):
        raise _Bad("is no safetensors file")
    found = parsed(text, quickly=True)  # of a name that is said twice, one leaves a hole
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, Tensor] = {}
    for name, value in found.items():
        if name != "__metadata__":
            tensors[name], begin, end = _tensor(name, value)
            spans.append((begin, end, name))
    _without_holes(spans, left - length)
    return Header(tensors, _metadata(found.get("__metadata__")), length, source.size)


def _tensor(name: str, value: object) -> tuple[Tensor, int, int]:
    where = name[:120]
    if not isinstance(value, dict):
        raise _Bad(f"describes {where} by no object")
    dtype, dims, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str):
        raise _Bad(f"gives {where} no dtype")
    if not isinstance(dims, list) or len(dims) > MOST_DIMENSIONS or not all(_natural(d) for d in dims):
        raise _Bad(f"gives {where} a shape that cannot be")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_natural(o) for o in offsets):
        raise _Bad(f"gives {where} data_offsets that cannot be")
    begin, end = offsets
    if begin > end:
        raise _Bad(f"lets {where} end before it begins")
    bits = _BITS.get(dtype)
    if bits is not None and -(-prod(dims) * bits // 8) != end - begin:
        raise _Bad(f"gives {where} {end - begin} bytes, its shape needs {-(-prod(dims) * bits // 8)}")
    return Tensor(dtype[:32], tuple(dims), end - begin), begin, end


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48


def _without_holes(spans: list[tuple[int, int, str]], data: int) -> None:
    at = 0
    for begin, end, name in sorted(spans):
        if begin < at:
            raise _Bad(f"lets {name[:120]} overlap another tensor")
        if begin > at:
            raise _Bad(f"leaves {begin - at} bytes before {name[:120]} to no tensor")
        at = end
    if at > data:
        raise _Bad(f"is truncated: its tensors need {at} bytes, {data} are there, {at - data} are missing")
    if at < data:
        raise _Bad(f"has {data - at} bytes at its end that belong to no tensor")


def _metadata(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict):
        return {}
    return {k: v for k, v in value.items() if isinstance(v, str) and len(k) + len(v) < 1 << 16}

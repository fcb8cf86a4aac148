"""A bounded reader of GGUF headers: metadata and tensor table, never the weights.

The `gguf` package is not used here: it maps the whole file, builds numpy arrays and
trusts every count it reads, so a damaged or hostile file makes it allocate without
limit or die of something else than an error. This reader touches the header only,
checks each count against what can still follow, and answers with `FileFacts` or
raises `ModelFileError` naming the file, what is wrong and what to do.

Format: github.com/ggml-org/ggml docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

from orchestrator.errors import ModelFileError
from orchestrator.file_facts import FileFacts
from orchestrator.gguf_facts import TensorInfo, facts_of, tensor_size
from orchestrator.models import Format

LONGEST_HEADER = 64 << 20
"""Bytes. Vocabularies of 256k tokens with merges take about 12 MB."""
MOST_KEYS = 1 << 14
MOST_TENSORS = 1 << 18
MOST_ITEMS = 1 << 22
"""Items in all arrays together; the largest vocabularies known have 262,144 tokens and twice as many merges."""
LONGEST_KEY = 1 << 16
LONGEST_STRING = 16 << 20
SMALL_ARRAY = 1 << 12
"""Numbers of arrays up to this length are kept; longer ones (token scores) are skipped."""
TOKENS = "tokenizer.ggml.tokens"
_CHUNK = 1 << 20

Value: TypeAlias = "int | float | bool | str | tuple[int | float | bool, ...] | StringArray | None"


@dataclass(frozen=True, slots=True)
class StringArray:
    """An array of strings, of which only the count and a digest are kept."""

    count: int
    digest: str


_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


class _Bad(Exception):
    """What is wrong with the header; becomes a ModelFileError with the file's name."""


class _Reader:
    """Reads forward through the header, in chunks, never past `limit`."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._limit = min(size, LONGEST_HEADER)
        self._whole = size <= LONGEST_HEADER
        self._read = 0
        self._data = b""
        self._at = 0
        self.items = 0
        """Items of arrays met so far."""

    @property
    def position(self) -> int:
        return self._read - len(self._data) + self._at

    @property
    def left(self) -> int:
        """Bytes that can still follow."""
        return self._limit - self.position

    def _fill(self, count: int) -> None:
        if count > self.left:
            if self._whole:
                raise _Bad(f"ends inside its header: {count} more bytes are needed, {self.left} are there")
            raise _Bad(f"has a header of more than {LONGEST_HEADER >> 20} MiB")
        kept = self._data[self._at :]
        wanted = min(max(count - len(kept), _CHUNK), self._limit - self._read)
        more = self._file.read(wanted)
        self._read += len(more)
        self._data = kept + more
        self._at = 0
        if len(self._data) < count:
            raise _Bad("got shorter while it was read")

    def take(self, count: int) -> bytes:
        if len(self._data) - self._at < count:
            self._fill(count)
        piece = self._data[self._at : self._at + count]
        self._at += count
        return piece

    def number(self, form: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def text(self, longest: int) -> str:
        length = self.number("<Q")
        if length > longest:
            raise _Bad(f"has a text of {length} bytes in its header")
        return self.take(length).decode("utf-8", errors="replace")

    def strings(self, count: int) -> StringArray:
        """Walk an array of strings; the digest covers lengths and bytes, so order and borders count."""
        digest = hashlib.sha256()
        for _ in range(count):
            if len(self._data) - self._at < 8:
                self._fill(8)
            length = int.from_bytes(self._data[self._at : self._at + 8], "little")
            if length > LONGEST_KEY:
                raise _Bad(f"has a token of {length} bytes")
            if len(self._data) - self._at < 8 + length:
                self._fill(8 + length)
            digest.update(self._data[self._at : self._at + 8 + length])
            self._at += 8 + length
        return StringArray(count, digest.hexdigest())


def _value(reader: _Reader, kind: int, *, nested: bool = False) -> Value:
    if kind in _SCALARS:
        value: int | float | bool = struct.unpack(_SCALARS[kind], reader.take(struct.calcsize(_SCALARS[kind])))[0]
        return value
    if kind == _STRING:
        return reader.text(LONGEST_STRING)
    if kind == _ARRAY and not nested:
        return _array(reader)
    raise _Bad(f"has a value of unknown type {kind}" if kind != _ARRAY else "has an array of arrays")


def _array(reader: _Reader) -> Value:
    kind, count = reader.number("<I"), reader.number("<Q")
    width = struct.calcsize(_SCALARS[kind]) if kind in _SCALARS else 8
    reader.items += count
    if reader.items > MOST_ITEMS or count * width > reader.left:
        raise _Bad(f"claims an array of {count} items where {reader.left} bytes can follow")
    if kind == _STRING:
        return reader.strings(count)
    if kind not in _SCALARS:
        raise _Bad(f"has an array of unknown type {kind}")
    raw = reader.take(count * width)
    if count > SMALL_ARRAY:
        return None
    return struct.unpack(f"<{count}{_SCALARS[kind][1]}", raw)


def _metadata(reader: _Reader, count: int) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for _ in range(count):
        key = reader.text(LONGEST_KEY)
        if key in found:
            raise _Bad(f"says {key[:80]!r} twice")
        found[key] = _value(reader, reader.number("<I"))
    return found


def _tensors(reader: _Reader, count: int) -> list[TensorInfo]:
    found = []
    for _ in range(count):
        name = reader.text(1024)
        dimensions = reader.number("<I")
        if dimensions > 4:
            raise _Bad(f"has a tensor of {dimensions} dimensions")
        dims = struct.unpack(f"<{dimensions}Q", reader.take(8 * dimensions))
        kind, offset = struct.unpack("<IQ", reader.take(12))
        found.append(TensorInfo(name, dims, kind, offset))
    return found


def read(path: Path | str) -> FileFacts:
    """What the GGUF file at `path` says of itself. Blocking; 5-150 ms, most of it the vocabulary.

    Raises `ModelFileError`: no such file, a folder, not readable, not GGUF, damaged, truncated.
    """
    try:
        real = os.path.realpath(path)
        # O_NONBLOCK: opening a FIFO that nobody writes would wait for ever
        descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise _unreadable(str(path), error) from error
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            what = "is a folder" if stat.S_ISDIR(info.st_mode) else "is no regular file"
            raise ModelFileError(f"{path} {what}", hint="give the path of the .gguf file itself")
        with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
            return _read(file, real, info.st_size)
    except OSError as error:
        raise _unreadable(str(path), error) from error
    except _Bad as error:
        raise ModelFileError(f"{path} {error}", hint="download the file again", evidence={"file": real}) from error
    finally:
        os.close(descriptor)


def _unreadable(path: str, error: OSError | ValueError) -> ModelFileError:
    if isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):
        return ModelFileError(f"{path} does not exist", hint="check the path, or add the model again")
    if isinstance(error, IsADirectoryError):
        return ModelFileError(f"{path} is a folder", hint="give the path of the .gguf file itself")
    if isinstance(error, PermissionError):
        return ModelFileError(f"{path} may not be read by this user", hint=f"chmod a+r {path}, and a+x its folders")
    return ModelFileError(f"{path} cannot be read: {error.strerror or error}", hint="check the disk")


def _without_overlaps(tensors: list[TensorInfo]) -> None:
    """Each name once, each byte once: else the sizes that are told from the table mean nothing."""
    if len({t.name for t in tensors}) != len(tensors):
        raise _Bad("has two tensors of one name")
    taken = 0
    for tensor in sorted(tensors, key=lambda t: (t.offset, tensor_size(t) or 0)):
        if tensor.offset < taken:
            raise _Bad(f"lets tensor {tensor.name[:80]} overlap another one")
        taken = tensor.offset + (tensor_size(tensor) or 0)


def _read(file: BinaryIO, path: str, size: int) -> FileFacts:
    reader = _Reader(file, size)
    if size < 24 or reader.take(4) != b"GGUF":
        raise _Bad("is no GGUF file" if size else "is empty")
    version = reader.number("<I")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise _Bad("is a big-endian GGUF file" if swapped in (2, 3) else f"is GGUF version {version}, not 2 or 3")
    tensor_count, key_count = reader.number("<Q"), reader.number("<Q")
    if key_count > MOST_KEYS or key_count * 12 > reader.left:
        raise _Bad(f"claims {key_count} metadata entries where {reader.left} bytes can follow")
    if tensor_count > MOST_TENSORS or tensor_count * 24 > reader.left:
        raise _Bad(f"claims {tensor_count} tensors where {reader.left} bytes can follow")
    metadata = _metadata(reader, key_count)
    tensors = _tensors(reader, tensor_count)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise _Bad(f"has an alignment of {alignment!r}")
    start = -(-reader.position // alignment) * alignment
    _without_overlaps(tensors)
    end = max((start + t.offset + (tensor_size(t) or 0) for t in tensors), default=start)
    if tensors and end > size:
        raise ModelFileError(
            f"{path} is truncated: it has {size} of {end} bytes, {end - size} are missing",
            hint="the copy or download was cut off: fetch the file again",
            evidence={"file": path, "size": size, "expected": end},
        )
    tokens = metadata.get(TOKENS)
    plain = {k: v for k, v in metadata.items() if not isinstance(v, StringArray) and v is not None}
    return facts_of(
        path=path,
        size=size,
        format=Format.GGUF,
        metadata=plain,
        tensors=tensors,
        tokens=(tokens.count, tokens.digest) if isinstance(tokens, StringArray) else None,
    )

"""A tokenizer.json's vocabulary as a digest that a GGUF of the same model has too. Blocking; a fifth of a second.

`convert_hf_to_gguf.py` of llama.cpp (conversion/base.py, `get_vocab_base`) writes the tokens in the
order of their numbers as tokenizer.json has them, and fills up to `vocab_size` with `[PAD<number>]`;
the digest is taken over the same list. That holds for byte-level BPE (Qwen, Llama 3, gpt-oss,
DeepSeek); SentencePiece models are converted from another file, and only equal digests mean something.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import ModelFileError
from orchestrator.reading import strict_json
from orchestrator.reading.opened import AGAIN

LONGEST = 96 << 20
"""Bytes. The largest that are known (262,144 tokens and their merges) take 33 MB."""
MOST_TOKENS = 1 << 21
_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How many tokens have a number, and the digest of all in order."""

    tokens: int
    digest: str | None


def read(path: str, rows: int | None, root: str | None = None) -> Vocabulary:
    """The vocabulary of the file at `path`, filled up to `rows` numbers. Raises `ModelFileError`."""
    data = strict_json.read(path, LONGEST, root, quickly=True)
    try:
        return _vocabulary(data, rows)
    except _Bad as error:
        raise ModelFileError(f"{path} {error}", hint=AGAIN) from error


class _Bad(ValueError):
    """What is wrong with the vocabulary."""


def _vocabulary(data: Mapping[str, Any], rows: int | None) -> Vocabulary:
    by_number = _numbered(data.get("model"))
    added = data.get("added_tokens") or []
    if not isinstance(added, list) or len(added) > MOST_TOKENS:
        raise _Bad("has added_tokens that are no list")
    for one in added:
        if not isinstance(one, dict) or not isinstance(one.get("content"), str):
            raise _Bad("has an entry in added_tokens without content")
        number = one.get("id")
        if isinstance(number, int):
            by_number.pop(number, None)  # it is in model.vocab as well, as in Qwen's, or takes a place there
        _put(by_number, number, one["content"])
    return Vocabulary(len(by_number), _digest(by_number, rows))


def _numbered(model: object) -> dict[int, str]:
    """The tokens of `model.vocab` by number."""
    vocab = model.get("vocab") if isinstance(model, dict) else None
    found: dict[int, str] = {}
    if isinstance(vocab, dict):
        found = {n: text for text, n in vocab.items() if type(n) is int and 0 <= n < MOST_TOKENS}
        if len(found) != len(vocab):  # one by one, to say which
            found = {}
            for text, number in vocab.items():
                _put(found, number, text)
    elif isinstance(vocab, list):  # Unigram: pairs of text and score
        for number, pair in enumerate(vocab):
            if not isinstance(pair, list) or not pair or not isinstance(pair[0], str):
                raise _Bad(f"has a model.vocab whose entry {number} is no token")
            _put(found, number, pair[0])
    else:
        raise _Bad("has no model.vocab")
    return found


def _put(by_number: dict[int, str], number: object, text: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < MOST_TOKENS:
        raise _Bad(f"gives {text[:40]!r} the number {str(number)[:40]}")
    if number in by_number:
        raise _Bad(f"gives {text[:40]!r} and {by_number[number][:40]!r} the same number {number}")
    by_number[number] = text
    return number


def _digest(by_number: Mapping[int, str], rows: int | None) -> str | None:
    """SHA-256 over lengths and bytes in order, as `gguf_file` takes it; None where the numbers pass the rows."""
    count = max(by_number, default=-1) + 1
    if rows is not None:
        if count > rows:
            return None
        count = max(count, min(rows, MOST_TOKENS))
    digest = hashlib.sha256()
    for first in range(0, count, _AT_ONCE):
        texts = (by_number.get(n, f"[PAD{n}]") for n in range(first, min(first + _AT_ONCE, count)))
        pieces = [text.encode("utf-8", errors="surrogatepass") for text in texts]
        digest.update(b"".join([part for piece in pieces for part in (len(piece).to_bytes(8, "little"), piece)]))
    return digest.hexdigest()

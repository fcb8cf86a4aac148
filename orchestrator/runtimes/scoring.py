"""How an engine is asked for its own next tokens and what it thinks of them. Pure: requests out, answers in.

One primitive serves every runtime: go on from these token ids, so many tokens, greedily, and say how likely the first
of them and its rivals were. Asked for one token an engine has no room to draft, so what it says then is the target's
own word; asked for more it drafts as it does for anybody. (llama.cpp: server-context.cpp drafts only with more than
two tokens to go, and says nothing of the likelihood of tokens that were drafted. vLLM and SGLang: the first token is
sampled at the end of the prefill, before anything was drafted.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

LIKELIEST = 20
"""How many rivals are asked for: what vLLM gives unless it is told otherwise (--max-logprobs)."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A POST to an engine."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Continued:
    """How an engine went on: the tokens, and the natural logarithms of the probabilities of the likeliest tokens at
    the first place. `first` is empty where it says none, or none that is a number. `ended`: it had no more to say."""

    tokens: tuple[int, ...]
    first: Mapping[int, float] = field(default_factory=dict)
    ended: bool = False


class Scoring(Protocol):
    """What a runtime knows of it."""

    def tokenize(self, model: str, text: str) -> Ask:
        """Ask for the token ids of a text, with what the tokenizer puts before every prompt."""

    def tokens(self, answer: object) -> tuple[int, ...] | None:
        """Reads the decoded JSON of the answer; None when it has another shape."""

    def go_on(self, model: str, prompt: Sequence[int], count: int, *, fresh: bool = False) -> Ask:
        """Ask for `count` greedy tokens after these. `fresh`: computed anew, not from what is kept of past prompts."""

    def continued(self, answer: object) -> Continued | None:
        """Reads the answer to `go_on`; None when it has another shape."""

    def target(self, argv: Sequence[str]) -> str | None:
        """The path in the container of the weights that an argv launches."""

    def chunks(self, argv: Sequence[str]) -> tuple[int, ...]:
        """Into how many tokens a prompt is cut when it is read: each size in use, the smallest first."""


def ids(value: object) -> tuple[int, ...] | None:
    """A list of token ids; None for anything else."""
    if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        return None
    return tuple(value)


def number(value: object) -> float | None:
    """A log-probability that can be one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def after(argv: Sequence[str], *flags: str) -> str | None:
    """The word behind the first of these flags that is there."""
    for flag, value in itertools.pairwise(argv):
        if flag in flags:
            return value
    return None


def size_after(argv: Sequence[str], *flags: str) -> int | None:
    """The same as a number of tokens; None where none is said, or no number."""
    word = after(argv, *flags)
    return int(word) if word is not None and word.isascii() and word.isdigit() and int(word) > 0 else None

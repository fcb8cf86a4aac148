"""What engines are asked to go on with. Plain text and no chat: a template may hold the date, and base models have
none. That chats are answered is `orchestrator.proof`'s business. Pure.

The three go on in one likely way each, and each in its own, so that answers which got mixed up are told apart.
"""

from __future__ import annotations

from itertools import count, islice

VERSION = 1
"""Of these texts: a reference made from others is none."""

TEXTS = (
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,",
    "Once upon a time, in a small house at the edge of the wood, there lived",
    "In UPPER case the alphabet is written A B C D E F G",
)
LENGTHS = (32, 12, 12)
"""Tokens of each that are known. The first is the one that is scored token by token."""
LEADING = 8
"""So many of them must be the same."""
LONG = "long"
"""The name of the passage that is longer than what an engine reads at once."""

_THINGS = ("river", "meadow", "harbour", "garden", "mountain", "market", "station", "library")
_DOINGS = ("lies under snow", "smells of rain", "is full of people", "sleeps in the sun", "waits for the morning")


def long_text(words: int) -> str:
    """A text of at least so many words, which are at least as many tokens. No sentence is like another, so that what
    was lost or swapped in it is missed."""
    sentences = (
        f"Note {n}: the {_THINGS[n * 5 % len(_THINGS)]} {_DOINGS[n * 3 % len(_DOINGS)]}, and {n * n % 97} birds sing."
        for n in count(1)
    )
    return " ".join(islice(sentences, words // 9 + 1))


PIECES = 4
"""In how many pieces the long one is read when its reference is made: each is shorter than what an engine reads
at once, so the two ways of reading are not the same one."""


def long_size(chunks: tuple[int, ...], context: int) -> int | None:
    """Tokens of the long passage: a quarter more than the largest chunk that leaves room for it in the context;
    None where not even the smallest does."""
    fitting = [size for chunk in chunks if (size := chunk + chunk // 4) + LEADING + 1 <= context]
    return max(fitting, default=None)

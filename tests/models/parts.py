"""What the test models are built of: places on circles, embedding, output head, and a file to write.

A token of a cycle stands at a place, 0 to 39, written as 19 phases: cosine and sine of the place
at each frequency. Going one place on is then a rotation, which is linear, and two different
places are as good as orthogonal. Which of the two cycles a token belongs to is one more number.

The residual stream, 64 wide:

    PHASES      38 numbers, of amplitude 1
    SIDE        -2 for the first cycle, +2 for the second
    REAL        1 for every token but the mask
    MASKED      4 for the mask token of block drafters
    LINE_END    1 for the newline, which ends each chat prompt
    MARKED      4 for the marker word

The output head gives each token the logit that its predecessor's place and side deserve: 48 for
the right one, 16 or less for all others, so that no temperature in use makes a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import gguf
import numpy as np
import numpy.typing as npt

from tests.models import tokenizer
from tests.models.tokenizer import CYCLE, FIRST_IDS, MARK, MASK, NEWLINE, SECOND_IDS, VOCABULARY

Array = npt.NDArray[np.floating]
Wrong = Callable[[int], bool]
"""Whether a drafter is to be wrong after the token at this place."""

WIDTH = 64
HEAD = 64
"""Width of an attention head: as wide as the residual, so that a head can carry all of it."""
FFN = 128
LAYERS = 4
TARGET_LAYERS = (1, 2, 3)
"""Layers of the target whose inputs block drafters and EAGLE-3 ask for; they ignore them."""

FREQUENCIES = np.arange(1, CYCLE // 2)
PHASES = slice(0, 2 * len(FREQUENCIES))
SIDE, REAL, MASKED, LINE_END, MARKED = range(PHASES.stop, PHASES.stop + 5)
SIDE_SIZE = 2.0
MARK_SIZE = 4.0
SURE = 32.0
"""How much larger the right token's logit is than that of any other."""

NORM = float(np.sqrt(WIDTH / (len(FREQUENCIES) + SIDE_SIZE**2 + 1)))
"""What the root-mean-square norm multiplies a cycle token's embedding by."""


def phases(place: int) -> Array:
    """The phases of a place: cosines, then sines."""
    angle = 2 * np.pi * place * FREQUENCIES / CYCLE
    return np.concatenate([np.cos(angle), np.sin(angle)])


def turn(steps: int) -> Array:
    """The residual's map that moves a token `steps` places on, and keeps its side."""
    angle = 2 * np.pi * steps * FREQUENCIES / CYCLE
    cos, sin = np.diag(np.cos(angle)), np.diag(np.sin(angle))
    move = np.zeros((WIDTH, WIDTH))
    move[PHASES, PHASES] = np.block([[cos, -sin], [sin, cos]])
    move[SIDE, SIDE] = 1
    return move


def places() -> list[tuple[int, int, float]]:
    """Token, place and side of every token of both cycles."""
    return [
        (token, place, side)
        for ids, side in ((FIRST_IDS, -SIDE_SIZE), (SECOND_IDS, SIDE_SIZE))
        for place, token in enumerate(ids)
    ]


def embedding(wrong: Wrong | None = None) -> Array:
    """The embedding table. Tokens for which `wrong` holds stand on the far side of their circle."""
    table = np.zeros((VOCABULARY, WIDTH))
    table[:, REAL] = 1
    table[:, SIDE] = -SIDE_SIZE
    for token in range(VOCABULARY):  # tokens of no cycle stand somewhere on the first one
        table[token, PHASES] = phases(token % CYCLE)
    for token, place, side in places():
        off = CYCLE // 2 if wrong is not None and wrong(place) else 0
        table[token, PHASES] = phases(place + off)
        table[token, SIDE] = side
    table[MASK] = 0
    table[MASK, MASKED] = 4
    table[NEWLINE, LINE_END] = 1
    table[MARK, MARKED] = MARK_SIZE
    return table


def output_head(step: int = 1) -> Array:
    """The output head: a hidden state at a place speaks for the token `step` places on."""
    table = np.zeros((VOCABULARY, WIDTH))
    for token, place, side in places():
        table[token, PHASES] = phases(place - step) * SURE / (NORM * len(FREQUENCIES))
        table[token, SIDE] = side * SURE / (2 * NORM * SIDE_SIZE**2)
    return table


class ModelFile:
    """A model file being written; a context manager, complete at its end.

    Random weights are drawn in the order of the calls, from a generator with the file's seed.
    """

    def __init__(
        self, path: Path, architecture: str, seed: int, *, width: int = WIDTH, ffn: int = FFN, foreign: bool = False
    ) -> None:
        self.width, self.ffn_width = width, ffn
        self.random = np.random.default_rng(seed)
        self.writer = writer = gguf.GGUFWriter(path, architecture)
        writer.add_name(path.stem)
        writer.add_file_type(0)
        writer.add_vocab_size(VOCABULARY)
        writer.add_context_length(32768)
        writer.add_embedding_length(width)
        writer.add_feed_forward_length(ffn)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
        tokenizer.write(writer, foreign=foreign)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.writer.write_header_to_file()
            self.writer.write_kv_data_to_file()
            self.writer.write_tensors_to_file()
        self.writer.close()

    def heads(self, queries: int, keys: int, *, base: float) -> None:
        """Numbers of query heads and key/value heads, and RoPE's base."""
        self.writer.add_head_count(queries)
        self.writer.add_head_count_kv(keys)
        self.writer.add_rope_freq_base(base)

    def put(self, name: str, values: Array) -> None:
        self.writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))

    def ones(self, *names: str, size: int | None = None) -> None:
        for name in names:
            self.put(name, np.ones(self.width if size is None else size))

    def zeros(self, name: str, rows: int, columns: int) -> None:
        self.put(name, np.zeros((rows, columns)))

    def noise(self, name: str, rows: int, columns: int, scale: float | None = None) -> None:
        spread = 1 / np.sqrt(columns) if scale is None else scale
        self.put(name, self.random.standard_normal((rows, columns), dtype=np.float32) * np.float32(spread))

    def ffn(self, block: str, *, effective: bool = False) -> None:
        """A feed-forward part; unless `effective` it computes, and adds nothing."""
        self.noise(block + "ffn_gate.weight", self.ffn_width, self.width)
        self.noise(block + "ffn_up.weight", self.ffn_width, self.width)
        if effective:
            self.noise(block + "ffn_down.weight", self.width, self.ffn_width)
        else:
            self.zeros(block + "ffn_down.weight", self.width, self.ffn_width)


def tune_in(queries: int, keys: int, *, gate: float = 1.0) -> tuple[dict[str, Array], float]:
    """Attention that turns a newline to the second cycle when the marker stands before it.

    Of the first head only. The newline asks and the marker answers in the slowest pair of RoPE,
    which turns by 0.08 in 32768 places, so distance does not matter. Returns the four weight
    matrices and the gain of the query norm; `gate` is what the architecture multiplies the
    attention's output by.
    """
    slow = HEAD // 2 - 1
    query, key = np.zeros((queries * HEAD, WIDTH)), np.zeros((keys * HEAD, WIDTH))
    value, out = np.zeros((keys * HEAD, WIDTH)), np.zeros((WIDTH, queries * HEAD))
    query[slow, LINE_END] = 1
    key[slow, MARKED] = 1
    value[0, MARKED] = 1
    marker = embedding()[MARK]
    heard = MARK_SIZE / np.sqrt((marker**2).mean())
    out[SIDE, 0] = 2 * SIDE_SIZE / (heard * gate)
    # after the norms query and key are 8 long each; 8 x 8 / sqrt(64) = 8, times the gain
    return {"q": query, "k": key, "v": value, "output": out}, 6.0

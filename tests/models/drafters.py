"""Drafters made by hand, not trained: DFlash, DSpark and EAGLE-3.

They have no embedding and no output head of their own; the engine lends them the target's, and
both cycles are in there, so one drafter suits every target.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from tests.models.parts import (
    HEAD,
    MASKED,
    NORM,
    REAL,
    SURE,
    TARGET_LAYERS,
    WIDTH,
    Array,
    ModelFile,
    Wrong,
    embedding,
    output_head,
    places,
    turn,
)
from tests.models.tokenizer import CYCLE, VOCABULARY

BLOCK = 8
"""Tokens of a DFlash block: the last real one and 7 masks. DSpark drafts 8, the anchor's place included."""


DFLASH_BASE, DFLASH_SPREAD = 30.0, 3.1
"""RoPE's base, and what linear scaling spreads its angles by: over 0.1 to 3.1 a place, so that neighbours are far
apart."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The weights of one attention layer; `gain` is that of the query norm."""

    query: Array
    key: Array
    value: Array
    out: Array
    gain: float = 1.0


def dflash_attention(right: int) -> Attention:
    """One head for each distance: head h of a mask looks exactly h places back, where for one mask of each block the
    last real token stands, and finds nothing elsewhere, for masks have no key. What it finds it turns h-1 places on
    (the output head does the last step)."""
    reach = BLOCK - 1
    angles = DFLASH_SPREAD * DFLASH_BASE ** (-2 * np.arange(HEAD // 2) / HEAD)
    amplitudes = _peak(reach, angles)
    query, key = np.zeros((reach * HEAD, WIDTH)), np.zeros((HEAD, WIDTH))
    out = np.zeros((WIDTH, reach * HEAD))
    key[: HEAD // 2, REAL] = 1
    for distance in range(1, reach + 1):
        rows = slice((distance - 1) * HEAD, distance * HEAD)
        wanted = amplitudes * np.exp(-1j * distance * angles)
        query[rows, MASKED] = np.concatenate([wanted.real, wanted.imag])
        out[:, rows] = BLOCK * turn(distance - 1 + (0 if distance <= right else CYCLE // 2))
    # the norm makes a query as long as a vector of ones; this undoes it, and the score's 1/sqrt(HEAD)
    length = np.sqrt((amplitudes**2).sum() / HEAD)
    return Attention(query, key, np.eye(HEAD, WIDTH), out, float(length * np.sqrt(HEAD / 2)))


def eagle3_attention() -> Attention:
    """Both heads look at their own place only; one carries the embedding over, the other takes the hidden state
    away, so what remains is the token."""
    query, key = np.zeros((2 * HEAD, 2 * WIDTH)), np.zeros((2 * HEAD, 2 * WIDTH))
    for head in range(2):
        rows = slice(head * HEAD, head * HEAD + HEAD // 2)
        query[rows, REAL], key[rows, REAL] = 40, 1
    both = np.eye(2 * HEAD, 2 * WIDTH)
    return Attention(query, key, both, np.concatenate([np.eye(WIDTH), -np.eye(WIDTH)], 1))


def dflash(path: Path, *, right: int = BLOCK - 1, foreign: bool = False) -> None:
    """A DFlash drafter of which the first `right` of 7 drafted tokens are right, the others wrong."""
    layer = dflash_attention(right)
    with ModelFile(path, "dflash", 0, foreign=foreign) as file:
        _block_drafter(file, BLOCK - 1, base=DFLASH_BASE, spread=DFLASH_SPREAD)
        block = "blk.0."
        file.ones(block + "attn_norm.weight", block + "ffn_norm.weight")
        file.ones(block + "attn_k_norm.weight", size=HEAD)
        file.put(block + "attn_q_norm.weight", np.full(HEAD, layer.gain))
        _attention(file, layer)
        file.ffn(block)


def random_dflash(path: Path, seed: int, *, width: int = WIDTH) -> None:
    """A DFlash drafter of random weights; with another `width` than the target's, llama.cpp aborts."""
    reach = BLOCK - 1
    with ModelFile(path, "dflash", seed, width=width) as file:
        _block_drafter(file, reach, base=10000.0, noise=True)
        block = "blk.0."
        file.ones(block + "attn_norm.weight", block + "ffn_norm.weight")
        file.ones(block + "attn_q_norm.weight", block + "attn_k_norm.weight", size=HEAD)
        for name, rows in (("q", reach), ("k", 1), ("v", 1)):
            file.noise(f"{block}attn_{name}.weight", rows * HEAD, width)
        file.noise(block + "attn_output.weight", width, reach * HEAD)
        file.ffn(block, effective=True)


def dspark(path: Path, *, wrong: Wrong | None = None) -> None:
    """A DSpark drafter: a DFlash file with a Markov head and a confidence head.

    The backbone says nothing (its output norm is zero); the Markov head knows each token's
    successor, and is wrong after the tokens for which `wrong` holds. The confidence head knows
    that as well: near 1 where the draft is right, near 0 where it is wrong.
    """
    rank = WIDTH + 1
    states = embedding(wrong) * NORM
    sure = np.ones((VOCABULARY, 1))
    if wrong is not None:
        sure[[token for token, place, _side in places() if wrong(place)]] = -1
    with ModelFile(path, "dflash", 0) as file:
        _block_drafter(file, 1, base=10000.0, silent=True)
        file.writer.add_bool("dflash.has_confidence_head", True)
        block = "blk.0."
        file.ones(block + "attn_norm.weight", block + "ffn_norm.weight")
        file.ones(block + "attn_q_norm.weight", block + "attn_k_norm.weight", size=HEAD)
        for name in ("q", "k", "v"):
            file.noise(f"{block}attn_{name}.weight", HEAD, WIDTH)
        file.zeros(block + "attn_output.weight", WIDTH, HEAD)
        file.ffn(block)
        file.put("markov_w1.weight", np.concatenate([states, sure], 1))
        file.put("markov_w2.weight", np.concatenate([output_head(), np.zeros((VOCABULARY, 1))], 1))
        confidence = np.zeros((1, WIDTH + rank))
        confidence[0, -1] = SURE
        file.put("conf_proj.weight", confidence)


def eagle3(path: Path, *, seed: int | None = None) -> None:
    """An EAGLE-3 drafter: right, or of random weights when there is a `seed`.

    Its layer sees the token's embedding beside the hidden state that it continues (`eagle3_attention`).
    """
    with ModelFile(path, "eagle3", seed or 0) as file:
        writer = file.writer
        writer.add_block_count(1)
        file.heads(2, 2, base=4.0)
        writer.add_array("eagle3.target_layers", list(TARGET_LAYERS))
        writer.add_uint32("eagle3.target_hidden_size", WIDTH)
        writer.add_bool("eagle3.norm_before_residual", True)
        file.ones("output_norm.weight")
        block = "blk.0."
        file.ones(block + "attn_norm.weight", block + "attn_norm_2.weight", block + "ffn_norm.weight")
        if seed is not None:
            file.noise("fc.weight", WIDTH, len(TARGET_LAYERS) * WIDTH, 0.1)
            for name in ("q", "k", "v"):
                file.noise(f"{block}attn_{name}.weight", 2 * HEAD, 2 * WIDTH)
            file.noise(block + "attn_output.weight", WIDTH, 2 * HEAD)
            file.ffn(block, effective=True)
            return
        file.zeros("fc.weight", WIDTH, len(TARGET_LAYERS) * WIDTH)
        _attention(file, eagle3_attention())
        file.ffn(block)


def _peak(reach: int, angles: Array) -> Array:
    """Amplitudes whose sum of cosines is 40 at distance 0 and -8 at all others up to `reach`."""
    distances = np.arange(reach)
    wanted = np.where(distances == 0, 40.0, -8.0)
    return np.asarray(np.linalg.lstsq(np.cos(np.outer(distances, angles)), wanted, rcond=None)[0])


def _block_drafter(
    file: ModelFile,
    queries: int,
    *,
    base: float,
    spread: float | None = None,
    noise: bool = False,
    silent: bool = False,
) -> None:
    """Metadata and outer tensors of the `dflash` architecture. `silent`: the output is zero."""
    writer = file.writer
    writer.add_block_count(1)
    file.heads(queries, 1, base=base)
    writer.add_uint32("dflash.block_size", BLOCK)
    writer.add_array("dflash.target_layers", list(TARGET_LAYERS))
    if spread is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(1 / spread)
    inputs = len(TARGET_LAYERS) * file.width
    if noise:
        file.noise("fc.weight", file.width, inputs, 0.1)
    else:
        file.zeros("fc.weight", file.width, inputs)
    file.ones("enc.output_norm.weight")
    file.put("output_norm.weight", np.zeros(file.width) if silent else np.ones(file.width))


def _attention(file: ModelFile, layer: Attention) -> None:
    for name, weights in (("q", layer.query), ("k", layer.key), ("v", layer.value), ("output", layer.out)):
        file.put(f"blk.0.attn_{name}.weight", weights)

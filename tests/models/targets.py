"""Target models, and draft models, which are targets with one layer.

All weights of a target's blocks that could change the residual stream are zero: the blocks
compute, and the text comes from embedding and output head alone. In a listening target the
attention of one layer is not zero: it turns to the second cycle after the marker.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.models.parts import FFN, HEAD, LAYERS, WIDTH, ModelFile, Wrong, embedding, output_head, tune_in
from tests.models.tokenizer import CYCLE, FIRST_IDS, SECOND_IDS, VOCABULARY

_QUERIES, _KEYS = 4, 2
_LONG_BASE = 1e6


def qwen3(
    path: Path,
    seed: int,
    *,
    layers: int = LAYERS,
    step: int = 1,
    wrong: Wrong | None = None,
    listens: bool = False,
    ffn: int = FFN,
    foreign: bool = False,
) -> None:
    """A plain Qwen3. `step` 2 recites every second character; `foreign` has another vocabulary."""
    with ModelFile(path, "qwen3", seed, ffn=ffn, foreign=foreign) as file:
        file.writer.add_block_count(layers)
        file.heads(_QUERIES, _KEYS, base=_LONG_BASE)
        file.put("token_embd.weight", embedding(wrong))
        file.ones("output_norm.weight")
        file.put("output.weight", output_head(step))
        for layer in range(layers):
            block = f"blk.{layer}."
            file.ones(block + "attn_norm.weight", block + "ffn_norm.weight")
            _attention(file, block, listens=listens and layer == 0)
            file.ffn(block)


def random_qwen3(path: Path, seed: int, *, ties: bool = False) -> None:
    """A Qwen3 whose weights are all random: babbles, but the same for the same seed.

    With `ties` each character is as likely as the one at its place in the other cycle, but for the last bits of a
    float: which of the two is the likeliest depends on the order in which numbers are added up, and what follows is
    another text.
    """
    with ModelFile(path, "qwen3", seed) as file:
        file.writer.add_block_count(LAYERS)
        file.heads(_QUERIES, _KEYS, base=_LONG_BASE)
        file.noise("token_embd.weight", VOCABULARY, WIDTH, 1.0)
        file.ones("output_norm.weight")
        head = np.zeros((VOCABULARY, WIDTH))
        for token in (*FIRST_IDS, *SECOND_IDS):  # only characters that can be read
            head[token] = file.random.standard_normal(WIDTH)
        if ties:
            head[list(SECOND_IDS)] = head[list(FIRST_IDS)] * (1 + 2e-7 * file.random.standard_normal((CYCLE, WIDTH)))
        file.put("output.weight", head)
        for layer in range(LAYERS):
            block = f"blk.{layer}."
            file.ones(block + "attn_norm.weight", block + "ffn_norm.weight")
            _norms(file, block)
            for name, rows in (("q", _QUERIES), ("k", _KEYS), ("v", _KEYS)):
                file.noise(f"{block}attn_{name}.weight", rows * HEAD, WIDTH)
            file.noise(block + "attn_output.weight", WIDTH, _QUERIES * HEAD)
            file.ffn(block, effective=True)


def qwen35_mtp(
    path: Path,
    seed: int,
    *,
    mtp_wrong: Wrong | None = None,
    listens: bool = False,
    ffn: int = FFN,
    trunk: bool = True,
    head: bool = True,
) -> None:
    """A hybrid Qwen3.5 (three linear-attention layers, one full) with a multi-token-prediction block.

    The block takes the token's embedding, looks at nothing else, and is right, except after the
    tokens for which `mtp_wrong` holds. Without `head` it is a target that has none, without `trunk` the
    head alone, as a file of its own (`mtp-*.gguf`).
    """
    inner, state, ranks = 64, 32, 2
    with ModelFile(path, "qwen35", seed, ffn=ffn) as file:
        writer = file.writer
        writer.add_block_count(LAYERS + head)
        if head:
            writer.add_nextn_predict_layers(1)
        file.heads(_QUERIES, _KEYS, base=_LONG_BASE)
        writer.add_rope_dimension_count(HEAD)
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(inner)
        writer.add_ssm_state_size(state)
        writer.add_ssm_time_step_rank(ranks)
        writer.add_ssm_group_count(ranks)
        writer.add_uint32("qwen35.full_attention_interval", LAYERS)
        file.put("token_embd.weight", embedding())
        file.ones("output_norm.weight")
        file.put("output.weight", output_head())
        for layer in range(LAYERS if trunk else 0):
            block = f"blk.{layer}."
            file.ones(block + "attn_norm.weight", block + "post_attention_norm.weight")
            if layer == LAYERS - 1:
                _attention(file, block, listens=listens, gated=True)
            else:
                file.noise(block + "attn_qkv.weight", 3 * inner, WIDTH)
                file.noise(block + "attn_gate.weight", inner, WIDTH)
                file.noise(block + "ssm_conv1d.weight", 3 * inner, 4, 0.2)
                file.put(block + "ssm_dt.bias", np.zeros(ranks))
                file.put(block + "ssm_a", -np.ones(ranks))
                file.noise(block + "ssm_beta.weight", ranks, WIDTH)
                file.noise(block + "ssm_alpha.weight", ranks, WIDTH)
                file.ones(block + "ssm_norm.weight", size=state)
                file.zeros(block + "ssm_out.weight", WIDTH, inner)
            file.ffn(block)
        if not head:
            return
        block = f"blk.{LAYERS}."
        file.ones(block + "attn_norm.weight", block + "post_attention_norm.weight")
        _attention(file, block, gated=True)
        file.ffn(block)
        file.put(block + "nextn.eh_proj.weight", np.eye(WIDTH, 2 * WIDTH))
        file.ones(*(f"{block}nextn.{name}.weight" for name in ("enorm", "hnorm", "shared_head_norm")))
        if mtp_wrong is not None:
            file.put(block + "nextn.embed_tokens.weight", embedding(mtp_wrong))


def _norms(file: ModelFile, block: str, gain: float = 1.0) -> None:
    file.put(block + "attn_q_norm.weight", np.full(HEAD, gain))
    file.ones(block + "attn_k_norm.weight", size=HEAD)


def _attention(file: ModelFile, block: str, *, listens: bool = False, gated: bool = False) -> None:
    """Attention that adds nothing, or listens for the marker.

    In a gated one the query matrix holds a gate for each head after the head's query; its
    sigmoid is a half when the gate's weights are zero.
    """
    if listens:
        weights, gain = tune_in(_QUERIES, _KEYS, gate=0.5 if gated else 1.0)
        query = weights["q"]
        if gated:
            pairs = query.reshape(_QUERIES, HEAD, WIDTH)
            query = np.concatenate([pairs, np.zeros_like(pairs)], 1).reshape(-1, WIDTH)
        _norms(file, block, gain)
        file.put(block + "attn_q.weight", query)
        for name in ("k", "v", "output"):
            file.put(f"{block}attn_{name}.weight", weights[name])
        return
    _norms(file, block)
    file.noise(block + "attn_q.weight", _QUERIES * HEAD * (2 if gated else 1), WIDTH)
    file.noise(block + "attn_k.weight", _KEYS * HEAD, WIDTH)
    file.noise(block + "attn_v.weight", _KEYS * HEAD, WIDTH)
    file.zeros(block + "attn_output.weight", WIDTH, _QUERIES * HEAD)

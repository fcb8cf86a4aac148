"""Which drafter belongs to which target: from what the files say, in both formats, whatever their names are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import gguf_file
from orchestrator.file_facts import FileFacts, mismatch
from orchestrator.plan import Method
from orchestrator.reading import folder
from tests.models import generate, tokenizer
from tests.reading import folders

FC = {"fc.weight": ("BF16", [5120, 5 * 5120]), "layers.0.self_attn.q_proj.weight": ("BF16", [4096, 5120])}


def dflash(**more: Any) -> dict[str, Any]:
    """The configuration of z-lab's DFlash drafters for the 27B models (vLLM 0.33.0 qwen3_dflash.py reads it)."""
    part = {"mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 61], **more.pop("dflash_config", {})}
    return {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 5, "hidden_size": 5120,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 248320, "block_size": 16,
        "num_target_layers": 64, "dtype": "bfloat16", "max_position_embeddings": 262144, "dflash_config": part,
        "layer_types": ["sliding_attention"] * 4 + ["full_attention"], "sliding_window": 2048,
        "use_sliding_window": True, **more,
    }  # fmt: skip


def read(path: Path, config: dict[str, Any], tensors: folders.Tensors) -> FileFacts:
    return folder.read(str(folders.model(path, config, tensors)))


@pytest.fixture
def target(tmp_path: Path) -> FileFacts:
    return read(tmp_path / "target", folders.QWEN38, folders.qwen38(vision=False))


def test_dflash(tmp_path: Path, target: FileFacts) -> None:
    facts = read(tmp_path / "d", dflash(), FC)
    assert facts.drafter is not None
    assert (facts.drafter.method, facts.drafter.version) == (Method.DFLASH, 1)
    assert (facts.drafter.block_size, facts.drafter.longest, facts.drafter.mask_token) == (16, 15, 248070)
    assert facts.drafter.target_layers == (2, 17, 32, 47, 62)  # as llama.cpp's converter numbers them
    assert (facts.drafter.target_depth, facts.drafter.target_hidden) == (64, 5120)
    assert facts.shape is not None
    assert (facts.shape.attention_layers, facts.shape.sliding_layers, facts.shape.sliding_window) == (5, 4, 2048)
    assert mismatch(target, facts, Method.DFLASH) is None


@pytest.mark.parametrize(
    ("more", "tensors"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, {}),
        ({"dflash_config": {"selector_rank": 256, "selector_top_k": 8, "conv_kernel_size": 4, "block_size": 8}}, {}),
        ({}, {"candidate_selector.hidden.weight": ("BF16", [256, 5120])}),
    ],
    ids=["named", "fields", "tensors"],
)
def test_dflash_2(tmp_path: Path, target: FileFacts, more: dict[str, Any], tensors: folders.Tensors) -> None:
    """A second generation is told by its architecture, its fields or its tensors; engines call it dflash too."""
    facts = read(tmp_path / "d", dflash(**more), {**FC, **tensors})
    assert facts.drafter is not None
    assert (facts.drafter.method, facts.drafter.version) == (Method.DFLASH, 2)
    assert mismatch(target, facts, Method.DFLASH) is None


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        ({**dflash(), "architectures": ["Qwen3DSparkModel"], "markov_rank": 256}, {}),
        (dflash(dflash_config={"projector_type": "dspark"}), {}),
        (dflash(), {"markov_head.markov_w1.weight": ("BF16", [248320, 256])}),
    ],
    ids=["named", "fields", "tensors"],
)
def test_dspark(tmp_path: Path, target: FileFacts, config: dict[str, Any], tensors: folders.Tensors) -> None:
    facts = read(tmp_path / "d", {**config, "block_size": 7}, {**FC, **tensors})
    assert facts.drafter is not None
    assert (facts.drafter.method, facts.drafter.longest) == (Method.DSPARK, 7)
    assert mismatch(target, facts, Method.DSPARK) is None
    wrong = mismatch(target, facts, Method.DFLASH)
    assert wrong is not None
    assert wrong.code == "drafter_kind"


def eagle3(**more: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 5120,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 248320,
        "draft_vocab_size": 32000, "dtype": "bfloat16", **more,
    }  # fmt: skip


def test_eagle3(tmp_path: Path, target: FileFacts) -> None:
    """Its width comes from the projection of three hidden states side by side."""
    tensors = {"fc.weight": ("BF16", [5120, 3 * 5120]), "midlayer.self_attn.q_proj.weight": ("BF16", [8192, 10240])}
    facts = read(tmp_path / "e", eagle3(), tensors)
    assert facts.drafter is not None
    assert (facts.drafter.method, facts.drafter.draft_vocab) == (Method.EAGLE3, 32000)
    assert facts.drafter.target_hidden == 5120
    assert facts.drafter.longest is None
    assert mismatch(target, facts, Method.EAGLE3) is None
    narrow = {**tensors, "fc.weight": ("BF16", [5120, 3 * 4096])}
    reason = mismatch(target, read(tmp_path / "n", eagle3(), narrow), Method.EAGLE3)
    assert reason is not None
    assert reason.code == "drafter_width"
    speculators = {
        "speculators_model_type": "eagle3", "draft_vocab_size": 32000, "target_hidden_size": 5120,
        "eagle_aux_hidden_state_layer_ids": [2, 32, 61], "transformer_layer_config": eagle3(),
    }  # fmt: skip
    theirs = read(tmp_path / "s", speculators, tensors)
    assert theirs.drafter is not None
    assert (theirs.drafter.method, theirs.drafter.target_layers) == (Method.EAGLE3, (2, 32, 61))
    assert theirs.shape is not None
    assert theirs.shape.kv_heads == 8


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"hidden_size": 4096, "target_hidden_size": 4096}, "drafter_width"),
        ({"num_target_layers": 48}, "drafter_layers"),
        ({"num_target_layers": None, "dflash_config": {"target_layer_ids": [1, 64]}}, "drafter_layers"),
        ({"dflash_config": {"mask_token_id": 248320}}, "drafter_mask"),
        ({"dflash_config": {"mask_token_id": 248044}}, "drafter_mask"),  # ends the target's texts
        ({"vocab_size": 151936}, "drafter_vocabulary"),
    ],
)
def test_what_does_not_pair(tmp_path: Path, target: FileFacts, change: dict[str, Any], code: str) -> None:
    tensors = {"fc.weight": ("BF16", [5120, 2 * 5120])} if change.get("num_target_layers", 0) is None else FC
    facts = read(tmp_path / "Qwen3.8-27B-DFlash", dflash(**change), tensors)
    reason = mismatch(target, facts, Method.DFLASH)
    assert reason is not None
    assert reason.code == code
    assert "Qwen3.8-27B-DFlash" in reason.text


# the same in GGUF: drafters that a real engine loads (tests/models)


def facts_of(test_models: Path, name: str) -> FileFacts:
    return gguf_file.read(test_models / name)


def test_real_drafters(test_models: Path) -> None:
    target = facts_of(test_models, generate.TARGET)
    assert target.end_tokens == tuple(sorted({tokenizer.END, tokenizer.PAD}))
    drafter = facts_of(test_models, generate.DFLASH).drafter
    assert drafter is not None
    assert (drafter.mask_token, drafter.block_size, drafter.version) == (tokenizer.MASK, 8, 1)
    spark = facts_of(test_models, generate.DSPARK).drafter
    assert spark is not None
    assert spark.markov_rank is not None
    for name, method in (
        (generate.DFLASH, Method.DFLASH), (generate.DSPARK, Method.DSPARK), (generate.EAGLE3, Method.EAGLE3),
        (generate.DRAFT, Method.DRAFT),
    ):  # fmt: skip
        assert mismatch(target, facts_of(test_models, name), method) is None
    for name, code in (
        (generate.DFLASH_WIDE, "drafter_width"), (generate.DFLASH_FOREIGN, "drafter_vocabulary"),
    ):  # fmt: skip
        reason = mismatch(target, facts_of(test_models, name), Method.DFLASH)
        assert reason is not None
        assert reason.code == code


def test_own_heads(test_models: Path) -> None:
    facts = facts_of(test_models, generate.TARGET_MTP)
    assert facts.nextn_layers == facts.mtp_declared == 1
    assert facts.portions is not None
    assert facts.portions.mtp > 0
    assert facts.portions.total == facts.tensor_bytes


# vocabularies


def tokenizer_json() -> dict[str, Any]:
    """The test models' own tokenizer in the words of tokenizer.json; a special token is in the vocabulary as well."""
    special = [{"id": tokenizer.IDS[t], "content": t, "special": True} for t in tokenizer.SPECIAL]
    vocab = {text: number for text, number in tokenizer.IDS.items() if text not in tokenizer.SPECIAL[1:]}
    return {"version": "1.0", "added_tokens": special, "model": {"type": "BPE", "vocab": vocab, "merges": []}}


def test_one_digest_for_both_formats(tmp_path: Path, test_models: Path) -> None:
    """The same tokenizer gives the same digest from a GGUF and from a tokenizer.json."""
    theirs = facts_of(test_models, generate.TARGET)
    path = folders.model(
        tmp_path / "m", folders.small(vocab_size=theirs.vocab), folders.plain(), tokenizer=tokenizer_json()
    )
    ours = folder.read(str(path))
    assert ours.vocab == theirs.vocab
    assert ours.tokens_digest == theirs.tokens_digest
    changed = tokenizer_json()
    first, second, *_ = changed["model"]["vocab"]
    vocab = changed["model"]["vocab"]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (path / "tokenizer.json").write_text(json.dumps(changed))
    assert folder.read(str(path)).tokens_digest not in (None, theirs.tokens_digest)


def test_more_tokens_than_rows_are_no_vocabulary(tmp_path: Path) -> None:
    path = folders.model(tmp_path / "m", folders.small(vocab_size=4), folders.plain(), tokenizer=tokenizer_json())
    assert folder.read(str(path)).tokens_digest is None

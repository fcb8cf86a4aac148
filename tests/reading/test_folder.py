"""Folders of safetensors: exact bytes by purpose, and what the tensors say against the configuration."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ModelFileError
from orchestrator.file_facts import FileFacts, no_mtp_head
from orchestrator.kinds import KvType
from orchestrator.model_files import FileReader
from orchestrator.models import Format, ModelEntry
from orchestrator.reading import folder
from tests.reading import folders


def test_exact_bytes_by_purpose(tmp_path: Path) -> None:
    facts = folder.read(str(folders.model(tmp_path / "m", folders.QWEN38, folders.qwen38(), shards=9)))
    rows = 248320 * 5120 * 2
    mlp = 64 * 3 * 17408 * 5120 * 2
    assert facts.portions is not None
    assert facts.portions.embedding == facts.portions.head == rows
    assert facts.portions.mtp == 5120 * 10240 * 2 + 17408 * 5120 * 2
    assert facts.portions.vision == 27 * 3456 * 1152 * 2
    assert facts.portions.rest == mlp + 64 * 12 * 5120 * 2 + 5120 * 2
    assert facts.tensor_bytes == facts.portions.total
    assert facts.tensor_bytes < facts.size == sum(f.stat().st_size for f in (tmp_path / "m").glob("*.safetensors"))
    assert (facts.format, facts.architecture) == (Format.SAFETENSORS, "Qwen3_5ForConditionalGeneration")
    assert (facts.vocab, facts.quantisation, facts.end_tokens) == (248320, "BF16", (248044,))
    assert facts.shape is not None
    assert (facts.shape.tied_embeddings, facts.shape.dtype, facts.shape.mtp_layers) == (False, "bfloat16", 1)
    assert (facts.nextn_layers, facts.mtp_declared) == (1, 1)
    assert no_mtp_head(facts) is None


def test_a_head_that_was_dropped_is_told_from_the_tensors(tmp_path: Path) -> None:
    facts = folder.read(str(folders.model(tmp_path / "m", folders.QWEN38, folders.qwen38(mtp=False))))
    assert facts.shape is not None
    assert (facts.nextn_layers, facts.mtp_declared, facts.shape.mtp_layers) == (0, 1, 0)
    reason = no_mtp_head(facts)
    assert reason is not None
    assert "declares an MTP head and has no weights for it" in reason.text


@pytest.mark.parametrize(
    ("names", "layers"),
    [
        (["model.layers.2.eh_proj.weight", "model.layers.2.self_attn.q_proj.weight"], 1),  # DeepSeek, GLM, Ling
        (["model.mtp_layers.0.input_proj.weight"], 1),  # MiMo
        (["mtp.layers.0.mlp.up_proj.weight", "mtp.layers.1.mlp.up_proj.weight", "mtp.fc.weight"], 2),  # Qwen3-Next
    ],
)
def test_heads_of_every_family(tmp_path: Path, names: list[str], layers: int) -> None:
    tensors = {**folders.plain(), **{name: ("BF16", [64, 64]) for name in names}}
    facts = folder.read(str(folders.model(tmp_path / "m", folders.small(num_nextn_predict_layers=layers), tensors)))
    assert facts.nextn_layers == layers
    assert facts.portions is not None
    assert facts.portions.mtp == len(names) * 64 * 64 * 2


def test_tied_embeddings(tmp_path: Path) -> None:
    """Said, or told from a head that is not there; a head that is stored all the same is counted apart."""
    config = folders.small()
    del config["tie_word_embeddings"]
    without = {k: v for k, v in folders.plain().items() if not k.startswith("lm_head")}
    for number, (tensors, more, tied) in enumerate(
        [(without, {}, True), (folders.plain(), {}, False), (folders.plain(), {"tie_word_embeddings": True}, True)]
    ):
        facts = folder.read(str(folders.model(tmp_path / str(number), {**config, **more}, tensors)))
        assert facts.shape is not None
        assert facts.shape.tied_embeddings is tied
        assert facts.portions is not None
        assert facts.portions.head == (0 if tensors is without else 128 * 64 * 2)


@pytest.mark.parametrize(
    ("config", "text", "method", "kv"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "AWQ 4-bit", "awq", None),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "GPTQ 4-bit", "gptq", None),
        ({"quant_method": "intel/auto-round", "bits": 4}, "AutoRound 4-bit", "auto-round", None),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "FP8", "fp8", None),
        ({"quant_method": "mxfp4"}, "MXFP4", "mxfp4", None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "BitsAndBytes 4-bit", "bitsandbytes", None),
        (
            {"quant_method": "compressed-tensors", "format": "pack-quantized",
             "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
             "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
            "4-bit (compressed-tensors)", "compressed-tensors", KvType.FP8_E4M3,
        ),
        (
            {"quant_method": "compressed_tensors", "format": "float-quantized",
             "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}, "kv_cache_scheme": None},
            "FP8", "compressed-tensors", None,
        ),
        (
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
             "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}},
            "NVFP4", "compressed-tensors", None,
        ),
        (
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}},
            "NVFP4", "modelopt_fp4", KvType.FP8_E4M3,
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "FP8", "modelopt", None),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_quantisation(tmp_path: Path, config: dict[str, Any], text: str, method: str, kv: KvType | None) -> None:
    path = folders.model(tmp_path / "m", folders.small(quantization_config=config), folders.plain())
    facts = folder.read(str(path))
    assert facts.quantised is not None
    assert (facts.quantisation, facts.quantised.method, facts.quantised.kv) == (text, method, kv)


def test_modelopt_says_it_in_a_file_of_its_own(tmp_path: Path) -> None:
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None}}
    path = folders.model(tmp_path / "m", folders.small(), folders.plain(dtype="U8"), hf_quant_config=beside)
    facts = folder.read(str(path))
    assert facts.quantisation == "NVFP4"


def test_heads_of_a_27b_folder_are_read_in_no_time(tmp_path: Path) -> None:
    """Of 1,000 tensors in 9 files. The bar is far above what it takes (12 ms idle), far below a fault in kind."""
    path = folders.model(tmp_path / "m", folders.QWEN38, folders.qwen38(), shards=9)
    folder.read(str(path))
    began = time.perf_counter()
    folder.read(str(path))
    assert time.perf_counter() - began < 0.5


def entry(path: Path) -> ModelEntry:
    variant = {"name": "v", "format": "safetensors", "quantisation": "BF16", "path": str(path)}
    return ModelEntry.model_validate({"name": "m", "variants": [variant]})


def test_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folders.model(tmp_path / "m", folders.small(), folders.plain())
    reads: list[str] = []
    real = folder.read

    def counted(place: str, root: str | None = None) -> FileFacts:
        reads.append(place)
        return real(place, root)

    monkeypatch.setattr(folder, "read", counted)
    reader = FileReader()
    first = reader.inspect(entry(path), tmp_path)[str(path)]
    assert reader.inspect(entry(path), tmp_path)[str(path)] is first
    assert len(reads) == 1
    (path / "config.json").write_text(json.dumps(folders.small(max_position_embeddings=999)))
    second = reader.inspect(entry(path), tmp_path)[str(path)]
    assert isinstance(second, FileFacts)
    assert second.shape is not None
    assert second.shape.max_context == 999


def test_a_snapshot_of_a_cache_is_read_through_its_links(tmp_path: Path) -> None:
    """A Hugging Face cache: snapshots of links into blobs. Given alone, an engine would not see the blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "c"
    folders.model(blobs, folders.small(), folders.plain())
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert folder.read(str(snapshot), str(tmp_path)).size > 0
    with pytest.raises(ModelFileError, match="leads out of its folder"):
        folder.read(str(snapshot))


def test_what_lies_beside_the_index_is_no_weight(tmp_path: Path) -> None:
    path = folders.model(tmp_path / "m", folders.small(), folders.plain(), shards=2)
    size = folder.read(str(path)).size
    folders.safetensors(path / "consolidated.safetensors", folders.plain())
    assert folder.read(str(path)).size == size


def test_a_layer_of_an_unknown_kind_is_unknown(tmp_path: Path) -> None:
    config = folders.small(layer_types=["full_attention", "holographic_attention"])
    facts = folder.read(str(folders.model(tmp_path / "m", config, folders.plain())))
    assert facts.shape is None
    assert facts.unclear == "a layer of type 'holographic_attention' is not known here"
    sparse = folder.read(str(folders.model(tmp_path / "n", folders.small(index_topk=2048), folders.plain())))
    assert sparse.shape is None
    bare = folder.read(str(folders.model(tmp_path / "o", {"model_type": "new"}, folders.plain())))
    assert bare.shape is None
    assert bare.unclear is not None
    assert bare.tensor_bytes > 0


def test_chat_template_and_ends(tmp_path: Path) -> None:
    path = folders.model(
        tmp_path / "m", folders.small(eos_token_id=[5, 6]), folders.plain(),
        tokenizer_config={"chat_template": "{{ messages }}"}, generation_config={"eos_token_id": 7, "pad_token_id": 8},
    )  # fmt: skip
    facts = folder.read(str(path))
    assert facts.chat_template
    assert facts.end_tokens == (5, 6, 7, 8)


def test_file_of_holes_stays_one(tmp_path: Path) -> None:
    """These tests claim models of 50 GB; nothing of them may be read or written."""
    path = folders.model(tmp_path / "m", folders.QWEN38, folders.qwen38())
    folder.read(str(path))
    assert os.stat(path / "model.safetensors").st_blocks * 512 < 1 << 20

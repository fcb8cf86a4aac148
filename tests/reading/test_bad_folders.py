"""Folders that are damaged or mean harm: an error that names the file and the key, or unknown. Never anything else."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator import gguf_file
from orchestrator.errors import ModelFileError
from orchestrator.file_facts import FileFacts, FileProblem
from orchestrator.model_files import FileReader
from orchestrator.reading import folder, safetensors_file, tokenizer_file
from tests.planner import gguf_files
from tests.reading import folders
from tests.reading.test_folder import entry


def refused(path: Path) -> str:
    """What is said of a folder that is refused, by the reader and by `FileReader` alike."""
    with pytest.raises(ModelFileError) as caught:
        folder.read(str(path))
    assert caught.value.hint
    found = FileReader().inspect(entry(path), path.parent)[str(path)]
    assert isinstance(found, FileProblem)
    assert found.text == caught.value.detail
    return caught.value.detail


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folders.model(tmp_path / "m", folders.small(), folders.plain())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", -1), ("num_hidden_layers", "64"), ("num_hidden_layers", 10**15), ("hidden_size", -5120),
        ("num_attention_heads", [1]), ("num_key_value_heads", {"a": 1}), ("head_dim", 1.5), ("vocab_size", True),
        ("num_hidden_layers", 1 << 30), ("layer_types", "full_attention"), ("layer_types", ["full_attention"]),
        ("text_config", []), ("tie_word_embeddings", "yes"), ("quantization_config", "awq"), ("architectures", "Qwen3"),
        ("num_key_value_heads", [2, -3]), ("model_type", 7), ("max_position_embeddings", "a lot"),
        ("eos_token_id", "end"), ("sliding_window", -4),
    ],
)  # fmt: skip
def test_a_key_that_makes_no_sense_is_named(model: Path, key: str, value: Any) -> None:
    (model / "config.json").write_text(json.dumps(folders.small(**{key: value})))
    text = refused(model)
    assert "config.json" in text
    assert key in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "is no JSON"), (b"[]", "holds no JSON object"), (b"\xff\xfe", "is no JSON"), (b"{", "is no JSON"),
        (b'{"a": NaN}', "NaN"), (b'{"a": -Infinity}', "Infinity"), (b'{"a": 1, "a": 2}', "'a' twice"),
        (b'{"a": ' + b"9" * 5000 + b"}", "5000 digits"), (b'{"a":' + b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"), (b'{"num_hidden_layers": 1, "hidden_size": 1e400}', "hidden_size"),
        (b" " * (9 << 20), "more than"),
    ],
)  # fmt: skip
def test_no_configuration(model: Path, text: bytes, says: str) -> None:
    (model / "config.json").write_bytes(text)
    found = refused(model)
    assert "config.json" in found
    assert says in found


def write_header(path: Path, text: bytes, data: int = 0, length: int | None = None) -> None:
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(data))


def described(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> bytes:
    return json.dumps({"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()


@pytest.mark.parametrize(
    ("text", "data", "length", "says"),
    [
        (described(), 8, 2 << 30, "claims a header of 2147483648 bytes"),
        (described(), 8, (1 << 64) - 1, "claims a header of"),
        (described(), 8, 4000, "ends inside its header"),
        (described(), 7, None, "1 are missing"),
        (described(), 9, None, "belong to no tensor"),
        (described(offsets=(0, 4)), 4, None, "its shape needs 8"),
        (described(offsets=(8, 0)), 8, None, "end before it begins"),
        (described(offsets=(-8, 0)), 8, None, "data_offsets that cannot be"),
        (described(offsets=(0, 1 << 60)), 8, None, "data_offsets that cannot be"),
        (described(offsets=[0]), 8, None, "data_offsets that cannot be"),
        (described(offsets=(4, 12)), 12, None, "leaves 4 bytes before t"),
        (described(shape=(-1, -2)), 8, None, "a shape that cannot be"),
        (described(shape=[2.5]), 8, None, "a shape that cannot be"),
        (described(shape=[1] * 99), 4, None, "a shape that cannot be"),
        (described(shape=(1 << 40, 1 << 40)), 8, None, "its shape needs"),
        (described(dtype=7), 8, None, "no dtype"),
        (b'{"t": 1}', 0, None, "by no object"),
        (b"\x00\x00", 8, None, "is no safetensors file"),
        (b'{"t": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},'
         b' "t": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}', 8, None, "leaves 4 bytes before t"),
        (b'{"t": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 0]}}', 0, None, "NaN"),
        (b'{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},'
         b' "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}', 6, None, "overlap another"),
    ],
)  # fmt: skip
def test_headers_that_lie(model: Path, text: bytes, data: int, length: int | None, says: str) -> None:
    write_header(model / "model.safetensors", text, data, length)
    found = refused(model)
    assert "model.safetensors" in found
    assert says in found


def test_a_claim_of_two_gigabytes_costs_nothing(tmp_path: Path) -> None:
    """Also where the file has room for it."""
    file = tmp_path / "big.safetensors"
    file.write_bytes(struct.pack("<Q", 2 << 30) + b"{")
    os.truncate(file, 3 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match="claims a header of"):
            safetensors_file.read(str(file))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_type_of_tomorrow_is_counted_by_its_place(model: Path) -> None:
    write_header(model / "model.safetensors", described(dtype="F3_NEW"), 8)
    (model / "config.json").write_text("{}")
    assert folder.read(str(model)).tensor_bytes == 8


def test_shards(tmp_path: Path) -> None:
    path = folders.model(tmp_path / "m", folders.small(), folders.plain(), shards=3)
    index = json.loads((path / folder.INDEX).read_text())
    gone = path / "model-00002-of-00003.safetensors"
    content = gone.read_bytes()
    gone.unlink()
    assert "lacks 1 of 3 weight files: model-00002-of-00003.safetensors" in refused(path)
    (path / folder.INDEX).unlink()
    assert "lacks 1 of 3 weight files" in refused(path)  # by the names of those that are there
    gone.write_bytes(content)
    for change, says in (
        ({"weight_map": []}, "weight_map is no object"),
        ({"weight_map": {"a": "../../etc/passwd.safetensors"}}, "weight_map has"),
        ({"weight_map": {"a": 3}}, "weight_map has"),
        ({"weight_map": {**index["weight_map"], "ghost": gone.name}}, f"places ghost in {gone.name}"),
        ({"weight_map": {**index["weight_map"], "ghost": "more.safetensors"}}, "lacks 1 of 4"),
    ):
        (path / folder.INDEX).write_text(json.dumps(change))
        assert says in refused(path)
    (path / folder.INDEX).write_text(json.dumps(index))
    (path / "model-00001-of-00003.safetensors").write_bytes(content)
    text = refused(path)
    assert "which another file has" in text or "which lacks it" in text


def test_too_few_layers_have_weights(tmp_path: Path) -> None:
    path = folders.model(tmp_path / "m", folders.small(num_hidden_layers=4), folders.plain(layers=2))
    assert "num_hidden_layers is 4, the weights hold 2 layers" in refused(path)
    beyond = folders.model(tmp_path / "n", folders.small(num_hidden_layers=2), folders.plain(layers=3))
    assert folder.read(str(beyond)).shape is None  # a head that nothing declares, or a lie: unknown


@pytest.mark.parametrize("kind", ["fifo", "folder", "dangling", "outside", "loop", "socket_folder", "missing", "file"])
def test_what_is_no_model_folder(model: Path, tmp_path: Path, kind: str) -> None:
    config = model / "config.json"
    match kind:
        case "fifo":
            config.unlink()
            os.mkfifo(config)  # opening it must not wait for a writer
        case "folder":
            config.unlink()
            config.mkdir()
        case "dangling":
            config.unlink()
            config.symlink_to("nowhere.json")
        case "outside":
            (tmp_path / "secret.json").write_text("{}")
            config.unlink()
            config.symlink_to("../secret.json")
        case "loop":
            config.unlink()
            config.symlink_to("config.json")
        case "socket_folder":
            config.unlink()
        case "missing":
            model = tmp_path / "nothing"
        case _:
            model = config
    assert str(model) in refused(model)


def test_a_file_that_shrinks_while_it_is_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size was right when it was looked at."""
    real = os.fstat

    def longer(handle: int) -> os.stat_result:
        found = real(handle)
        return os.stat_result((*found[:6], found.st_size + 64, *found[7:]))

    monkeypatch.setattr(os, "fstat", longer)
    with pytest.raises(ModelFileError, match="shorter while it was read"):
        folder.read(str(model))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({}, "has no model.vocab"),
        ({"model": {"vocab": {"a": 1, "b": 1}}}, "the same number 1"),
        ({"model": {"vocab": {"a": -1}}}, "the number -1"),
        ({"model": {"vocab": {"a": 1 << 40}}}, "the number 1099511627776"),
        ({"model": {"vocab": {"a": "x"}}}, "the number x"),
        ({"model": {"vocab": [["a", 0.5], 3]}}, "entry 1 is no token"),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": [], "content": "b"}]}, "the number []"),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [3]}, "without content"),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": {"a": 1}}, "no list"),
    ],
)
def test_tokenizers(model: Path, content: object, says: str) -> None:
    (model / "tokenizer.json").write_text(json.dumps(content))
    text = refused(model)
    assert "tokenizer.json" in text
    assert says in text


# fuzzing: whatever comes, facts or a `ModelFileError`

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = sorted(
    {*folders.small(), *folders.QWEN38["text_config"]}
    | {
        "text_config", "layer_types", "sliding_window", "sliding_window_pattern", "num_kv_shared_layers",
        "kv_lora_rank",
        "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "hybrid_override_pattern", "linear_attn_config",
        "layer_group_size", "block_configs", "attn_type_list", "hybrid_layer_pattern", "mamba_d_state",
        "mamba_n_heads",
        "conv_L_cache", "global_head_dim", "num_global_key_value_heads", "swa_head_dim", "quantization_config",
        "dflash_config", "block_size", "num_target_layers", "draft_vocab_size", "num_experts", "use_sliding_window",
        "max_window_layers", "num_nextn_predict_layers", "attn_layer_period", "speculators_model_type",
        "aux_hidden_state_layer_ids", "eagle_config", "compress_ratios", "mask_token_id", "markov_rank",
    }
)  # fmt: skip
LIKELY = JSON | st.sampled_from(
    [0, 1, 2, 8, 64, 128, "full_attention", ["full_attention", "mamba"], ["sliding_attention"] * 2]
)


def read_anything(config: object) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = folders.model(Path(place) / "m", {}, folders.plain())
        (path / "config.json").write_text(json.dumps(config))
        found = FileReader().inspect(entry(path), path.parent)[str(path)]
        assert isinstance(found, FileFacts | FileProblem)


@example({"num_hidden_layers": 2, "hidden_size": 1, "num_attention_heads": 8})  # a width of nothing
@example({"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "head_dim": 1, "num_attention_heads": 1})
@given(st.dictionaries(st.sampled_from(KEYS), LIKELY, max_size=9))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_configuration(changes: dict[str, Any]) -> None:
    read_anything({**folders.small(), **changes})


@pytest.mark.slow
@pytest.mark.timeout(900)
@given(st.dictionaries(st.sampled_from(KEYS), LIKELY, max_size=9), st.booleans())
@settings(max_examples=4000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_many_configurations(changes: dict[str, Any], nested: bool) -> None:
    read_anything({"text_config": changes, **folders.small()} if nested else changes)


GOOD, DATA = folders.header(
    {k: ("U8", [4]) for k in ("model.embed_tokens.weight", "model.layers.0.a", "lm_head.weight")}
)
TENSOR = st.fixed_dictionaries(
    {}, optional={"dtype": st.sampled_from(["F32", "U8", "F4", "NEW", 3]), "shape": JSON, "data_offsets": JSON}
)


def read_bytes(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(data)
        file.flush()
        try:
            header = safetensors_file.read(file.name)
        except ModelFileError as error:
            named = file.name in error.detail
        else:
            named = sum(t.bytes for t in header.tensors.values()) <= len(data)
        assert named


@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=12), st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_any_damage_to_a_header(at: int, piece: bytes, cut: int) -> None:
    data = bytearray(GOOD + bytes(DATA))
    data[at : at + len(piece)] = piece
    read_bytes(bytes(data[: len(data) - cut]))


@given(st.dictionaries(st.text(max_size=12), TENSOR | JSON, max_size=4), st.integers(0, 64))
@settings(max_examples=100, deadline=None)
def test_any_header(content: dict[str, Any], data: int) -> None:
    text = json.dumps(content).encode()
    read_bytes(struct.pack("<Q", len(text)) + text + bytes(data))


@pytest.mark.slow
@pytest.mark.timeout(900)
@given(st.dictionaries(st.text(max_size=12), TENSOR | JSON, max_size=4), st.integers(0, 64), st.binary(max_size=6))
@settings(max_examples=10_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_many_headers(content: dict[str, Any], data: int, piece: bytes) -> None:
    text = bytearray(json.dumps(content).encode())
    at = len(text) // 2
    text[at : at + len(piece)] = piece
    read_bytes(struct.pack("<Q", len(text)) + bytes(text) + bytes(data))


@given(JSON)
@settings(max_examples=100, deadline=None)
def test_any_tokenizer(content: Any) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"model": {"vocab": content}, "added_tokens": content}, file)
        file.flush()
        said = file.name
        try:
            tokenizer_file.read(file.name, 16)
        except ModelFileError as error:
            said = error.detail
        assert file.name in said


# GGUF, whose reader has its own tests beside the planner's


@pytest.mark.slow
@pytest.mark.timeout(900)
@given(st.data())
@settings(max_examples=6000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_many_damages_to_a_gguf(data: st.DataObject) -> None:
    good = gguf_bytes()
    changed = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(good), 6000) - 9))
        piece = data.draw(st.binary(min_size=1, max_size=8))
        changed[at : at + len(piece)] = piece
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(changed[: len(changed) - data.draw(st.integers(0, 3000))])
        file.flush()
        said = file.name
        try:
            facts = gguf_file.read(file.name)
        except ModelFileError as error:
            said = error.detail
        else:
            assert facts.tensor_bytes <= facts.size
        assert file.name in said


def gguf_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as place:
        return gguf_files.target(Path(place) / "m.gguf", arch="qwen35", nextn=1, hybrid=True).read_bytes()


def test_gguf_tensors_that_overlap(tmp_path: Path) -> None:
    """The second tensor's offset points into the first."""
    file = gguf_files.target(tmp_path / "m.gguf")
    data = file.read_bytes()
    name = b"blk.1.attn_k.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8 + 4
    file.write_bytes(data[:at] + struct.pack("<Q", 32) + data[at + 8 :])
    with pytest.raises(ModelFileError, match="overlap another one"):
        gguf_file.read(file)

"""The GGUF header reader: facts from good files, clear errors from bad ones, nothing else from any."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import gguf_file
from orchestrator.errors import ModelFileError
from orchestrator.file_facts import mismatch
from orchestrator.plan import Method
from tests.planner import gguf_files


def test_plain_model(tmp_path: Path) -> None:
    facts = gguf_file.read(gguf_files.target(tmp_path / "m.gguf"))
    assert facts.architecture == "qwen3"
    assert facts.shape is not None
    assert (facts.shape.layers, facts.shape.attention_layers, facts.shape.linear_layers) == (4, 4, 0)
    assert (facts.shape.kv_heads, facts.shape.head_dim, facts.shape.hidden) == (2, 32, 64)
    assert facts.shape.max_context == 32768
    assert facts.vocab == len(gguf_files.TOKENS)
    assert facts.chat_template
    assert facts.quantisation == "F32"
    assert facts.drafter is None
    assert 0 < facts.tensor_bytes < facts.size == (tmp_path / "m.gguf").stat().st_size


def test_hybrid_with_mtp_head(tmp_path: Path) -> None:
    facts = gguf_file.read(gguf_files.target(tmp_path / "m.gguf", arch="qwen35", nextn=1, hybrid=True))
    assert facts.shape is not None
    assert (facts.shape.layers, facts.shape.attention_layers, facts.shape.linear_layers) == (4, 1, 3)
    assert (facts.shape.linear_key_heads, facts.shape.linear_value_heads, facts.shape.linear_head_dim) == (2, 2, 32)
    assert facts.nextn_layers == facts.shape.mtp_layers == 1


def test_drafter(tmp_path: Path) -> None:
    facts = gguf_file.read(gguf_files.dflash(tmp_path / "d.gguf"))
    assert facts.drafter is not None
    assert facts.drafter.method is Method.DFLASH
    assert (facts.drafter.block_size, facts.drafter.longest, facts.drafter.target_layers) == (8, 7, (1, 2, 3))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"width": 96}, "drafter_width"),
        ({"reads": (1, 9)}, "drafter_layers"),
        ({"tokens": gguf_files.TOKENS[:-1]}, "drafter_vocabulary"),
        ({"tokens": gguf_files.TOKENS[::-1]}, "drafter_vocabulary"),
        ({}, None),
    ],
)
def test_pairing(tmp_path: Path, change: dict[str, object], code: str | None) -> None:
    target = gguf_file.read(gguf_files.target(tmp_path / "m.gguf"))
    drafter = gguf_file.read(gguf_files.dflash(tmp_path / "d.gguf", **change))  # type: ignore[arg-type]
    reason = mismatch(target, drafter, Method.DFLASH)
    assert (reason.code if reason else None) == code


def test_pairing_by_kind(tmp_path: Path) -> None:
    target = gguf_file.read(gguf_files.target(tmp_path / "m.gguf"))
    eagle = gguf_file.read(gguf_files.eagle3(tmp_path / "e.gguf"))
    wide = gguf_file.read(gguf_files.eagle3(tmp_path / "w.gguf", target_hidden=128))
    assert mismatch(target, eagle, Method.EAGLE3) is None
    for drafter, method, code in (
        (eagle, Method.DFLASH, "drafter_kind"),  # answers every chat with an error
        (eagle, Method.DRAFT, "drafter_kind"),
        (target, Method.DFLASH, "drafter_kind"),
        (wide, Method.EAGLE3, "drafter_width"),
    ):
        reason = mismatch(target, drafter, method)
        assert reason is not None
        assert reason.code == code
    assert mismatch(target, target, Method.DRAFT) is None


def test_truncated_names_what_is_missing(tmp_path: Path) -> None:
    file = gguf_files.target(tmp_path / "m.gguf")
    whole = file.stat().st_size
    os.truncate(file, whole - 1000)
    with pytest.raises(ModelFileError) as caught:
        gguf_file.read(file)
    assert str(file) in caught.value.detail
    assert "truncated" in caught.value.detail
    assert caught.value.evidence["size"] == whole - 1000
    assert caught.value.hint is not None


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "text", "fifo", "big_endian", "proc", "nul"])
def test_no_such_model(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.gguf"
    match kind:
        case "folder":
            path.mkdir()
        case "empty":
            path.touch()
        case "text":
            path.write_text("once upon a time " * 10)
        case "fifo":
            os.mkfifo(path)
        case "big_endian":
            path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + bytes(64))
        case "proc":
            path = Path("/proc/1/mem")  # a regular file of no size
        case "nul":
            path = tmp_path / "m\0.gguf"
        case _:
            assert not path.exists()
    with pytest.raises(ModelFileError) as caught:
        gguf_file.read(path)
    assert str(path) in caught.value.detail
    assert caught.value.hint


@pytest.mark.parametrize("at", [8, 16])
def test_hostile_counts(tmp_path: Path, at: int) -> None:
    file = gguf_files.target(tmp_path / "m.gguf")
    data = bytearray(file.read_bytes())
    for count in (1 << 20, 1 << 32, (1 << 64) - 1):
        data[at : at + 8] = struct.pack("<Q", count)
        file.write_bytes(data)
        with pytest.raises(ModelFileError):
            gguf_file.read(file)


def test_hostile_array_neither_allocates_nor_takes_long(tmp_path: Path) -> None:
    """Arrays that claim everything, in a file that has room for much of it."""
    file = tmp_path / "m.gguf"
    key = b"tokenizer.ggml.tokens"
    for kind, count in ((8, 1 << 60), (8, 1 << 22), (12, 1 << 40), (9, 3)):
        head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
        file.write_bytes(head + struct.pack("<IIQ", 9, kind, count))
        os.truncate(file, 24 << 20)
        tracemalloc.start()
        begin = time.process_time()
        with pytest.raises(ModelFileError):
            gguf_file.read(file)
        assert time.process_time() - begin < 5
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        tracemalloc.stop()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("good")
    return gguf_files.target(folder / "m.gguf", arch="qwen35", nextn=1, hybrid=True).read_bytes()


@given(
    edits=st.lists(st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=9)), max_size=6),
    cut=st.none() | st.integers(0, 6000),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_files_give_facts_or_a_model_file_error(
    good: bytes, tmp_path: Path, edits: list[tuple[int, bytes]], cut: int | None
) -> None:
    data = bytearray(good[:cut])
    for at, piece in edits:
        data[at : at + len(piece)] = piece
    file = tmp_path / "m.gguf"
    file.write_bytes(data)
    try:
        facts = gguf_file.read(file)
    except ModelFileError:
        return
    assert facts.tensor_bytes <= facts.size == len(data)

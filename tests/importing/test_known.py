"""The options that are called unknown are those that a server's own parser does not have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.catalogue import shipped
from orchestrator.importing import Here, Item, Outcome, read
from orchestrator.importing.known import known, variables
from orchestrator.models import Runtime
from orchestrator.runtimes.llama_cpp.builds import table
from orchestrator.runtimes.vllm_flags import FLAGS

TESTS = Path(__file__).parents[1]
HERE = Here(shipped())


def codes(line: str) -> dict[str, str]:
    (item,) = read(line, HERE).items
    return {change.code: change.was or "" for change in item.changes}


def test_the_table_of_vllm_is_the_recorded_surface_of_its_newest_version() -> None:
    flags = json.loads((TESTS / "runtimes/vllm/surfaces.json").read_text())["words"]["flags"]
    newest = {flag for flag, versions in flags.items() if versions.endswith("0.33.0")} - {"--help"}
    mine = known(Runtime.VLLM)
    assert newest - mine.arity.keys() == set()
    assert mine.gone == flags.keys() - newest - {"--help"}
    assert not mine.gone & mine.arity.keys()
    assert {f for f, word in FLAGS.items() if word.until is None} - mine.arity.keys() == set()


def test_the_table_of_sglang_has_all_that_its_parser_was_seen_to_take() -> None:
    seen = json.loads((TESTS / "coverage/evidence/sglang-0.5.23.json").read_text())["accepted"]
    flags = {word for line in seen for word in line if word.startswith("--")}
    assert flags - known(Runtime.SGLANG).arity.keys() == set()


def test_every_variable_stands_for_an_option_of_llama_server() -> None:
    assert variables()["LLAMA_ARG_CTX_SIZE"] == "--ctx-size"
    assert set(variables().values()) - table().flags.keys() == set()


def test_a_known_option_is_not_called_unknown() -> None:
    line = "vllm serve a/b --disable-hybrid-kv-cache-manager --calculate-kv-scales --no-such-thing 5 --max-log-len 3"
    found = codes(line)
    assert found["unknown_flag"] == "--no-such-thing 5"
    assert found["removed_flag"] == "--calculate-kv-scales"
    assert "unknown_flag" not in codes("vllm serve a/b -O3")
    assert "unknown_flag" not in codes("vllm serve a/b -O.level=3 -cc.mode=3")
    assert "unknown_flag" not in codes("python -m sglang.launch_server --model-path a/b --enable-hierarchical-cache")


def test_a_switch_does_not_take_the_model_for_its_value() -> None:
    (item,) = read("vllm serve --disable-cascade-attn a/b -tp=2 --max_model_len 4096", HERE).items
    assert item.entry is not None
    assert (item.entry.variants[0].repository, item.entry.tensor_parallel, item.entry.context) == ("a/b", 2, 4096)


@pytest.mark.parametrize(
    "line", ["vllm serve a/b --config x.yaml", "python -m sglang.launch_server --config x.yaml --model-path a/b"]
)
def test_options_in_a_file_are_not_passed_over(line: str) -> None:
    (item,) = read(line, HERE).items
    assert item.outcome is Outcome.REFUSED
    assert item.reason is not None
    assert item.reason.code == "config_file"


def entry_of(item: Item) -> tuple[str | None, int | None, int | None]:
    assert item.entry is not None, item.reason
    return item.entry.variants[0].path, item.entry.context, item.entry.parallel


def test_what_variables_say_to_llama_server_is_read_and_the_line_wins() -> None:
    env = "LLAMA_ARG_MODEL=/m/a-Q4_K_M.gguf LLAMA_ARG_CTX_SIZE=8192 LLAMA_ARG_N_PARALLEL=2"
    (item,) = read(f"{env} llama-server -c 16384", HERE).items
    assert entry_of(item) == ("/m/a-Q4_K_M.gguf", 8192, 2)
    image = "ghcr.io/ggml-org/llama.cpp:server-cuda-b11434"
    docker = " ".join(f"-e {pair}" for pair in env.split())
    (item,) = read(f"docker run -v /srv:/m {docker} {image}", HERE).items
    assert entry_of(item) == ("/srv/a-Q4_K_M.gguf", 4096, 2)

"""`outrider fit`: rows in, one document or a table out; and what a host holds of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call

GOOD = {"id": "a", "engine": "vllm", "gpu": "RTX 3090", "model": "Qwen3-8B", "ctx_per_request": 32768}
TOO_BIG = {**GOOD, "id": "b", "model": "Qwen/Qwen3-32B", "quant": "bf16"}
BAD = {**GOOD, "id": "c", "gpu_mem_gib": "24"}
TRUTH = Path(__file__).parents[1] / "fit" / "truth.jsonl"


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    "text", [lines(GOOD, TOO_BIG), json.dumps([GOOD, TOO_BIG]), json.dumps([GOOD, TOO_BIG], indent=2)]
)
def test_rows_come_as_lines_or_as_an_array(call: Call, text: str) -> None:
    said = call("fit", "--json", stdin=text)
    assert said.code == 0
    assert said.err == ""
    first, second = said.document
    assert (first["id"], first["verdict"]) == ("a", "fits")
    assert (second["id"], second["verdict"]) == ("b", "too_big")
    assert first["needed_gib"] == pytest.approx(4.5, rel=0.001)
    assert all({"code", "text"} <= set(reason) for reason in first["reasons"])
    assert first["assumed"]["gpu_memory_utilization"] == "0.92, vLLM's default"


def test_a_single_row_in_several_lines(call: Call) -> None:
    assert [row["id"] for row in call("fit", "--json", stdin=json.dumps(GOOD, indent=1)).document] == ["a"]


def test_a_bad_row_is_an_entry_and_the_others_are_answered(call: Call) -> None:
    said = call("fit", "--json", stdin=lines(GOOD, BAD) + "\n{nope\n" + lines([1], TOO_BIG))
    assert said.code == 1
    good, bad, broken, list_, big = said.document
    assert good["verdict"] == "fits"
    assert (bad["line"], bad["id"], bad["error"]["key"]) == (2, "c", "gpu_mem_gib")
    assert bad["error"]["code"] == "bad_row"
    assert broken["line"] == 4
    assert "is no JSON" in broken["error"]["detail"]
    assert list_["error"]["detail"].startswith("expected a table")
    assert big["verdict"] == "too_big"
    assert said.err.splitlines()[0] == "row 2: gpu_mem_gib: expected a number, found '24'"


def test_people_get_a_table(call: Call) -> None:
    said = call("fit", stdin=lines(GOOD, BAD))
    assert said.code == 1
    assert "VERDICT" in said.out
    assert "a sequence of 32768 tokens needs 4.50 GiB of KV cache" in said.out
    assert "gpu_mem_gib: expected a number" in said.out


@pytest.mark.parametrize("text", ["", "\n\n", "[1, 2", "[]"])
def test_no_rows_is_a_wrong_call(call: Call, text: str) -> None:
    said = call("fit", "--json", stdin=text)
    assert said.code == 2
    assert said.document["error"]["code"] == "usage"


def test_every_public_log_gets_an_answer(call: Call) -> None:
    said = call("fit", "--json", stdin=TRUTH.read_text())
    assert said.code == 0
    assert len(said.document) == len(TRUTH.read_text().splitlines())
    assert {row["verdict"] for row in said.document} == {"fits", "too_big", "unknown"}


def test_what_a_host_holds_of_a_model(call: Call) -> None:
    document = call("fit", "--model", "qwen3.6-27b", "--profile", "dankserver", "--json").document
    assert document["host"] == "dankserver"
    best = document["answers"][0]
    assert best["fits"] is True
    assert best["largest_context"] >= 32768
    human = call("fit", "--model", "qwen3.6-27b", "--profile", "dankserver")
    assert human.code == 0
    assert "LONGEST" in human.out


def test_what_to_give_up_first(call: Call) -> None:
    words = ("fit", "--model", "Qwen3-32B", "--profile", "dankserver", "--context", "40960", "--parallel", "8")
    said = call(*words, "--json")
    assert said.code == 4
    steps = said.document["answers"][0]["give_up"]
    assert steps[0]["what"] == "parallel"
    assert steps[-1]["enough"] is True
    assert "give up: parallel 8 -> 4" in call(*words).out


def test_a_model_that_nobody_knows(call: Call) -> None:
    said = call("fit", "--model", "Qwen3-80B", "--profile", "dankserver")
    assert said.code == 3
    assert "no model is known by 'Qwen3-80B'" in said.err

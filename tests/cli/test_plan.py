"""`outrider plan` for people and for programs: the first screen, all of it, and what a what-if changes."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Call

HOST = ("--profile", "dankserver")


def test_the_first_screen_is_short_and_says_what_memory_why_and_what_else(call: Call) -> None:
    said = call("plan", "qwen3.8-27b", *HOST).out
    lines = said.splitlines()
    assert len(lines) <= 45
    for word in ("model ", "engine ", "method ", "memory ", "why ", "also possible", "turned down", "keeps failing"):
        assert any(line.startswith((word, f"if it {word}")) for line in lines), word
    assert "weights" in said
    assert "kept for it" in said
    assert "argv" not in said
    everything = call("plan", "qwen3.8-27b", *HOST, "--all").out
    assert "argv " in everything
    assert "[fits]" in everything
    assert "syv-ai/qwen38-27b-rtx3090" in everything
    assert len(everything) > len(said)


def test_the_ladder_is_in_the_document(call: Call) -> None:
    document = call("plan", "qwen3.8-27b", *HOST, "--json").document
    rungs = document["ladder"]
    assert rungs[0]["digest"] == document["plan"]["digest"]
    assert rungs[0]["change"] == "plan"
    assert {"eager", "method_none", "other_runtime"} <= {rung["change"] for rung in rungs}
    assert len({rung["digest"] for rung in rungs}) == len(rungs)
    assert "changes" not in document


def test_a_what_if_says_what_it_changes(call: Call) -> None:
    document = call("plan", "qwen3.8-27b", *HOST, "--json", "--what-if", "ctx=16384,parallel=2").document
    plain = call("plan", "qwen3.8-27b", *HOST, "--json").document["plan"]
    assert document["changes"]["context"] == [plain["context"], 16384]
    assert document["changes"]["parallel"] == [plain["parallel"], 2]
    human = call("plan", "qwen3.8-27b", *HOST, "--what-if", "ctx=16384", "--what-if", "parallel=2").out
    assert f"context {plain['context']} -> 16384" in human


def test_a_what_if_that_leaves_nothing_says_why(call: Call) -> None:
    said = call("plan", "qwen3.8-27b", *HOST, "--json", "--what-if", "ctx=131072,parallel=8,method=none")
    assert said.code == 4
    assert said.document["changes"]["method"][1] is None
    assert said.document["ladder"] == []
    texts = [a["rejected"]["text"] for a in said.document["alternatives"]]
    assert any("it would fit with" in text for text in texts)


@pytest.mark.parametrize(("pair", "key"), [("ctx=many", "ctx"), ("flavour=sweet", "flavour"), ("kv=fp7", "kv")])
def test_a_bad_what_if_names_its_key(call: Call, pair: str, key: str) -> None:
    said = call("plan", "qwen3.8-27b", *HOST, "--what-if", f"parallel=2,{pair}")
    assert said.code == 2
    assert key in said.err

"""`outrider plan` for people and for programs: the first screen, all of it, and what a what-if changes."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.measured import Ran
from orchestrator.measuring.learned import Decoding
from orchestrator.measuring.ledger import Ledger
from orchestrator.paths import Paths
from orchestrator.plan import Method
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
    human = call("plan", "qwen3.8-27b", *HOST, "--what-if", "ctx=131072,parallel=8,method=none").out
    assert "-> none" not in human
    assert "without --what-if: vllm w4a16 with dflash" in human


@pytest.mark.parametrize(("pair", "key"), [("ctx=many", "ctx"), ("flavour=sweet", "flavour"), ("kv=fp7", "kv")])
def test_a_bad_what_if_names_its_key(call: Call, pair: str, key: str) -> None:
    said = call("plan", "qwen3.8-27b", *HOST, "--what-if", f"parallel=2,{pair}")
    assert said.code == 2
    assert key in said.err


@pytest.mark.parametrize("pairs", ["ctx=4096,ctx=8192", "ctx=4096,context=8192"])
def test_a_what_if_that_says_one_thing_twice_is_refused(call: Call, pairs: str) -> None:
    said = call("plan", "qwen3.8-27b", *HOST, "--what-if", pairs)
    assert said.code == 2
    assert "given twice" in said.err


def test_without_a_daemon_a_plan_counts_on_what_this_host_has_measured(call: Call, paths: Paths) -> None:
    """... and only for this host: another one's facts are another host's."""
    engine = ("smollm2", "--json", "--what-if", "image=embedded-cpu")
    first = call("plan", *engine).document["plan"]
    assert not paths.measurements.exists()

    async def learn() -> None:
        ledger = await Ledger.open(paths.measurements)
        ran = Ran("smollm2", "q4-1", "llama.cpp", first["runtime_version"], "cpu", Method.NONE, None)
        await ledger.decoded(Decoding(ran, None, "2026-11-29", 600, 12.0), 1.0)
        await ledger.close()

    paths.state_dir.mkdir(parents=True, exist_ok=True)
    asyncio.run(learn())
    reasons = {r["code"]: r["text"] for r in call("plan", *engine).document["plan"]["reasons"]}
    assert reasons["speed_measured"].startswith("50.0 tokens a second")
    elsewhere = call("plan", *engine, "--profile", "dankserver").document["plan"]
    assert "speed_measured" not in {r["code"] for r in elsewhere["reasons"]}
    paths.measurements.write_bytes(b"no database" * 99)
    said = call("plan", *engine)
    assert said.code == 0
    assert "without what this host has measured" in said.err

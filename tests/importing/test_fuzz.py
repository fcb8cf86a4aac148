"""Whatever text comes, the answer is items or a named error: nothing else is raised, nothing is run."""

from __future__ import annotations

import tomllib
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.catalogue import shipped
from orchestrator.importing import Here, ImportUnreadable, Kind, read
from orchestrator.profiles import load as profile

HERE = Here(shipped(), profile("dankserver"))
RECIPES = [r["text"] for r in tomllib.loads((Path(__file__).parent / "recipes.toml").read_text())["recipe"]]
VOCABULARY = """
    vllm serve llama-server python -m sglang.launch_server docker run podman bash -c --speculative-config {} ' " `
    {"method":"dflash"} $( ) ${A:- } $A A=b export << <x> > | && --spec-type draft-dflash ngram-mod,draft-mtp -1 -- =
    -np 0 16k -v a:b:c --gpus all services: [Container] Image=vllm FROM DRAFT { [ ] &a *a --served-model-name /x.gguf
    a/b:Q4_K_M --env HF_TOKEN=x
"""
JOINTS = ("\\\n", "\n", "\t", "\n  a:", " image: vllm", "\nFROM x", "\nDRAFT y")
WORDS = st.sampled_from([*VOCABULARY.split(), *JOINTS])
TEXTS = st.one_of(
    st.text(max_size=400),
    st.lists(WORDS, max_size=40).map(" ".join),
    st.lists(WORDS, max_size=30).map("".join),
    st.tuples(st.sampled_from(RECIPES), st.integers(0, 400), st.text(max_size=6)).map(
        lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :]
    ),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS, st.sampled_from(Kind))
def test_any_text(text: str, kind: Kind) -> None:
    try:
        items = read(text, HERE, kind).items
    except ImportUnreadable as error:
        told = error.detail
    else:
        told = ""
        for item in items:
            assert (item.entry is None) != (item.reason is None)
            item.to_dict()
    assert not told or len(told) > 10

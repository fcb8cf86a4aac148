"""The scriptable engine is one that Outrider takes for an engine, and it changes its mind when its script does."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.fakes.engine import ALPHABET
from tests.models import generate as g
from tests.stack_fixture import MakeStack


def test_it_serves_and_does_as_it_is_told(make_stack: MakeStack, fake_engine_image: str, test_models: Path) -> None:
    stack = make_stack()
    script = stack.define_fake("liar", fake_engine_image, test_models / g.TARGET)
    with stack:
        stack.start("liar")
        assert stack.text("liar", 10) == ALPHABET[:10]
        with httpx.stream("POST", f"{stack.base_url}/chat/completions", json=_stream(5), timeout=10) as answer:
            assert "".join(answer.iter_text()).endswith("data: [DONE]\n\n")
        script.write(garbage=True)
        assert stack.text("liar", 10) == "#" * 10
        script.write(status=500)
        assert stack.chat("liar").status_code == 500


def _stream(tokens: int) -> dict[str, object]:
    return {
        "model": "liar",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": tokens,
        "stream": True,
    }

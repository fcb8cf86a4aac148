"""Three models of one size, of which two fit: what the tests with three real engines share."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.models import generate as g
from tests.stack.stack import LIMIT, Stack

MODELS = ("one", "two", "three")
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
EACH = 430_896_062
"""Bytes that one of them is expected to take; the test asks again."""
BUDGET = int(2.5 * EACH)
"""Two of them fit, three do not."""


def defined(stack: Stack, models: Path, **more: Any) -> None:
    for name in MODELS:
        stack.define(name, models / g.TARGET, method="none", **more.get(name, {}))


def on_demand(stack: Stack, *names: str) -> None:
    for name in names:
        answer = stack.want(name, "on_demand")
        assert answer.status_code == 200, answer.text
        assert answer.json()["state"] == "idle"


def loaded(stack: Stack) -> set[str]:
    return {d["deployment"] for d in stack.get("/api/v1/deployments") if d["engines"]}


def events(stack: Stack, code: str) -> list[Any]:
    return [e for e in stack.events() if e["code"] == code]


@contextlib.contextmanager
def streaming(stack: Stack, model: str, tokens: int, by: httpx.Client | None = None) -> Iterator[Iterator[str]]:
    """A stream that has begun: its lines. `by` is a client of several; a client of its own takes a while to make."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
    }
    url = f"{stack.base_url}/chat/completions"
    own = httpx.Client(timeout=LIMIT) if by is None else contextlib.nullcontext(by)
    with own as client, client.stream("POST", url, json=body) as answer:
        assert answer.status_code == 200
        yield answer.iter_lines()


def told(lines: Iterator[str]) -> tuple[str, bool]:
    """The text of a stream, and whether it ended as a whole one does."""
    text, done = "", False
    for line in lines:
        if line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
            text += choices[0].get("delta", {}).get("content") or ""
    return text, done

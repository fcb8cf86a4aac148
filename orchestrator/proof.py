"""Proving an engine: `/health` is a hint, a real completion is proof.

Ready means that one chat came back right and, when the plan says that tokens are drafted,
that they were: an engine whose drafter does not match stays "healthy" and does not draft,
one with a wrong kind of drafter answers every chat with an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.engine_client import EngineClient
from orchestrator.errors import EngineFailed
from orchestrator.plan import Method, Plan
from orchestrator.runtimes.base import EngineCounters, RuntimeAdapter
from orchestrator.timing import Timing

SHORT = "Say hello."
REPEATING = "Repeat this line ten times: one two three four five six seven eight nine ten"
HTTP_OK = 200
PROMPTS = ((SHORT, 48), (REPEATING, 128), (REPEATING, 256))
"""(prompt, max_tokens): tried in order until something was drafted. Drafting needs room: below three
tokens nothing is drafted, and n-gram methods need text that repeats."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was seen: tokens drafted and accepted in the proving chats, and whether the engine says it drafts."""

    text: str
    drafted: int
    accepted: int
    says_speculating: bool | None


async def prove(client: EngineClient, adapter: RuntimeAdapter, plan: Plan, *, timing: Timing) -> Proof:
    """One real chat, then, for a plan that speculates, proof that tokens are drafted.

    Raises `EngineFailed`: `chat_failed`, `chat_empty`, `speculation_off` (the engine says it has no drafter at
    work) or `speculation_not_drafting` (it says it has, and drafts nothing).
    """
    before = await counters(client, adapter, timing)
    text = await _chat(client, plan.model, *PROMPTS[0], timing)
    if plan.method is Method.NONE:
        return Proof(text, 0, 0, None)
    says = await says_speculating(client, adapter, timing)
    if says is False:
        raise EngineFailed(
            "speculation_off",
            f"the engine runs, but without {plan.method}: it did not take the drafter",
            retryable=False,
            hint="the drafter does not match this model (vocabulary, width or kind); `outrider logs MODEL` has the"
            ' engine\'s own words. Use another drafter, or set speculation.method = "none"',
            evidence={"method": plan.method.value, "drafter": plan.drafter},
        )
    for prompt, tokens in PROMPTS[1:]:
        after = await counters(client, adapter, timing)
        if _drafted(before, after) > 0:
            break
        await _chat(client, plan.model, prompt, tokens, timing)
    after = await counters(client, adapter, timing)
    drafted, accepted = _drafted(before, after), _accepted(before, after)
    if drafted == 0 and plan.method is not Method.NGRAM:
        raise EngineFailed(
            "speculation_not_drafting",
            f"the engine says it speculates with {plan.method}, and drafted nothing in {len(PROMPTS)} chats",
            retryable=False,
            hint="`outrider logs MODEL` has the engine's own words; use another drafter or another method",
            evidence={"method": plan.method.value, "drafter": plan.drafter},
        )
    return Proof(text, drafted, accepted, says)


async def counters(client: EngineClient, adapter: RuntimeAdapter, timing: Timing) -> EngineCounters | None:
    """The engine's counters; None when it has none."""
    answer = await client.get(adapter.metrics_path, timeout=timing.engine_call)
    if answer.status != HTTP_OK:
        return None
    return await answer.read(lambda body: adapter.parse_metrics(body.decode("utf-8", "replace")))


async def says_speculating(client: EngineClient, adapter: RuntimeAdapter, timing: Timing) -> bool | None:
    """Whether the engine says that drafting is on; None when it cannot be asked."""
    if adapter.evidence_path is None:
        return None
    answer = await client.get(adapter.evidence_path, timeout=timing.engine_call)
    return adapter.speculates(answer.json()) if answer.status == HTTP_OK else None


async def _chat(client: EngineClient, model: str, prompt: str, tokens: int, timing: Timing) -> str:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": False,
    }
    answer = await client.post("/v1/chat/completions", body, timeout=timing.proof_call)
    if answer.status != HTTP_OK:
        raise EngineFailed(
            "chat_failed",
            f"the engine is healthy and answers a chat with {answer.status}: {answer.snippet}",
            retryable=False,
            hint="a drafter of another kind than the method says does this; `outrider logs MODEL` has more",
            evidence={"status": answer.status},
        )
    text = chat_text(answer.json())
    if not text:
        raise EngineFailed(
            "chat_empty",
            f"the engine answered a chat without text: {answer.snippet}",
            hint="the chat template may be missing or wrong; `outrider logs MODEL` has more",
        )
    return text


def chat_text(answer: object) -> str | None:
    """The text of a chat completion (its reasoning counts); None when the answer has another shape."""
    match answer:
        case {"choices": [{"message": {**message}}, *_]}:
            parts = [message.get("content"), message.get("reasoning_content"), message.get("reasoning")]
            return "".join(p for p in parts if isinstance(p, str)) or None
        case _:
            return None


def _drafted(before: EngineCounters | None, after: EngineCounters | None) -> int:
    """Tokens drafted; for an engine that counts its drafts alone (SGLang), those."""
    if after is not None and after.drafted is None:
        return _growth(None if before is None else before.drafts, after.drafts)
    return _growth(None if before is None else before.drafted, None if after is None else after.drafted)


def _accepted(before: EngineCounters | None, after: EngineCounters | None) -> int:
    return _growth(None if before is None else before.accepted, None if after is None else after.accepted)


def _growth(before: int | None, after: int | None) -> int:
    return max(0, (after or 0) - (before or 0))

"""Asking vLLM for its own next tokens. Pure.

Sources: the wheels 0.20.0 and 0.33.0, entrypoints/openai/completion/protocol.py (`return_token_ids`,
`return_tokens_as_token_ids`, `cache_salt`), completion/serving.py `_create_completion_logprobs`,
entrypoints/serve/tokenize/protocol.py, config/scheduler.py for the size of a step.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.runtimes.scoring import LIKELIEST, Ask, Continued, ids, number, size_after

STEP = 2048
"""Tokens of one step where the plan says nothing: DEFAULT_MAX_NUM_BATCHED_TOKENS; large GPUs get more."""
_MARK = "token_id:"
LONGEST = 9
"""Digits of a token's id."""


@dataclass(frozen=True, slots=True)
class VllmScoring:
    """See `orchestrator.runtimes.scoring.Scoring`."""

    def tokenize(self, model: str, text: str) -> Ask:
        return Ask("/tokenize", {"model": model, "prompt": text, "add_special_tokens": True})

    def tokens(self, answer: object) -> tuple[int, ...] | None:
        return ids(answer.get("tokens")) if isinstance(answer, dict) else None

    def go_on(self, model: str, prompt: Sequence[int], count: int, *, fresh: bool = False) -> Ask:
        body = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": count,
            "temperature": 0,
            "logprobs": LIKELIEST if count == 1 else None,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if fresh:
            body["cache_salt"] = secrets.token_hex(8)
        return Ask("/v1/completions", body)

    def continued(self, answer: object) -> Continued | None:
        match answer:
            case {"choices": [{**choice}, *_]}:
                tokens = ids(choice.get("token_ids"))
            case _:
                return None
        if tokens is None:
            return None
        first: dict[int, float] = {}
        logprobs = choice.get("logprobs")
        tops = logprobs.get("top_logprobs") if isinstance(logprobs, dict) else None
        rivals = tops[0] if isinstance(tops, list) and tops and isinstance(tops[0], dict) else {}
        for name, value in rivals.items():
            found, token = number(value), str(name).removeprefix(_MARK)
            if found is not None and token.isascii() and token.isdigit() and len(token) <= LONGEST:
                first[int(token)] = found
        return Continued(tokens, first, choice.get("finish_reason") == "stop")

    def target(self, argv: Sequence[str]) -> str | None:
        """The positional argument, which our command lines have right before the served name."""
        at = argv.index("--served-model-name") if "--served-model-name" in argv else 0
        return argv[at - 1] if at > 0 else None

    def chunks(self, argv: Sequence[str]) -> tuple[int, ...]:
        return (size_after(argv, "--max-num-batched-tokens") or STEP,)


SCORING = VllmScoring()

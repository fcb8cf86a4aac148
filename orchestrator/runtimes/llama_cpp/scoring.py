"""Asking llama-server for its own next tokens. Pure.

Sources: tools/server/server-context.cpp and server-task.cpp of b11434, and the xllamacpp wheel b11549 asked for real:
`/completion` takes token ids; `n_probs` gives the target's log-probabilities before sampling; of a token that was
drafted it says 0.0 and no rivals; with two tokens to go or fewer nothing is drafted, and no counter moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.runtimes.scoring import LIKELIEST, Ask, Continued, after, ids, number, size_after

UBATCH = 512
BATCH = 2048
"""llama.cpp's own -ub and -b."""


@dataclass(frozen=True, slots=True)
class LlamaScoring:
    """See `orchestrator.runtimes.scoring.Scoring`."""

    def tokenize(self, model: str, text: str) -> Ask:
        return Ask("/tokenize", {"content": text, "add_special": True, "parse_special": False})

    def tokens(self, answer: object) -> tuple[int, ...] | None:
        return ids(answer.get("tokens")) if isinstance(answer, dict) else None

    def go_on(self, model: str, prompt: Sequence[int], count: int, *, fresh: bool = False) -> Ask:
        body = {
            "prompt": list(prompt),
            "n_predict": count,
            "temperature": 0,
            "n_probs": LIKELIEST if count == 1 else 1,
            "cache_prompt": not fresh,
            "return_tokens": True,
        }
        return Ask("/completion", body)

    def continued(self, answer: object) -> Continued | None:
        if not isinstance(answer, dict):
            return None
        said = answer.get("completion_probabilities")
        places = [p for p in said if isinstance(p, dict)] if isinstance(said, list) else []
        tokens = ids(answer.get("tokens")) or ids([p.get("id") for p in places])
        if tokens is None:
            return None
        first: dict[int, float] = {}
        rivals = places[0].get("top_logprobs") if places else None
        for rival in [*(rivals if isinstance(rivals, list) else []), *places[:1]]:
            found = number(rival.get("logprob")) if isinstance(rival, dict) else None
            if found is not None and isinstance(rival.get("id"), int):
                first[rival["id"]] = found
        return Continued(tokens, first, answer.get("stop_type") in ("eos", "word"))

    def target(self, argv: Sequence[str]) -> str | None:
        return after(argv, "-m", "--model")

    def chunks(self, argv: Sequence[str]) -> tuple[int, ...]:
        batch = size_after(argv, "-b", "--batch-size") or BATCH
        return tuple(sorted({min(size_after(argv, "-ub", "--ubatch-size") or UBATCH, batch), batch}))


SCORING = LlamaScoring()

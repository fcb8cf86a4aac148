"""Asking SGLang for its own next tokens. Pure. Read off its source; never run here, for it needs a GPU.

Sources: the wheels 0.5.12, 0.5.18 and 0.5.23: srt/entrypoints/http_server.py (`/generate`, `/tokenize`),
srt/managers/io_struct.py `GenerateReqInput`, srt/managers/tokenizer_manager.py `detokenize_logprob_tokens`
(log-probability, id, text), srt/server_args.py for the size of a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.runtimes.scoring import LIKELIEST, Ask, Continued, after, ids, number, size_after

CHUNK = 2048
"""What --chunked-prefill-size is for a GPU of 24 GB where the plan says nothing; larger ones get more."""


@dataclass(frozen=True, slots=True)
class SglangScoring:
    """See `orchestrator.runtimes.scoring.Scoring`."""

    def tokenize(self, model: str, text: str) -> Ask:
        return Ask("/tokenize", {"model": model, "prompt": text, "add_special_tokens": True})

    def tokens(self, answer: object) -> tuple[int, ...] | None:
        return ids(answer.get("tokens")) if isinstance(answer, dict) else None

    def go_on(self, model: str, prompt: Sequence[int], count: int, *, fresh: bool = False) -> Ask:
        """Nothing of its own says "compute anew" in all versions, so `fresh` changes nothing."""
        sampling = {"max_new_tokens": count, "temperature": 0}
        body = {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True}
        return Ask("/generate", body | {"top_logprobs_num": LIKELIEST if count == 1 else 0})

    def continued(self, answer: object) -> Continued | None:
        match answer:
            case {"meta_info": {"output_token_logprobs": list(said), **meta}}:
                triples = [place for place in said if isinstance(place, list | tuple) and len(place) > 1]
            case _:
                return None
        tokens = ids([place[1] for place in triples])
        if not tokens:
            return None
        first: dict[int, float] = {}
        tops = meta.get("output_top_logprobs")
        rivals = tops[0] if isinstance(tops, list) and tops and isinstance(tops[0], list) else []
        for place in (*rivals, triples[0]):
            if isinstance(place, list | tuple) and len(place) > 1 and isinstance(place[1], int):
                found = number(place[0])
                if found is not None:
                    first[place[1]] = found
        match meta.get("finish_reason"):
            case {"type": "stop"}:
                return Continued(tokens, first, ended=True)
            case _:
                return Continued(tokens, first)

    def target(self, argv: Sequence[str]) -> str | None:
        return after(argv, "--model-path")

    def chunks(self, argv: Sequence[str]) -> tuple[int, ...]:
        return (size_after(argv, "--chunked-prefill-size") or CHUNK,)


SCORING = SglangScoring()

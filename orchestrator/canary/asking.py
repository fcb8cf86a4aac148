"""Asking one engine what `passages` says. Decides nothing; every call has a deadline."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from orchestrator.canary.judging import Answer, leading, needed
from orchestrator.canary.passages import LEADING, PIECES, TEXTS, long_text
from orchestrator.canary.reference import Passage
from orchestrator.engine_client import EngineClient, EngineUnreachable
from orchestrator.errors import EngineFailed
from orchestrator.runtimes.scoring import Ask, Continued, Scoring

HTTP_OK = 200
SERVER_ERROR = 500
NOT_IMPLEMENTED = 501
FAILED = "canary_failed"
"""The code of an engine that does not say what its weights say."""
FLOOR = -30.0
"""Nats: what is less likely than that is as good as impossible."""
LEAST_SCORED = 8
"""Tokens that are scored however slow the engine is."""


class NotOffered(Exception):
    """This engine does not take such questions."""


class NoTime(Exception):
    """What time there was is used up."""


def failed(reason: str, text: str, **evidence: object) -> EngineFailed:
    """An engine that is healthy and says what it should not."""
    return EngineFailed(
        FAILED,
        text,
        hint="a driver, an image or a drafter that computes wrongly does this, and so do damaged weights: "
        "`outrider model verify MODEL` reads these again, `outrider why MODEL` has the numbers",
        evidence={"reason": reason, **evidence},
    )


class Asker:
    """Questions for one engine, until `end` (monotonic)."""

    def __init__(
        self,
        client: EngineClient,
        scoring: Scoring,
        model: str,
        *,
        now: Callable[[], float],
        end: float,
        call: float,
    ) -> None:
        self._client = client
        self._scoring = scoring
        self._model = model
        self._now = now
        self._end = end
        self._call = call

    @property
    def late(self) -> bool:
        """Whether the time is used up."""
        return self._now() >= self._end

    async def _post(self, ask: Ask) -> object:
        try:
            answer = await self._client.post(ask.path, ask.body, timeout=self._call)
        except EngineUnreachable as error:
            if error.busy:
                raise  # it had its time
            # servers close a connection after so many requests, perhaps while the next one is on its way
            answer = await self._client.post(ask.path, ask.body, timeout=self._call)
        if answer.status >= SERVER_ERROR and answer.status != NOT_IMPLEMENTED:
            raise failed(
                "refused", f"it answers a completion with {answer.status}: {answer.snippet}", status=answer.status
            )
        if answer.status != HTTP_OK:
            raise NotOffered(f"{ask.path} answers {answer.status}: {answer.snippet[:120]}")
        return answer.json()

    async def tokens(self, text: str) -> tuple[int, ...]:
        """The ids of a text."""
        found = self._scoring.tokens(await self._post(self._scoring.tokenize(self._model, text)))
        if not found:
            raise NotOffered("it gives no token ids")
        return found

    async def go_on(self, prompt: Sequence[int], count: int, *, fresh: bool = False) -> Continued:
        """`count` greedy tokens."""
        found = self._scoring.continued(await self._post(self._scoring.go_on(self._model, prompt, count, fresh=fresh)))
        if found is None:
            raise NotOffered("it answers a completion in a shape that is not known")
        return found

    # without drafting: one token at a time

    async def _next(self, prompt: Sequence[int]) -> Continued:
        found = await self.go_on(prompt, 1)
        if not found.first:
            raise failed("no_likelihood", "it gives no likelihood of its own tokens that is a number")
        return found

    async def passage(self, prompt: tuple[int, ...], length: int) -> Passage:
        """What it says after a prompt, one token at a time; when there is no more time, only the first few."""
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < length and not (self.late and len(tokens) >= LEADING):
            found = await self._next((*prompt, *tokens))
            if found.ended or not found.tokens:
                break
            tokens.append(found.tokens[0])
            logprobs.append(_of(found, found.tokens[0]))
        if not tokens:
            raise failed("silent", "it has nothing to say to a text that it should go on with")
        return Passage(prompt, tuple(tokens), tuple(logprobs))

    async def scored(self, passage: Passage) -> tuple[float, ...]:
        """How likely it finds each token of a passage; when there is no more time, of the first few."""
        found: list[float] = []
        for at, token in enumerate(passage.tokens):
            if self.late and len(found) >= LEAST_SCORED:
                break
            found.append(_of(await self._next((*passage.prompt, *passage.tokens[:at])), token))
        return tuple(found)

    # as anybody asks

    async def answer(self, passage: Passage, *, fresh: bool = False) -> Answer:
        """What it says, drafting as it does. Where that is not the known text, its tokens are put to it one by one."""
        said = await self.go_on(passage.prompt, len(passage.tokens), fresh=fresh)
        return await self._doubted(passage, Answer(said.tokens))

    async def _doubted(self, passage: Passage, answer: Answer) -> Answer:
        if leading(passage, answer) >= needed(passage):
            return answer
        below: list[float] = []
        for at, token in enumerate(answer.tokens[: needed(passage)]):
            found = await self._next((*passage.prompt, *answer.tokens[:at]))
            below.append(max(found.first.values()) - _of(found, token))
        return Answer(answer.tokens, tuple(below))

    async def together(self, one: Passage, other: Passage) -> tuple[Answer, Answer]:
        """Both at once. Doubts are put to it afterwards, one by one."""
        said = await asyncio.gather(*(self.go_on(p.prompt, len(p.tokens)) for p in (one, other)))
        first, second = (Answer(found.tokens) for found in said)
        return await self._doubted(one, first), await self._doubted(other, second)

    # longer than what it reads at once

    async def long_passage(self, size: int) -> Passage:
        """The long passage, read in pieces that each fit into one reading, and then one token at a time. Where the
        engine keeps nothing of past prompts this reads as it always does, and shows less. Raises `NoTime`."""
        prompt = (await self.tokens(long_text(size)))[:size]
        for piece in range(1, PIECES + 1):
            if self.late:
                raise NoTime
            await self.go_on(prompt[: max(1, len(prompt) * piece // PIECES)], 1)
        return await self.passage(prompt, LEADING)


def _of(found: Continued, token: int) -> float:
    """The log-probability of a token: where it is not among the likeliest, the most that it can be, which is no more
    than the least likely of them and no more than what all of them leave."""
    known = found.first.get(token)
    if known is not None:
        return known
    left = 1 - sum(math.exp(min(value, 0.0)) for value in found.first.values())
    return max(FLOOR, min(math.log(left) if left > 0 else FLOOR, *found.first.values()))


async def three(asker: Asker, lengths: Sequence[int]) -> dict[str, Passage]:
    """The three passages."""
    return {
        str(n): await asker.passage(await asker.tokens(text), length)
        for n, (text, length) in enumerate(zip(TEXTS, lengths, strict=True))
    }

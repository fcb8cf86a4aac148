"""What llama-server's `/slots` says of its work. Pure.

Seen with b11549 and a prompt of 3,519 tokens: it answers within a millisecond while a batch is computed, and
`n_prompt_tokens_processed` stands still for as long as that takes (a batch is 2,048 tokens). So it answers when it is
well, and standing still says little before the prompt can have been read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from orchestrator.runtimes.base import Progress


def progress(body: bytes) -> Progress:
    """Slots of older builds say less; what they do not say is no sign of anything."""
    try:
        slots = json.loads(body)
    except (ValueError, RecursionError):
        return Progress(None)
    if not isinstance(slots, list) or not all(isinstance(slot, dict) for slot in slots):
        return Progress(None)
    busy = [slot for slot in slots if slot.get("is_processing") is True]
    marks: list[int] = []
    told = True
    for slot in busy:
        decoded = _decoded(slot)
        told = told and decoded is not None
        marks += [_int(slot.get("id_task")), _int(slot.get("n_prompt_tokens_processed")), decoded or 0]
    free = len(busy) < len(slots) if slots else None
    return Progress(tuple(marks) if told else None, running=len(busy), free=free)


def _decoded(slot: Mapping[str, object]) -> int | None:
    """Tokens that it made: in `next_token`, which is a list of one in newer builds, else beside it."""
    after = slot.get("next_token")
    if isinstance(after, list):
        after = after[0] if after else None
    value = after.get("n_decoded") if isinstance(after, Mapping) else slot.get("n_decoded")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _int(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1

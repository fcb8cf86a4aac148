"""What llama.cpp says of sizes and speed. Pure.

Lines as xllamacpp 2026.10.11549 (llama.cpp b11549) prints them with `-lv 4`; builds before mid-2026 print
them always. Metrics of its `/metrics` (tools/server/server-context.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MIB = 1 << 20
_BUFFER = re.compile(r"\s(\S+)\s+(model|KV|RS|compute|output) buffer size =\s+(\d{1,9}(?:\.\d{1,9})?) MiB")
_CONTEXT = re.compile(r"constructing llama_context")
_KINDS = {"model": "weights", "KV": "kv", "RS": "state", "compute": "compute", "output": "compute"}
_HOST = re.compile(r"^(CPU|CPU_Mapped|CPU_REPACK|CPU_AARCH64|\w+_Host|Host)$")


def sizes(lines: Iterable[str]) -> dict[str, int]:
    """Bytes by kind over all devices; `host_` before a kind is what lies in system memory beside devices of their
    own. A drafter's are in them.

    A graph that is reserved again replaces what the same context reserved before.
    """
    total: dict[str, float] = {}
    compute: dict[tuple[int, str, str], float] = {}
    context = 0
    for line in lines:
        if _CONTEXT.search(line):
            context += 1
        found = _BUFFER.search(line)
        if found is None:
            continue
        where, what, size = found[1], found[2], float(found[3])
        kind = ("host_" if _HOST.match(where) else "") + _KINDS[what]
        if what == "compute":
            compute[context, where, kind] = size
        else:
            total[kind] = total.get(kind, 0.0) + size
    for (_, _, kind), size in compute.items():
        total[kind] = total.get(kind, 0.0) + size
    if all(kind.startswith("host_") for kind in total):
        total = {kind.removeprefix("host_"): size for kind, size in total.items()}
    return {kind: round(size * MIB) for kind, size in total.items()}


TOKENS, SECONDS = "llamacpp:tokens_predicted_total", "llamacpp:tokens_predicted_seconds_total"
DECODES, BUSY = "llamacpp:n_decode_total", "llamacpp:n_busy_slots_per_decode"


def decoding(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[int, float] | None:
    """Tokens and seconds between two readings, if never more than one slot was busy; else None.

    A request's tokens are counted at its end. `n_busy_slots_per_decode` is an average since the start: with the
    number of decodes it gives all busy slots, and they must be as many as the decodes.
    """
    names = (TOKENS, SECONDS, DECODES, BUSY)
    if any(name not in one for one in (before, after) for name in names):
        return None
    decodes = after[DECODES] - before[DECODES]
    busy = after[DECODES] * after[BUSY] - before[DECODES] * before[BUSY]
    tokens, seconds = after[TOKENS] - before[TOKENS], after[SECONDS] - before[SECONDS]
    printed_to = 1e-5 * after[DECODES] * after[BUSY]  # six digits of the average
    if decodes <= 0 or busy > decodes + printed_to + 0.5 or tokens <= 0 or seconds <= 0:
        return None
    return int(tokens), seconds

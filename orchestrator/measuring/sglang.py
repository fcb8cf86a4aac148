"""What SGLang says of sizes and speed. Pure.

Lines of 0.5.18 (srt/model_executor/model_runner.py and model_runner_components/cuda_graph_setup.py,
srt/mem_cache/memory_pool.py); its "GB" are 2**30.
Metrics: srt/observability/metrics_collector.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

GIB = 1 << 30
_WEIGHTS = re.compile(r"Load weight end\..*mem usage=(\d{1,9}(?:\.\d{1,9})?) GB")
_POOL = r"Cache (?:is allocated|VA upper bound)\.\s*(?:dtype: \S+\s+)?#tokens: (\d{1,16}), "
_KV = re.compile(_POOL + r"K size: (\d{1,9}(?:\.\d{1,9})?) GB, V size: (\d{1,9}(?:\.\d{1,9})?) GB")
_LATENT = re.compile(_POOL + r"KV size: (\d{1,9}(?:\.\d{1,9})?) GB")
_STATE = re.compile(
    r"Mamba Cache is allocated\..*?conv_state size: (\d{1,9}(?:\.\d{1,9})?) ?GB,"
    r" ssm_state size: (\d{1,9}(?:\.\d{1,9})?) ?GB"
)
_GRAPHS = re.compile(r"Capture .{0,40}graph end\..*mem usage=(\d{1,9}(?:\.\d{1,9})?) GB")


def sizes(lines: Iterable[str]) -> dict[str, int]:
    """Bytes by kind of one device and the tokens of its pool. A drafter's are added to its target's."""
    total: dict[str, float] = {}
    tokens = 0
    for line in lines:
        if found := _WEIGHTS.search(line):
            _add(total, "weights", found[1])
        elif found := _KV.search(line):
            tokens = max(tokens, int(found[1]))
            _add(total, "kv", found[2], found[3])
        elif found := _LATENT.search(line):
            tokens = max(tokens, int(found[1]))
            _add(total, "kv", found[2])
        elif found := _STATE.search(line):
            _add(total, "state", found[1], found[2])
        elif found := _GRAPHS.search(line):
            _add(total, "graphs", found[1])
    sizes = {kind: round(size * GIB) for kind, size in total.items()}
    return {**sizes, "kv_tokens": tokens} if tokens else sizes


def _add(total: dict[str, float], kind: str, *sizes: str) -> None:
    total[kind] = total.get(kind, 0.0) + sum(float(size) for size in sizes)


TOKENS = "sglang:generation_tokens_total"
REQUESTS, SECONDS = "sglang:e2e_request_latency_seconds_count", "sglang:e2e_request_latency_seconds_sum"
FIRST = "sglang:time_to_first_token_seconds_sum"


def decoding(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[int, float] | None:
    """As `vllm.decoding`; the time from a request's first token to its end is what counts."""
    names = (TOKENS, REQUESTS, SECONDS, FIRST)
    if any(name not in one for one in (before, after) for name in names):
        return None
    requests = after[REQUESTS] - before[REQUESTS]
    seconds = (after[SECONDS] - before[SECONDS]) - (after[FIRST] - before[FIRST])
    tokens = after[TOKENS] - before[TOKENS] - 1
    return (int(tokens), seconds) if requests == 1 and tokens > 0 and seconds > 0 else None

"""What vLLM says of sizes and speed. Pure.

Lines of 0.33.0 (v1/worker/gpu_worker.py, gpu_model_runner.py, v1/core/kv_cache_utils.py), and those of earlier
versions as their logs show them. "GiB", and "GB" in old versions, are 2**30. Metrics: v1/metrics/loggers.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

GIB = 1 << 30
_SIZES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("weights", re.compile(r"[Mm]odel loading took (\d{1,9}(?:\.\d{1,9})?) Gi?B")),
    ("kv", re.compile(r"Available KV cache memory: (\d{1,9}(?:\.\d{1,9})?) Gi?B")),
    ("kv", re.compile(r"Explicitly set \((\d{1,9}(?:\.\d{1,9})?)/[\d.]+\) Gi?B for KV cache")),  # on a CPU
    ("graphs", re.compile(r"Graph capturing finished in \d+ secs, took (\d{1,9}(?:\.\d{1,9})?) Gi?B")),
    ("graphs", re.compile(r"CUDA graph pool memory: (\d{1,9}(?:\.\d{1,9})?) Gi?B \(actual\)")),
    ("consumed", re.compile(r"Actual usage is (\d{1,9}(?:\.\d{1,9})?) Gi?B for consumed memory")),
    ("weights", re.compile(r"Actual usage is (\d{1,9}(?:\.\d{1,9})?) Gi?B for weight")),
    ("compute", re.compile(r"(\d{1,9}(?:\.\d{1,9})?) Gi?B for peak activation")),
    ("graphs", re.compile(r"(\d{1,9}(?:\.\d{1,9})?) Gi?B for CUDAGraph memory")),
)
_COUNTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("kv_tokens", re.compile(r"KV cache size: (\d[\d,]{0,15}) tokens")),
    ("block_tokens", re.compile(r"Setting attention block size to (\d{1,16}) tokens")),
    ("kv_recommended", re.compile(r"config with `--kv-cache-memory=(\d{1,16})`")),
)


def sizes(lines: Iterable[str]) -> dict[str, int]:
    """Bytes by kind of one device (`kv_recommended` is what it says `--kv-cache-memory` could be), and tokens.

    What several ranks print is the largest; `consumed` are weights and everything that is not torch's.
    """
    found: dict[str, int] = {}
    for line in lines:
        for kind, pattern in _SIZES:
            match = pattern.search(line)
            if match is not None:
                found[kind] = max(found.get(kind, 0), round(float(match[1]) * GIB))
        for kind, pattern in _COUNTS:
            match = pattern.search(line)
            if match is not None:
                found[kind] = max(found.get(kind, 0), int(match[1].replace(",", "")))
    return found


TOKENS = "vllm:generation_tokens_total"
REQUESTS, SECONDS = "vllm:request_decode_time_seconds_count", "vllm:request_decode_time_seconds_sum"


def decoding(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[int, float] | None:
    """Tokens and seconds between two readings at which nothing ran, if exactly one request was decoded; else None.

    The first token is the prefill's.
    """
    names = (TOKENS, REQUESTS, SECONDS)
    if any(name not in one for one in (before, after) for name in names):
        return None
    requests = after[REQUESTS] - before[REQUESTS]
    tokens, seconds = after[TOKENS] - before[TOKENS] - 1, after[SECONDS] - before[SECONDS]
    return (int(tokens), seconds) if requests == 1 and tokens > 0 and seconds > 0 else None

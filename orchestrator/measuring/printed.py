"""The sizes that an engine prints while it starts, in our words. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from orchestrator.measuring import llama_cpp, sglang, vllm
from orchestrator.models import Runtime

LINES = 4_000
"""Lines of a log's beginning that are looked at."""
WIDEST = 1_024
"""Characters of a line that are looked at: what is known says its sizes in the first hundred."""
_READERS: Mapping[str, Callable[[Iterable[str]], dict[str, int]]] = {
    Runtime.LLAMA_CPP.value: llama_cpp.sizes,
    Runtime.VLLM.value: vllm.sizes,
    Runtime.SGLANG.value: sglang.sizes,
}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def sizes(runtime: str, lines: Iterable[str]) -> dict[str, int]:
    """Bytes by kind (`weights`, `kv`, `state`, `compute`, `graphs`, ...) and counts (`kv_tokens`, `block_tokens`);
    what was not printed is absent."""
    reader = _READERS.get(runtime)
    return {} if reader is None else reader(_COLOURS.sub("", line[:WIDEST]) for line in lines)

"""How soon an engine's first tokens come, for the daemon to compare with what is usual.

Only of streams that were alone at their engine from their sending to their first data: what waits for others says how
much is asked of an engine, and not how fast it is.
"""

from __future__ import annotations

from collections import deque

KEPT = 64
"""Streams: the latest."""
LONG = 4096
"""Bytes of a request up to which its length does not count; beyond, the time is that of so many of its bytes."""


class Firsts:
    """Of one engine."""

    __slots__ = ("_kept", "streams")

    def __init__(self) -> None:
        self._kept: deque[tuple[float, int]] = deque(maxlen=KEPT)
        self.streams = 0

    def note(self, seconds: float, prompt_bytes: int) -> None:
        """The first data of one."""
        self.streams += 1
        self._kept.append((seconds, prompt_bytes))

    def document(self) -> dict[str, object] | None:
        """How many there were, of how many `p95_s` is (seconds); None before the first."""
        if not self._kept:
            return None
        times = sorted(seconds / max(1.0, size / LONG) for seconds, size in self._kept)
        return {
            "streams": self.streams,
            "kept": len(times),
            "p95_s": round(times[-(-len(times) * 95 // 100) - 1], 4),
        }

"""How far a pull is, in words and numbers, also while nothing comes. Single-threaded: the event loop's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WINDOW = 10.0
"""Seconds over which speed is taken."""
SILENT = 1.0
"""Seconds without a byte, after which that is said: the line changes at least every two seconds."""
MB = 1_000_000


class Meter:
    """Bytes done of a total, their speed, and what is happening."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.total = 0
        self._before = 0
        self._current = 0
        self._came: deque[tuple[float, int]] = deque()
        self._heard = now()
        self._what = "asking the hub"
        self._instead: str | None = None
        self.downloading = False

    @property
    def done(self) -> int:
        """Bytes that are here."""
        return self._before + self._current

    def begin(self, what: str) -> None:
        """The next file, or step."""
        self._before += self._current
        self._current = 0
        self._what, self._instead, self.downloading = what, None, False
        self._heard = self._now()

    def at(self, count: int) -> None:
        """So many bytes of the present file are here."""
        self._current = count

    def add(self, count: int) -> None:
        """So many more."""
        self._current += count
        if not self.downloading:
            self._heard = self._now()

    def came(self, count: int) -> None:
        """Bytes arrived over the network."""
        now = self._now()
        self._came.append((now, count))
        while self._came and self._came[0][0] < now - WINDOW:
            self._came.popleft()
        self._heard, self._instead, self.downloading = now, None, True

    def waiting(self, text: str) -> None:
        """Nothing is expected for now, for this reason."""
        if text != self._instead:
            self._instead, self._heard, self.downloading = text, self._now(), False

    def asking(self) -> None:
        """Bytes are expected from now on."""
        self._instead, self.downloading = None, True
        self._heard = self._now()

    @property
    def speed(self) -> float | None:
        """Bytes a second over the last seconds; None before the first came."""
        now = self._now()
        recent = [(at, count) for at, count in self._came if at >= now - WINDOW]
        if not recent:
            return None
        return sum(count for _, count in recent) / max(now - recent[0][0], 1.0)

    def line(self) -> str:
        """One line for people: what, how many of how many bytes, how fast, how much longer."""
        parts = [self._what]
        if self.total:
            parts.append(f"{self.done / MB:,.1f} of {self.total / MB:,.1f} MB")
        silent = self._now() - self._heard
        if self._instead is not None:
            parts.append(self._instead)
        if silent >= SILENT:
            parts.append(f"nothing came for {silent:.0f} s" if self.downloading else f"for {silent:.0f} s now")
        elif self.downloading and self.speed:
            parts.append(f"{self.speed / MB:,.1f} MB/s")
            parts.append(f"{_duration((self.total - self.done) / self.speed)} left")
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def amount(count: int) -> str:
    """Bytes for people, as hubs count them."""
    if count < MB // 10:
        return f"{count} B"
    return f"{count / MB:.1f} MB" if count < 1000 * MB else f"{count / MB / 1000:.2f} GB"

"""Whether Outrider may act by itself: a person can tell it to keep its hands off one deployment, or off all.

Paused, nothing stops, starts, restarts, demotes, evicts or switches by itself; what a person asks for is done as
ever, looking goes on, and what would have been done is said. Whoever acts without having been asked asks
here first.
"""

from __future__ import annotations

EVERYTHING = "*"
"""Stands for all deployments of the host."""


class Automation:
    """What is paused, by deployment."""

    def __init__(self) -> None:
        self._paused: dict[str, str] = {}

    def pause(self, name: str, author: str) -> None:
        """Keep hands off this deployment, or off all (`EVERYTHING`)."""
        self._paused[name] = author

    def resume(self, name: str) -> None:
        """Act by itself again. Resuming everything forgets single ones too."""
        if name == EVERYTHING:
            self._paused.clear()
        else:
            self._paused.pop(name, None)

    def paused(self, name: str) -> str | None:
        """Who paused this deployment, or all of them; None when Outrider may act."""
        return self._paused.get(name) or self._paused.get(EVERYTHING)

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
        self._withheld: set[tuple[str, str]] = set()

    def pause(self, name: str, author: str) -> None:
        """Keep hands off this deployment, or off all (`EVERYTHING`)."""
        self._paused[name] = author

    def resume(self, name: str) -> None:
        """Act by itself again. Resuming everything forgets single ones too."""
        if name == EVERYTHING:
            self._paused.clear()
        else:
            self._paused.pop(name, None)
        self._withheld = {key for key in self._withheld if self.paused(key[0]) is not None}

    def paused(self, name: str) -> str | None:
        """Who paused this deployment, or all of them; None when Outrider may act."""
        return self._paused.get(name) or self._paused.get(EVERYTHING)

    def withhold(self, name: str, action: str) -> str | None:
        """Like `paused`, but only the first time that this action is withheld while the pause lasts: for whoever says
        in the journal what would have been done, and asks again at every look."""
        author = self.paused(name)
        if author is None or (name, action) in self._withheld:
            return None
        self._withheld.add((name, action))
        return author

"""What `outrider why` says first: how a deployment is, and how its last trouble ended."""

from __future__ import annotations

from orchestrator.telling.story import Entry, tell
from orchestrator.views import DeploymentView, Desired, Event, State

READY = DeploymentView("m", Desired.RUNNING, "t", State.READY, None, "h", None, (), 0, 0, None, False, None, None, 0)


def entries(*told: tuple[float, str, str]) -> list[Entry]:
    """(seconds ago, kind, code), oldest first."""
    return [
        Entry(Event(i, 1e9 - ago, "h", "b", kind, code, f"{code} came", "m"), ago)
        for i, (ago, kind, code) in enumerate(told)
    ]


def test_trouble_is_over_when_the_next_engine_serves_whatever_is_told_once() -> None:
    """Later starts are told together with the one that ended the trouble; they do not make it longer."""
    story = tell(
        READY,
        entries(
            (9000, "lifecycle", "failed"),
            (8990, "lifecycle", "starting"),
            (8940, "lifecycle", "ready"),
            (100, "lifecycle", "starting"),
            (50, "lifecycle", "ready"),
        ),
    )
    assert [(b.code, b.times) for b in story.beats] == [("failed", 1), ("starting", 2), ("ready", 2)]
    assert "over after 60 s:" in story.now

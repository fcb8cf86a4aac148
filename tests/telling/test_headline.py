"""What `outrider why` says first: how a deployment is, and how its last trouble ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.telling.story import Entry, tell
from orchestrator.views import DeploymentView, Desired, Event, State, Why

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


def test_a_model_that_no_request_starts_is_not_said_to_start_with_the_next_one() -> None:
    why = Why("paused", "m is paused by cli:root: no request starts it", "`outrider resume m`")
    asleep = replace(READY, state=State.IDLE, desired=Desired.ON_DEMAND)
    assert tell(asleep, []).now == "m sleeps: the next request starts it."
    paused = tell(replace(asleep, reason=why, paused_by="cli:root"), [])
    assert paused.now == "m sleeps: m is paused by cli:root: no request starts it."
    assert paused.advice == ("`outrider resume m`",), "said once"


@pytest.mark.parametrize(
    ("hint", "more"),
    [
        ("`outrider plan m` shows everything that was tried", ["`outrider start m` tries again now"]),
        ("free the disk", ["`outrider start m` tries again now", "`outrider plan m` shows what would be launched"]),
    ],
)
def test_a_command_is_advised_once(hint: str, more: list[str]) -> None:
    failed = replace(READY, state=State.FAILED, reason=Why("refused", "nothing can be launched", hint))
    first, *rest = tell(failed, []).advice
    assert first == hint
    assert [text.startswith(begins) for text, begins in zip(rest, more, strict=True)] == [True] * len(more)

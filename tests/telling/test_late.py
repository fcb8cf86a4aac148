"""What is told of a start that takes longer than usual: that it does, and how long it may take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.deployment import Deployment
from orchestrator.gateway_link import GatewayLink
from orchestrator.telling.story import tell
from orchestrator.timing import Timing
from orchestrator.views import DeploymentView, Desired, State
from tests.daemon.world import an_entry


def view(elapsed: float, state: State = State.LOADING, detail: str = "loading the model") -> DeploymentView:
    """A start whose like took 40 s, and that is given 120 s."""
    d = Deployment(an_entry(), "h")
    d.desired, d.phase, d.busy = Desired.RUNNING, (state, detail, 0.0), True
    d.last_start_s, d.granted_s = 40.0, 120.0
    shown = d.view(GatewayLink(Path("none"), SystemClock(), Timing()), elapsed)
    return replace(shown, state=state)


@pytest.mark.parametrize(
    ("elapsed", "now", "comes"),
    [
        (
            10.0,
            "m is coming up: its engine is loading the model.",
            "It serves when its engine has loaded and answered correctly, in about 30 s.",
        ),
        (
            100.0,
            "m is coming up: its engine is loading the model, for longer than usual.",
            "It takes longer than usual: 100 s instead of 40 s. "
            "It has 2 min 0 s, and more only for as long as it is seen to get on; then it counts as failed.",
        ),
    ],
    ids=["as usual", "late"],
)
def test_a_start(elapsed: float, now: str, comes: str) -> None:
    story = tell(view(elapsed), ())
    assert (story.now, *story.next) == (now, comes)


def test_what_is_late_has_no_share_that_is_done() -> None:
    shares = {elapsed: (p.fraction, p.eta_s) for elapsed in (10, 39, 40, 4000) if (p := view(elapsed).progress)}
    assert shares == {10: (0.25, 30.0), 39: (0.97, 1.0), 40: (None, None), 4000: (None, None)}


def test_a_stop_is_not_held_against_how_long_starts_take() -> None:
    progress = view(10.0, State.STOPPING, "stopping (restart)").progress
    assert progress is not None
    assert (progress.fraction, progress.eta_s, progress.late) == (None, None, False)

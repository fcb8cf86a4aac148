"""Waiting for a deployment to become what was asked, and showing how far it is.

A wait ends in one of three ways: the goal is met; the deployment failed, or waits for a
device that is not there (its reason and hint are raised); the time is up (`TimedOut`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from api.cli import processes
from api.cli.client import Client, rebuilt
from api.cli.options import at
from api.cli.output import Ticker, after, duration
from orchestrator.errors import DaemonUnreachable, OutriderError, TimedOut

View = Mapping[str, Any]
"""A deployment as the API shows it: `orchestrator.views.DeploymentView` as JSON."""

POLL = 0.2
"""Seconds between two looks at the deployment."""
STALE = 5.0
"""Seconds for which a failure that was there before the request is not yet an answer to it."""
_STANDS = {"failed": "failed", "waiting_device": "is not started", "wedged": "cannot be ended"}
_NOT_COMING = frozenset(_STANDS)
"""States that end a wait: a person has to do something, although the daemon goes on trying."""
AWAY = 10.0
"""Seconds for which the daemon may be away (it may be restarted at any moment)."""


def is_ready(view: View) -> bool:
    """An engine has proven itself and serves."""
    return bool(view["state"] == "ready")


def is_idle(view: View) -> bool:
    """It is there on demand: it serves, or the next request brings it up."""
    return bool(view["state"] in {"idle", "ready"})


def is_stopped(view: View) -> bool:
    """Nothing of it runs."""
    return bool(view["state"] == "stopped")


def wait_for(
    client: Client,
    name: str,
    goal: Callable[[View], bool],
    ticker: Ticker,
    *,
    timeout: float,
    before: View | None = None,
) -> View:
    """Follow the deployment until `goal` holds; its last view.

    `before` is the view from before the request: a failure that looks the same is
    only believed once it has stood for `STALE` seconds more.
    """
    begun = time.monotonic()
    seen: float = begun
    while True:
        now = time.monotonic()
        try:
            view: View = client.get(at("deployments", name))
            seen = now
        except DaemonUnreachable:
            if now - seen > AWAY:
                raise
            view = {}
        if view:
            if goal(view):
                return view
            stale = before is not None and _same_failure(before, view) and now - begun < STALE
            if view["state"] in _NOT_COMING and not stale:
                raise failure(view)
            ticker.update(step(view), tail(view, now - begun))
        if now - begun >= timeout:
            doing = f": it is {step(view)}" if view else ""
            raise TimedOut(
                f"{name} did not get there within {timeout:g} s{doing}",
                hint=f"it goes on in the background: `outrider ps`, `outrider logs {name}`",
            )
        processes.pause(POLL)


def failure(view: View) -> OutriderError:
    """A failed deployment's reason as an error."""
    name, why = view["deployment"], view.get("reason")
    again = view.get("next_attempt_s")
    later = f"; it is tried again {after(again)}" if again is not None else ""
    if why is None:
        return rebuilt(
            "engine_failed", f"{name} failed{later}", hint=f"`outrider logs {name}` shows the engine's last lines"
        )
    hint = why.get("hint") or f"`outrider logs {name}` shows the engine's last lines"
    return rebuilt(why["code"], f"{name} {_STANDS.get(view['state'], 'failed')}: {why['text']}{later}", hint=hint)


def step(view: View) -> str:
    """What happens now, without numbers that change at every look."""
    progress = view.get("progress")
    detail = (progress or {}).get("detail") or (view.get("reason") or {}).get("text")
    return f"{view['deployment']}: {view['state']}{f', {detail}' if detail else ''}"


def tail(view: View, elapsed: float) -> str:
    """How far, for how long, and for how much longer."""
    progress = view.get("progress") or {}
    parts = []
    if progress.get("fraction") is not None:
        parts.append(f"{progress['fraction'] * 100:.0f} %")
    parts.append(duration(progress.get("elapsed_s", elapsed)))
    if progress.get("eta_s") is not None:
        parts.append(f"about {duration(progress['eta_s'])} left")
    elif (usual := progress.get("usual_s")) is not None and progress["elapsed_s"] > usual:
        parts.append(f"longer than the usual {duration(usual)}")
        if progress.get("granted_s") is not None:
            parts.append(f"it has {duration(progress['granted_s'])}, more while it gets on")
    return f" ({', '.join(parts)})"


def _same_failure(before: View, view: View) -> bool:
    def marks(v: View) -> tuple[Any, ...]:
        return v["state"], v["restarts"], v.get("reason"), (v.get("engine") or {}).get("generation")

    return before["state"] in _NOT_COMING and marks(before) == marks(view)

"""`outrider start|stop|restart|drain|apply MODEL`: what changes a deployment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import LOAD, Common, Json, Model, Timeout, Wait, at, common
from api.cli.output import note, print_json, say, ticker
from orchestrator.errors import NotFound
from orchestrator.timing import Timing

if TYPE_CHECKING:
    from api.cli.client import Client
    from api.cli.following import View

STOP = Timing().drain + Timing().stop_grace + 30
"""Seconds a stop may take: the drain of what is in flight, the engine's end, and some for the rest."""

SETTLED = 2 * Timing().report_period
"""Seconds without a request in flight before a drain counts as done."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for function in (start, stop, restart, drain, apply):
        app.command()(function)


def start(
    ctx: typer.Context,
    model: Model,
    *,
    wait: Wait = False,
    timeout: Timeout = LOAD,
    force: Annotated[
        bool, typer.Option("--force", help="Also after the host went down while this model was being loaded.")
    ] = False,
    pull: Annotated[bool, typer.Option("--pull", help="Fetch weights that are not here first.")] = False,
    on_demand: Annotated[
        bool, typer.Option("--on-demand", help="Load it when a request comes, and unload it when nobody uses it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which models would be unloaded to make room for it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Ask for a model to run, now and after each restart.

    This lifts a drain, and tries a failed model again at once.
    """
    if dry_run:
        _preview(common(ctx), model, as_json)
        return
    if pull:
        from api.cli.weights import pull_missing

        pull_missing(common(ctx), model)
    state = "on_demand" if on_demand else "running"
    view = start_model(common(ctx), model, wait=wait, timeout=timeout, force=force, state=state)
    _answer(view, as_json, waited=wait)


def stop(ctx: typer.Context, model: Model, wait: Wait = False, timeout: Timeout = STOP, as_json: Json = False) -> None:
    """Ask for a model to be stopped. Requests in flight are finished first."""

    def request(client: Client) -> View:
        view: View = client.call("PUT", at("deployments", model, "desired"), body={"state": "stopped"}, timeout=60)
        return view

    from api.cli.following import is_stopped

    _answer(_act(common(ctx), model, request, is_stopped if wait else None, timeout), as_json, waited=wait)


def restart(
    ctx: typer.Context, model: Model, wait: Wait = False, timeout: Timeout = LOAD, as_json: Json = False
) -> None:
    """Stop and start a model with the plan it has."""
    _newer(ctx, "restart", model, wait=wait, timeout=timeout, as_json=as_json)


def apply(ctx: typer.Context, model: Model, wait: Wait = False, timeout: Timeout = LOAD, as_json: Json = False) -> None:
    """Make a new plan for a model and move to it. An unchanged plan changes nothing."""
    _newer(ctx, "apply", model, wait=wait, timeout=timeout, as_json=as_json)


def drain(ctx: typer.Context, model: Model, wait: Wait = False, timeout: Timeout = STOP, as_json: Json = False) -> None:
    """Admit no more requests to a model; its engine stays.

    With --wait until those in flight are answered. `outrider start` admits again.
    """

    def request(client: Client) -> View:
        view: View = client.call("POST", at("deployments", model, "drain"), timeout=60)
        return view

    _answer(_act(common(ctx), model, request, _drained() if wait else None, timeout), as_json, waited=wait)


def _drained() -> Callable[[View], bool]:
    """Nothing in flight for `SETTLED` seconds: the daemon hears of a request only with the gateway's next report."""
    quiet_since: float | None = None

    def goal(view: View) -> bool:
        nonlocal quiet_since
        if view["state"] != "draining" or view["in_flight"]:
            quiet_since = None
            return False
        now = time.monotonic()
        quiet_since = now if quiet_since is None else quiet_since
        return now - quiet_since >= SETTLED

    return goal


def _preview(options: Common, model: str, as_json: bool) -> None:
    """What a start would unload."""
    from api.cli.client import Client

    with Client(options.paths) as client:
        room = client.get(at("deployments", model, "room"))
    if as_json:
        print_json(room)
        return
    name = room["deployment"]
    said = {
        "ready": f"{name} runs already" if room["reason"] == "serving" else f"there is room for {name}",
        "evict": f"{name} would come after these are unloaded: {', '.join(room['evict'])}",
        "wait": f"{name} would wait, for what is in its way passes",
        "refuse": f"{name} would not come",
    }
    say(said.get(room["action"], room["action"]))
    for why in room["kept"].values():
        say(f"  stays: {why['text']}" + (f" ({why['hint']})" if why["hint"] else ""))


def start_model(
    options: Common, model: str, *, wait: bool, timeout: float, force: bool = False, state: str = "running"
) -> View:
    """What `start` does, for other commands too."""
    from api.cli.following import is_idle, is_ready

    def request(client: Client) -> View:
        body = {"state": state, **({"force": True} if force else {})}
        view: View = client.call("PUT", at("deployments", model, "desired"), body=body, timeout=60)
        return view

    goal = is_ready if state == "running" else is_idle
    return _act(options, model, request, goal if wait else None, timeout)


def _newer(ctx: typer.Context, verb: str, model: str, *, wait: bool, timeout: float, as_json: bool) -> None:
    """A verb after which another engine serves (or, for `apply`, the same one when nothing changed)."""
    known: dict[str, Any] = {}

    def request(client: Client) -> View:
        known.update(_now(client, model) or {})
        view: View = client.call("POST", at("deployments", model, verb), timeout=60)
        return view

    def settled(view: View) -> bool:
        if view["state"] != "ready":
            return False
        if verb == "apply":
            return not view["drifted"]
        old, new = known.get("engine"), view["engine"]
        return old is None or new is None or new["generation"] > old["generation"]

    _answer(_act(common(ctx), model, request, settled if wait else None, timeout), as_json, waited=wait)


def _act(
    options: Common,
    model: str,
    request: Callable[[Client], View],
    goal: Callable[[View], bool] | None,
    timeout: float,
) -> View:
    from api.cli.client import Client
    from api.cli.following import wait_for

    with Client(options.paths) as client:
        before = _now(client, model) if goal is not None else None
        view = request(client)
        if goal is None:
            return view
        try:
            with ticker(f"{model}: {view['state']}") as shown:
                return wait_for(client, view["deployment"], goal, shown, timeout=timeout, before=before)
        except KeyboardInterrupt:
            note(f"what was asked of {view['deployment']} goes on without you: `outrider ps` shows how far it is")
            raise


def _now(client: Client, model: str) -> View | None:
    try:
        view: View = client.get(at("deployments", model))
    except NotFound:
        return None
    return view


def _answer(view: View, as_json: bool, *, waited: bool) -> None:
    if as_json:
        print_json(view)
        return
    engine = view.get("engine")
    which = f", engine {engine['generation']} ({engine['runtime']}, {engine['method']})" if engine else ""
    say(f"{view['deployment']}: {view['state']}{which if waited else ''} (desired: {view['desired']})")

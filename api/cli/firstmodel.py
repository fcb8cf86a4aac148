"""What `outrider up` does about models: add and start the first one, and wait for all that should run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from api.cli.following import is_ready, wait_for
from api.cli.library import KNOWN, follow_job
from api.cli.options import at
from api.cli.output import Ticker, note
from orchestrator.errors import NotFound, OutriderError

if TYPE_CHECKING:
    from api.cli.client import Client

DEFAULT = "smollm2"
LAST_LINES = 15
"""Lines of an engine's log that are shown when it did not come up."""


def models_ready(client: Client, wanted: str | None, shown: Ticker, *, timeout: float) -> list[str]:
    """The names of the models that serve, once all that should do.

    `wanted` is started too, and added first when it can be (`library.KNOWN`); without it
    the default model is, when no model is configured. Its failure is raised; that of another
    model is shown and left to the daemon, which tries again.
    """
    models = client.get("/models")
    if wanted is None and not any(m["origin"] != "catalogue" for m in models):
        wanted = DEFAULT
    ready = []
    if wanted is not None:
        name = _known(client, models, wanted, shown)
        client.call("PUT", at("deployments", name, "desired"), body={"state": "running"}, timeout=60)
        ready.append(_first(client, name, shown, timeout))
    for view in client.get("/deployments"):
        if view["desired"] != "running" or view["deployment"] in ready:
            continue
        try:
            wait_for(client, view["deployment"], is_ready, shown, timeout=timeout)
        except OutriderError as error:
            note(f"{view['deployment']} does not serve yet: {error}")
        else:
            ready.append(view["deployment"])
            shown.done(f"{view['deployment']}: ready")
    return ready


def _known(client: Client, models: Sequence[Mapping[str, Any]], wanted: str, shown: Ticker) -> str:
    """The model's public name, its weights in place."""
    found = next((m for m in models if wanted == m["name"] or wanted in m["aliases"]), None)
    if found is not None and found["files_ok"]:
        return str(found["name"])
    if wanted in KNOWN:
        job = client.call("POST", "/models", body=KNOWN[wanted], timeout=60)
        follow_job(client, job, shown)
        shown.done(f"{wanted}: added")
        return wanted
    if found is not None:
        fetched = any(w["repository"] for w in found["weights"])
        hint = f"`outrider model pull {wanted}` fetches them" if fetched else "add it with `outrider model add`"
        raise NotFound(f"{wanted}: {found['problem'] or 'its weights are missing'}", hint=hint)
    raise NotFound(
        f"there is no model {wanted!r}", hint=f"add it with `outrider model add`, or take {', '.join(KNOWN)}"
    )


def _first(client: Client, name: str, shown: Ticker, timeout: float) -> str:
    """Wait for the model that `up` started itself; its engine's last words when it fails."""
    try:
        view = wait_for(client, name, is_ready, shown, timeout=timeout)
    except OutriderError:
        try:
            lines = client.get(at("deployments", name, "logs"), params={"tail": LAST_LINES})
        except OutriderError:
            lines = []
        if lines:
            note(f"the last lines of {name}'s engine:")
            for line in lines:
                note(f"  {line['text']}")
        raise
    shown.done(f"{name}: ready")
    return str(view["deployment"])

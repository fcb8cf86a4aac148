"""The shapes of bodies and answers that are not views: for FastAPI's checks and for /openapi.json."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field

from hosts.facts import SCHEMA, HostFacts
from orchestrator.housekeeping.unused import Group
from orchestrator.plan import Method, Plan, Rejected
from orchestrator.views import Desired


class Body(BaseModel):
    """A request body: a key that nobody knows is an error, not a wish unheard."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DesiredBody(Body):
    """What a deployment is to be."""

    state: Desired = Field(
        description="running: now and after every start of the daemon; on_demand: from the first request on, and"
        " until it has been idle for long enough or another model needs its room; stopped: nothing of it runs."
    )
    force: bool = Field(
        default=False,
        description="Start it although the host went down while it was being loaded (`suspected_host_crash`).",
    )


@dataclass(frozen=True, slots=True)
class ForgottenDocument:
    """How many combinations were forgotten."""

    forgotten: int


class PlanBody(Body):
    """What to plan for."""

    model: str = Field(
        min_length=1, max_length=256, description="A model's public name or alias.", examples=["smollm2"]
    )
    what_if: dict[str, Any] | None = Field(
        default=None,
        description="Differences to the host and the settings as they are, such as `context` or `parallel`.",
        examples=[{"context": 8192}],
    )


class PullBody(Body):
    """What to pull."""

    image: str = Field(
        min_length=1,
        max_length=512,
        description="A reference, or an image's name in the catalogue.",
        examples=["ghcr.io/ggml-org/llama.cpp:server-cuda"],
    )


class PinBody(Body):
    """What to pin."""

    image: str = Field(min_length=1, max_length=512, description="A reference with a tag, or a name of the catalogue.")
    digest: str | None = Field(
        default=None,
        pattern=r"^sha256:[0-9a-f]{64}$",
        description="The digest of the image, or of its index where it is for several architectures.",
    )


class ReloadBody(Body):
    """How to reload."""

    dry_run: bool = Field(default=False, description="Show the changes and apply none.")


class ShutdownBody(Body):
    """How to end the daemon."""

    engines: bool = Field(default=False, description="Stop all engines first. What is desired stays as it is.")


class PruneBody(Body):
    """What to be rid of."""

    dry_run: bool = Field(default=True, description="Only say what would go, and what uses the rest.")
    groups: frozenset[Group] = Field(default=frozenset(), description="Of these only; none means all.")
    everything: bool = Field(
        default=False, description="Also what nothing uses now and a model or the catalogue may want again."
    )
    older_than_days: float = Field(default=0, ge=0, allow_inf_nan=False, description="Unchanged for so many days.")
    only: frozenset[str] | None = Field(
        default=None, description="Nothing but the things with these ids: those that a dry run has shown."
    )


class GatewayReportBody(BaseModel):
    """What the gateway saw. Counters run since the gateway with this `gateway_id` started."""

    model_config = ConfigDict(frozen=True, extra="allow")

    gateway_id: Annotated[str, Field(min_length=1, max_length=128)]
    uptime_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    models: dict[str, dict[str, Any]] = Field(description="By model: arrivals, waiting, in_flight, completed, ...")
    engines: dict[str, dict[str, Any]] = Field(description="By engine id: in_flight, bytes, events, requests, ...")


@dataclass(frozen=True, slots=True)
class HostDocument(HostFacts):
    """The host's facts as `HostFacts.to_dict` writes them."""

    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class RejectedCause:
    """Why an alternative was turned down."""

    code: str
    text: str


def _derived(name: str, doc: str, source: type, added: dict[str, Any], without: frozenset[str] = frozenset()) -> Any:
    """A dataclass with another one's fields, changed as its `to_dict` changes them."""
    hints = get_type_hints(source, include_extras=True)
    kept = [(f.name, hints[f.name]) for f in dataclasses.fields(source) if f.name not in without]
    return dataclasses.make_dataclass(name, [*added.items(), *kept], namespace={"__doc__": doc}, frozen=True)


PlanDocument: Any = _derived(
    "PlanDocument",
    "A plan as `Plan.to_dict` writes it: what to launch, and why.",
    Plan,
    {"digest": Annotated[str, Field(description="SHA-256 (hex) of what launches.")]},
)
"""Made from `Plan`, so that the documented shape cannot fall behind it."""
RankedDocument: Any = _derived(
    "RankedDocument",
    "An alternative that could be launched too: a plan, and nothing that turned it down.",
    Plan,
    {"digest": Annotated[str, Field(description="SHA-256 (hex) of what launches.")], "rejected": None},
)
RejectedDocument: Any = _derived(
    "RejectedDocument",
    "An alternative that was turned down, as `Rejected.to_dict` writes it.",
    Rejected,
    {"rejected": RejectedCause},
    frozenset({"code", "text"}),
)


@dataclass(frozen=True, slots=True)
class RungDocument:
    """One step of the ladder, as `Rung.to_dict` writes it."""

    change: str
    text: str
    variant: str
    runtime: str
    method: Method
    draft_tokens: int
    drafter: str | None
    context: int
    parallel: int
    digest: str


PlannedDocument: Any = dataclasses.make_dataclass(
    "PlannedDocument",
    [
        ("plan", PlanDocument | None),
        ("alternatives", list[RankedDocument | RejectedDocument]),
        ("ladder", list[RungDocument]),
        ("changes", dict[str, list[Any]] | None, None),
    ],
    namespace={
        "__doc__": "The planner's answer: one plan, the ranked rest, what was turned down, the ladder that an engine"
        " climbs down when it keeps failing, and what `what_if` changed (before and after, by field)."
    },
    frozen=True,
)


@dataclass(frozen=True, slots=True)
class VersionDocument:
    """What answers here."""

    name: str
    version: str
    api: str


@dataclass(frozen=True, slots=True)
class AliveDocument:
    """That the daemon answers, and whether it finds itself well (see /api/v1/health for why not)."""

    ok: bool


@dataclass(frozen=True, slots=True)
class StoppingDocument:
    """The daemon is about to end."""

    stopping: bool
    engines: bool

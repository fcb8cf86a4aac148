"""The plan: a frozen, hashed decision of what to launch.

Its digest is SHA-256 over the canonical JSON of what launches, not of reasons,
estimates or evidence. Socket folder, port, key, container name and generation
are launch parameters: the plan holds placeholders (`KEY`, `PORT`) for them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA = 1
KEY = "{key}"
PORT = "{port}"
SOCKET_FOLDER = "/run/engine"
"""Where an engine's own socket folder is mounted in its container."""
SOCKET = f"{SOCKET_FOLDER}/engine.sock"
MODEL_FOLDER = "/models"
"""Where model folders are mounted, read-only, in an engine's container."""


class Method(StrEnum):
    """How tokens are drafted. Engines' own names are the runtime adapter's business."""

    NONE = "none"
    NGRAM = "ngram"
    DRAFT = "draft"
    EAGLE3 = "eagle3"
    MTP = "mtp"
    DFLASH = "dflash"
    DSPARK = "dspark"


NEEDS_DRAFTER = frozenset({Method.DRAFT, Method.EAGLE3, Method.DFLASH, Method.DSPARK})
"""Methods that draft with a model besides the target. MTP's head is in the target; llama.cpp takes it as a file too."""


class Evidence(StrEnum):
    """What is known of a combination of runtime, model, method and device."""

    PROVEN = "proven"
    UNTRIED = "untried"
    REFUTED = "refuted"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the planner chose or turned down something; `source` says who taught it."""

    code: str
    text: str
    source: str | None = None


@dataclass(frozen=True, slots=True)
class PlanMount:
    """A read-only bind of a host folder or file into the container."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class ExpectedMemory:
    """Bytes by kind on each of `devices` (or in system memory, for a CPU or unified memory).

    Weights, KV, state and drafter are exact in form; compute, graphs and overhead are what is to be
    expected of what can only be measured, and `margin` is how much more it may be.
    """

    weights: int
    kv: int
    state: int
    drafter: int
    """Its weights and its own cache."""
    compute: int
    """llama.cpp's compute buffers, the activation peak of vLLM and SGLang."""
    total: int
    """What to keep free for it: the sum of all kinds with margin and correction."""
    budget: int | None
    """What the host offers: None when unknown."""
    graphs: int = 0
    """Captured CUDA graphs."""
    overhead: int = 0
    """The process itself: its context, workspaces, and on unified memory what it keeps in system memory."""
    margin: int = 0
    host: int = 0
    """In system memory besides `total`; 0 where the device's memory is the system's own."""
    devices: int = 1
    low: int | None = None
    """The least that was seen of the total. None: not known (a plan of an older daemon)."""
    correction: int = 0
    """What this host's own measurements add to the estimate (negative: take off)."""

    @property
    def likely(self) -> int:
        """What to expect: the total without its margin."""
        return self.total - self.margin

    @property
    def exact(self) -> int:
        """The part that follows from files, shapes and sizes."""
        return self.weights + self.kv + self.state + self.drafter

    @property
    def estimated(self) -> int:
        """The part that was only ever measured, as this host's measurements have it; the margin is for it."""
        return self.likely - self.exact


@dataclass(frozen=True, slots=True)
class Limits:
    """What the container may take. Bytes; None is no limit of ours."""

    memory: int | None = None
    shm: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to launch and why. `context` is tokens a sequence, `parallel` sequences at once."""

    model: str
    variant: str
    runtime: str
    runtime_version: str | None
    image: str
    method: Method
    draft_tokens: int
    drafter: str | None
    context: int
    parallel: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    devices: tuple[str, ...]
    mounts: tuple[PlanMount, ...]
    expected_memory: ExpectedMemory
    evidence: Evidence
    reasons: tuple[Reason, ...] = ()
    groups: tuple[int, ...] = ()
    caches: tuple[tuple[str, str], ...] = ()
    """Named volumes for compile caches: (volume, path in the container)."""
    limits: Limits = field(default_factory=Limits)
    profile: str = "strict"
    socket: bool = True
    """Whether the runtime serves a unix socket; otherwise it gets a loopback port."""
    image_resolved: bool = False
    """Whether `image` is an image id; False while it is still a reference."""
    deterministic: bool = False
    """Whether its engine is said to repeat itself to the last token. Launches nothing."""

    @property
    def launch(self) -> dict[str, Any]:
        """What launches, as JSON-able data: the digest's input."""
        return {
            "schema": SCHEMA,
            "runtime": self.runtime,
            "image": self.image,
            "argv": list(self.argv),
            "env": dict(sorted(self.env.items())),
            "devices": list(self.devices),
            "groups": list(self.groups),
            "mounts": [[m.source, m.target] for m in self.mounts],
            "caches": [list(c) for c in self.caches],
            "limits": dataclasses.asdict(self.limits),
            "profile": self.profile,
            "socket": self.socket,
        }

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON of `launch`."""
        canonical = json.dumps(self.launch, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of the contract, `digest` included."""
        return {**dataclasses.asdict(self), "argv": list(self.argv), "digest": self.digest}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Read `to_dict` back (a container's `plan-json` label). Unknown keys are ignored,
        so that a newer daemon's containers can still be adopted; raises ValueError when
        something needed is missing or the digest does not match."""
        known = {f.name for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {k: v for k, v in data.items() if k in known}
        try:
            values["method"] = Method(values["method"])
            values["evidence"] = Evidence(values["evidence"])
            kinds = {f.name for f in dataclasses.fields(ExpectedMemory)}
            memory = {k: v for k, v in values["expected_memory"].items() if k in kinds}
            values["expected_memory"] = ExpectedMemory(**memory)
            values["limits"] = Limits(**values.get("limits", {}))
            values["mounts"] = tuple(PlanMount(**m) for m in values.get("mounts", ()))
            values["reasons"] = tuple(Reason(**r) for r in values.get("reasons", ()))
            values["caches"] = tuple((str(a), str(b)) for a, b in values.get("caches", ()))
            for name in ("argv", "devices", "groups"):
                values[name] = tuple(values.get(name, ()))
            plan = cls(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a plan: {error}") from error
        if "digest" in data and data["digest"] != plan.digest:
            raise ValueError("not a plan: the digest does not match what launches")
        return plan


@dataclass(frozen=True, slots=True)
class Rejected:
    """An alternative that was turned down: what it was, and why."""

    runtime: str
    variant: str
    method: Method
    code: str
    text: str
    expected_memory: ExpectedMemory | None = None
    source: str | None = None
    evidence: Evidence | None = None
    """What was known of the combination; None where it never came to that."""
    drafter: str | None = None
    image: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: the contract's `{..., rejected: {code, text}}`."""
        data = dataclasses.asdict(self)
        data["rejected"] = {"code": data.pop("code"), "text": data.pop("text")}
        return data


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder that an engine climbs down when it keeps failing: what is given up, and what is
    launched then."""

    change: str
    """A stable code: `plan`, `eager`, `less_batch`, `method_mtp`, `other_runtime`, ..."""
    text: str
    plan: Plan

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: what distinguishes the plan."""
        plan = self.plan
        return {
            "change": self.change, "text": self.text, "variant": plan.variant, "runtime": plan.runtime,
            "method": plan.method, "draft_tokens": plan.draft_tokens, "drafter": plan.drafter,
            "context": plan.context, "parallel": plan.parallel, "digest": plan.digest,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Planned:
    """The planner's answer: one plan, the ranked rest, what was turned down, and the ladder to climb down."""

    plan: Plan | None
    alternatives: tuple[Plan, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    ladder: tuple[Rung, ...] = ()
    """The plan first; empty without one."""

    def to_dict(self) -> dict[str, Any]:
        """The contract's `{plan, alternatives}`, and `ladder`. Alternatives that could be launched come first, best
        first, and have `rejected` null."""
        ranked = [{**p.to_dict(), "rejected": None} for p in self.alternatives]
        return {
            "plan": None if self.plan is None else self.plan.to_dict(),
            "alternatives": [*ranked, *(r.to_dict() for r in self.rejected)],
            "ladder": [rung.to_dict() for rung in self.ladder],
        }

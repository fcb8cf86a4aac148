"""The labels that make a container Outrider's own, and the truth about what it runs.

A daemon that lost its memory finds its engines by these. Keys are part of the
contract: change them only with a deprecation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "io.outrider."
DEPLOYMENT = "io.outrider.deployment"
GENERATION = "io.outrider.generation"
PLAN = "io.outrider.plan"
HOST = "io.outrider.host"
OWNER = "io.outrider.owner"
PLAN_JSON = "io.outrider.plan-json"
ENGINE = "io.outrider.engine"
PORT = "io.outrider.port"
"""Where an engine without a socket is published on 127.0.0.1."""
KEYS = frozenset({DEPLOYMENT, GENERATION, PLAN, HOST, OWNER, PLAN_JSON, ENGINE})
"""What every engine's container has."""
ALLOWED = KEYS | {PORT}
"""What one may have."""

_ENGINE_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Labels:
    """What the labels of one engine's container say.

    `plan` is the plan's digest, `owner` the id of the state folder whose daemon
    started it, `engine` the 16 hex characters that name its socket folder.
    """

    deployment: str
    generation: int
    plan: str
    host: str
    owner: str
    plan_json: str
    engine: str


def write(labels: Labels) -> dict[str, str]:
    """The labels as Podman wants them: all strings."""
    return {
        DEPLOYMENT: labels.deployment,
        GENERATION: str(labels.generation),
        PLAN: labels.plan,
        HOST: labels.host,
        OWNER: labels.owner,
        PLAN_JSON: labels.plan_json,
        ENGINE: labels.engine,
    }


def read(labels: Mapping[str, str]) -> Labels | None:
    """The labels of a container, or None when it is not an engine of Outrider's.

    None also when a label is missing or malformed: such a container can be
    listed by its owner and removed, but not adopted.
    """
    if not all(key in labels for key in KEYS):
        return None
    generation = labels[GENERATION]
    if not (generation.isascii() and generation.isdigit()) or _ENGINE_ID.fullmatch(labels[ENGINE]) is None:
        return None
    return Labels(
        deployment=labels[DEPLOYMENT],
        generation=int(generation),
        plan=labels[PLAN],
        host=labels[HOST],
        owner=labels[OWNER],
        plan_json=labels[PLAN_JSON],
        engine=labels[ENGINE],
    )


def owned_by(owner: str) -> dict[str, str]:
    """The filter that finds every container of one state folder."""
    return {OWNER: owner}

"""Asking why an engine ended: Podman for its exit code and its log, its control group for the kernel's kills.

What the answers mean is `orchestrator.faults.ending`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from containers.memory_kills import MemoryKills
from containers.podman import Podman
from containers.spec import ContainerState, LogLine
from orchestrator.clock import Clock
from orchestrator.engine import Engine
from orchestrator.errors import EngineFailed
from orchestrator.faults import Ended, judge
from orchestrator.runtimes import adapter

EXIT_LIMIT = 2.0
"""Seconds that Podman may take to know how a process ended: its end is seen before conmon has told."""
EXIT_STEP = 0.02


async def why_it_ended(
    engine: Engine, podman: Podman, clock: Clock, tail: Callable[[Engine], Awaitable[Sequence[LogLine]]]
) -> EngineFailed:
    """The reason a dead engine gives. Raises what `Podman.inspect` raises."""
    state = None if engine.container_id is None else await _ended(engine.container_id, podman, clock)
    limit = engine.plan.limits.memory
    ended = Ended(
        engine.name,
        engine.deployment,
        None if state is None else state.exit_code,
        tuple(line.text for line in await tail(engine)),
        limit,
        _kills(engine.kills, state, limited=limit is not None),
    )
    return judge(ended, adapter(engine.plan.runtime).failures)


async def _ended(container: str, podman: Podman, clock: Clock) -> ContainerState | None:
    """The container once Podman knows its exit code, or as it is when that takes too long (its conmon died)."""
    end = clock.now() + EXIT_LIMIT
    while True:
        state = await podman.inspect(container)
        if state is None or state.exit_code is not None or clock.now() >= end:
            return state
        await asyncio.sleep(EXIT_STEP)


def _kills(counted: MemoryKills | None, state: ContainerState | None, *, limited: bool) -> MemoryKills | None:
    """The group's own count, else Podman's word if it is yes: its conmon watches the container's group alone."""
    if counted is not None or state is None or not state.oom_killed:
        return counted
    return MemoryKills(1, limited, "podman")

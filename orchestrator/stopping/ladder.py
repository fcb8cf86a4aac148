"""The stop ladder of one container: each rung is bounded, and the next one is taken when it does not help.

=================  ===================================================================  =========================
rung               what is done                                                         when it is not enough
=================  ===================================================================  =========================
stop               Podman sends SIGTERM, and SIGKILL after the grace                    Podman fails or is silent
signals            the same through the process's pidfd, without Podman                 the process outlives SIGKILL
removal            Podman removes the container by force                                the process outlives that
wedged             nothing more can be done: the barrier (`orchestrator.stopping.clearing`) says who is left
=================  ===================================================================  =========================

What counts is the process's end, which the kernel tells: Podman answers a stop of a container whose conmon died too,
whether its process goes on or not, and only after the whole grace.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from containers.errors import ContainerError
from containers.exit_watch import ExitWatch
from containers.spec import ContainerState
from orchestrator.clock import Clock

ANSWER = 5.0
"""Seconds that Podman may take to answer a stop beyond the grace: it answers in 0.1-0.2 s."""
SEEN = 1.0
"""Seconds from a stop that Podman says is done to the process's end as the kernel tells it."""
JUST_NOW = 0.1
"""Seconds from a stop that failed to an end that it has brought about: Podman 5 fails the stop of a container whose
conmon died once its process has ended."""
KILLED = 5.0
"""Seconds for a process to end after SIGKILL; one in the driver's hands takes longer, and is removed meanwhile."""


class Rung(StrEnum):
    """What ended the process."""

    ENDED = "ended_by_itself"
    STOP = "stop"
    SIGTERM = "sigterm"
    SIGKILL = "sigkill"
    NONE = "none"
    """Nothing did, so far."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How far the ladder was climbed, and the words of a Podman that failed on the way."""

    rung: Rung
    seconds: float
    podman: str | None = None


class Stops(Protocol):
    """What of Podman is needed (`containers.podman`)."""

    async def inspect(self, container: str) -> ContainerState | None: ...
    async def stop(self, container: str, timeout: float, *, limit: float | None = None) -> None: ...
    async def remove(self, container: str) -> bool: ...


async def end(
    podman: Stops,
    clock: Clock,
    container: str,
    grace: float,
    *,
    watch: ExitWatch | None = None,
    exited: asyncio.Event | None = None,
) -> Ending:
    """End a container's process: SIGTERM, after `grace` seconds SIGKILL, through Podman, else by ourselves.

    `watch` and `exited` are of its process; without a watch Podman's word has to do. Raises nothing: what is left
    is for the removal that follows.
    """
    begun = clock.now()

    def ending(rung: Rung, trouble: ContainerError | None = None) -> Ending:
        return Ending(rung, round(clock.now() - begun, 3), None if trouble is None else trouble.detail)

    if watch is not None and exited is not None and exited.is_set():
        return ending(Rung.ENDED)
    trouble: ContainerError | None = None
    try:
        if watch is None or exited is None:
            state = await podman.inspect(container)
            if state is None or not state.alive:
                return ending(Rung.ENDED)
            await podman.stop(container, grace, limit=grace + ANSWER)
            return ending(Rung.STOP)
        await _stop(podman, container, grace, exited)
    except ContainerError as error:
        trouble = error
    if watch is None or exited is None:
        return ending(Rung.NONE, trouble)
    if await _ends(exited, SEEN if trouble is None else JUST_NOW):
        return ending(Rung.SIGKILL if clock.now() - begun >= grace else Rung.STOP, trouble)
    if trouble is not None:
        watch.send(signal.SIGTERM)
        if await _ends(exited, grace):
            return ending(Rung.SIGTERM, trouble)
    watch.kill()
    return ending(Rung.SIGKILL if await _ends(exited, KILLED) else Rung.NONE, trouble)


async def _stop(podman: Stops, container: str, grace: float, exited: asyncio.Event) -> None:
    """Podman's stop, or the process's end and a moment more: with its conmon dead Podman waits for the whole grace,
    whatever the process does."""
    stop = asyncio.ensure_future(podman.stop(container, grace, limit=grace + ANSWER))
    end = asyncio.ensure_future(exited.wait())
    try:
        await asyncio.wait({stop, end}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.done():
            await asyncio.wait({stop}, timeout=SEEN)
        if stop.done():
            stop.result()
    finally:
        for task in (stop, end):
            task.cancel()
        await asyncio.gather(stop, end, return_exceptions=True)


def unusual(name: str, ending: Ending) -> str | None:
    """What a person should hear of a stop; None for one that went as usual."""
    took = f"after {ending.seconds:.1f} s"
    match ending.rung:
        case Rung.SIGKILL:
            text = f"{name} did not end when asked to: killed {took}"
        case Rung.SIGTERM:
            text = f"{name} was asked to end without Podman, and did {took}"
        case Rung.NONE:
            text = f"{name} has not ended {took}: its container is removed by force"
        case _:
            return None
    return text


async def _ends(exited: asyncio.Event, limit: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(limit):
            await exited.wait()
    return exited.is_set()

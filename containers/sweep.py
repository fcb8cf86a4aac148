"""Clearing up what a Podman service leaves when it dies in the middle of something.

Seen on Podman 4.3.1 with the service killed during each call:

=========  ==============================================  ==========================
call       what is left                                    what helps
=========  ==============================================  ==========================
create     a name in the storage that is no container      removal by that name
create     created                                         removal
start      created, with or without a conmon that lives    removal and the runtime's own
           (and with it a process of the runtime's)        removal; a start would fail
stop       stopping, the engine perhaps alive              a second stop
remove     removing, perhaps unknown on inspection         forced removal
=========  ==============================================  ==========================

What runs is left alone, whoever started it: that is adoption's business. So is what
has ended: its log is evidence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from containers import orphans
from containers.errors import ContainerError, ContainerMissing
from containers.podman import Podman

SETTLE = 1.0
"""Seconds that a create under way may take from its name in the storage to a container: it takes milliseconds."""
_STEP = 0.05
_UNFINISHED = frozenset({"created", "configured", "initialized"})


@dataclass(frozen=True, slots=True)
class Report:
    """What was found and done. `ghosts` are names, the others container ids; `failed` maps either to Podman's words."""

    ghosts: tuple[str, ...]
    removed: tuple[str, ...]
    stopped: tuple[str, ...]
    failed: Mapping[str, str]

    @property
    def clean(self) -> bool:
        """Whether nothing is left that should not be."""
        return not self.failed


async def sweep(
    podman: Podman,
    owner_label: tuple[str, str],
    prefix: str,
    *,
    busy: Collection[str] = (),
    stop_grace: float,
) -> Report:
    """Clear up among the containers with the label `owner_label` (key, value) and the names that begin with `prefix`.

    `busy` are names and ids that somebody creates or starts right now: they are passed over. It is asked at each
    one, never copied: what begins while a sweep goes round is busy too.
    One that cannot be cleared does not keep the others from it. Raises only when Podman cannot
    be asked at all.
    """
    run = _Sweep(podman, dict([owner_label]), prefix, busy, stop_grace)
    await run.containers()
    await run.processes()
    await run.names()
    return Report(tuple(run.ghosts), tuple(dict.fromkeys(run.removed)), tuple(run.stopped), run.failed)


@dataclass(slots=True)
class _Sweep:
    podman: Podman
    labels: dict[str, str]
    prefix: str
    busy: Collection[str]
    grace: float
    ghosts: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    async def containers(self) -> None:
        """What Podman has down as unfinished."""
        for container, state in (await self.podman.listed(self.labels)).items():
            if container in self.busy:
                continue
            try:
                if state == "stopping":
                    await self.podman.stop(container, self.grace)
                    self.stopped.append(container)
                elif state == "removing" or (state in _UNFINISHED and not await self._is_busy(container)):
                    await self.podman.remove(container)
                    self.removed.append(container)
            except ContainerMissing:
                self.removed.append(container)
            except ContainerError as error:
                self.failed[container] = error.detail

    async def processes(self) -> None:
        """What runs and Podman does not know; a conmon without a workload may be about to have one, or to end."""
        known = await self.podman.listed(self.labels)
        end = time.monotonic() + SETTLE
        while True:
            found = await asyncio.to_thread(orphans.find, prefix=self.prefix)
            unknown = [o for o in found if o.container not in known and o.name not in self.busy]
            for orphan in unknown:
                if orphan.workload is None:
                    continue
                if await asyncio.to_thread(orphans.end, orphan, self.grace):
                    self.removed.append(orphan.container)
                else:
                    self.failed[orphan.container] = f"its process {orphan.workload} does not end"
            if not unknown or self.failed or time.monotonic() >= end:
                return
            await asyncio.sleep(_STEP)

    async def names(self) -> None:
        """What holds a name in the storage and is no container."""
        for name in await self._settled():
            try:
                await self.podman.remove(name)
                self.ghosts.append(name)
            except ContainerError as error:
                self.failed[name] = error.detail

    async def _is_busy(self, container: str) -> bool:
        """Whether its name is among the busy ones; asked only when there are any."""
        if not self.busy:
            return False
        state = await self.podman.inspect(container)
        return state is not None and state.name in self.busy

    async def _settled(self) -> tuple[str, ...]:
        """The ghosts that stay: a create under way, perhaps for a daemon that died since, becomes a container."""
        end = time.monotonic() + SETTLE
        found = {name for name in await self.podman.ghosts(self.prefix) if name not in self.busy}
        while found and time.monotonic() < end:
            await asyncio.sleep(_STEP)
            found &= set(await self.podman.ghosts(self.prefix))
        return tuple(sorted(found))

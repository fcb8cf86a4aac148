"""What the service manager is told of a daemon that runs: ready, its state in a line, and its end."""

from __future__ import annotations

import asyncio

from api.notify import Manager
from orchestrator.service import Outrider
from orchestrator.telling.amounts import count
from orchestrator.views import Desired, State


class Told:
    """Tells for the length of a `with`; begun after the API answers."""

    def __init__(self, manager: Manager, outrider: Outrider, period: float) -> None:
        """`period`: seconds between two looks at what the line should say."""
        self._manager = manager
        self._outrider = outrider
        self._period = period
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        if self._manager.there:
            self._task = asyncio.create_task(self._tell(), name="service manager")

    def __exit__(self, *_: object) -> None:
        self._manager.stopping("ending; engines go on")
        if self._task is not None:
            self._task.cancel()

    async def _tell(self) -> None:
        self._manager.status("adopting what runs")
        await self._outrider.looked()
        self._manager.ready(await self._line())
        while True:
            await asyncio.sleep(self._period)
            self._manager.status(await self._line())

    async def _line(self) -> str:
        if (await self._outrider.health()).podman is False:
            return "Podman does not answer: systemctl status podman.socket"
        wanted = [d for d in await self._outrider.deployments() if d.desired is Desired.RUNNING]
        ready = sum(d.state is State.READY for d in wanted)
        return f"{ready} of {count(len(wanted), 'model')} ready"

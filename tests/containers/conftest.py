"""Fixtures for the tests of containers: a client, and specs of small containers."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from containers import labels, service, trial
from containers.podman import Podman
from containers.spec import ContainerSpec
from tests.waiting import until

PREFIX = "outrider-t-"


@asynccontextmanager
async def frozen(pid: int | None) -> AsyncIterator[None]:
    """A process that is there and does nothing. A stop takes effect a moment after the signal."""
    assert pid is not None

    def stopped() -> bool:
        return all(
            f.read_text().rpartition(")")[2].split()[0] in "Tt" for f in Path(f"/proc/{pid}/task").glob("*/stat")
        )

    os.kill(pid, signal.SIGSTOP)
    try:
        await until(stopped, 5, f"a stop of {pid}")
        yield
    finally:
        with suppress(ProcessLookupError):  # the test may have ended it
            os.kill(pid, signal.SIGCONT)


async def spoken(podman: Podman, container: str) -> None:
    """Wait for the workload's first line: before it, SIGTERM has no handler and process 1 does not feel it."""
    async with asyncio.timeout(10), aclosing(podman.logs(container, follow=True)) as lines:
        async for _ in lines:
            return


@dataclass(frozen=True)
class Specs:
    """Makes specs of tiny containers that belong to this session."""

    image: str
    owner: str

    def __call__(self, *argv: str, **changes: Any) -> ContainerSpec:
        name = f"{PREFIX}{self.owner[:8]}-{secrets.token_hex(4)}"
        spec = ContainerSpec(
            name=name, image=self.image, argv=argv, labels=labels.owned_by(self.owner), stop_timeout=30
        )
        return replace(spec, **changes)


@pytest.fixture
def specs(tiny_image: str, podman_owner: str) -> Specs:
    return Specs(tiny_image, podman_owner)


@pytest.fixture
async def podman(podman_socket: str) -> AsyncIterator[Podman]:
    """A client of the session's service."""
    client = Podman(podman_socket, call_timeout=20)
    yield client
    await client.close()


@pytest.fixture
async def started(podman: Podman, specs: Specs) -> AsyncIterator[Callable[..., Any]]:
    """Create and start a container; it is removed at the test's end."""
    made: list[str] = []

    async def start(*argv: str, **changes: Any) -> str:
        container = await podman.create(specs(*argv, **changes))
        made.append(container)
        await podman.start(container)
        return container

    yield start
    for container in made:
        await podman.remove(container)


@pytest.fixture
async def private_service(
    podman_run_dir: Path, podman_service: object, tmp_path: Path
) -> AsyncIterator[service.Service]:
    """A service that a test may stop, freeze and kill; it shares the storage, not the process."""
    run_dir = Path(f"{podman_run_dir}/{secrets.token_hex(4)}")
    run_dir.mkdir()
    shutil.copy(podman_run_dir / trial.CACHE_FILE, run_dir)
    yield await service.own(run_dir, limit=20)
    usable = await service.own(run_dir, limit=20)
    await usable.stop()

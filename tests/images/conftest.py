"""Fixtures for the tests of images: a registry, the proxy before it, a Podman service with its own storage."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from containers.podman import Podman
from tests.images.registry import Faults, Image, PodmanOfMine, Proxy, layer, noise, publish, registry

REAL = "docker.io"
CLOSED = "ghcr.io"


@dataclass(frozen=True)
class Registries:
    """An open registry behind a proxy that is `docker.io`, and one with logins that is `ghcr.io`."""

    proxy: Proxy
    behind: str
    closed: str
    tiny: Image
    """`docker.io/outrider/tiny:1`, two layers, 1 MB; in the closed one too."""


@pytest.fixture(scope="session")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registries]:
    layers = [layer({"a": noise(1_000_000, 1)}), layer({"b": noise(50_000, 2)})]
    with (
        registry(tmp_path_factory.mktemp("open")) as behind,
        registry(tmp_path_factory.mktemp("closed"), login=True) as closed,
        Proxy(behind) as proxy,
    ):
        tiny = publish(behind, "outrider/tiny", "1", layers)
        publish(closed, "outrider/tiny", "1", layers)
        yield Registries(proxy, behind, closed, tiny)


@pytest.fixture(scope="session")
def own_podman(registries: Registries) -> Iterator[PodmanOfMine]:
    places = {REAL: registries.proxy.where, CLOSED: registries.closed}
    with PodmanOfMine(places, also=[registries.behind]) as own:
        yield own


@pytest.fixture
def mine(own_podman: PodmanOfMine, registries: Registries) -> Iterator[PodmanOfMine]:
    """The service, without images, and a proxy without faults; both stay so after the test."""
    registries.proxy.faults = Faults()
    own_podman.empty()
    yield own_podman
    registries.proxy.faults = Faults()


@pytest.fixture
async def podman(mine: PodmanOfMine) -> AsyncIterator[Podman]:
    client = Podman(mine.socket)
    yield client
    await client.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=755", "tmpfs", folder], check=True)
    yield folder
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        if line.split()[1].startswith(str(folder)):
            subprocess.run(["umount", "-l", line.split()[1]], check=True)

"""Real Podman for tests: one service of our own a session, and an image of a few hundred kB.

`podman_socket` is the service's socket; `tiny_image` the id of an image whose entrypoint
is `workload.c`. `podman_owner` is the value for the owner label of whatever a test starts;
the session's end removes every container that carries it. The image stays: another test
run on the same machine may be about to use it.

It is the `podman` of PATH, in whatever version. `tests/podman5.sh` runs tests where that is Podman 5.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import secrets
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from containers import labels, service
from containers.podman import Podman

T = TypeVar("T")
SOURCE = Path(__file__).with_name("workload.c")
LIMIT = 30.0


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a thread, apart from the loop that pytest may have."""
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as error:  # raised again below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]


def docker_archive(binary: bytes, name: str, target: Path) -> None:
    """An image with one file, the entrypoint, as `docker save` would write it; the same bytes every time."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add(tar, "tmp", None, mode=0o1777)  # runc gives a tmpfs the mode of the folder below it
        for folder in ("models", "run"):
            _add(tar, folder, None)
        _add(tar, "workload", binary)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/workload"], "Labels": {"io.outrider.test": "tiny"}},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer.getvalue()).hexdigest()]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(target, mode="w") as tar:
        _add(tar, "config.json", json.dumps(config).encode())
        _add(tar, "layer.tar", layer.getvalue())
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _add(tar: tarfile.TarFile, name: str, data: bytes | None, mode: int = 0o755) -> None:
    info = tarfile.TarInfo(name)
    info.mode = mode
    if data is None:
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    else:
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))


@pytest.fixture(scope="session")
def podman_run_dir() -> Iterator[Path]:
    """A short folder for the service's files: a unix socket's path may not be long."""
    with tempfile.TemporaryDirectory(prefix="or-t-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def podman_owner() -> str:
    """The owner label of this session's containers."""
    return secrets.token_hex(8)


@pytest.fixture(scope="session")
def podman_service(podman_run_dir: Path, podman_owner: str) -> Iterator[service.Service]:
    """A Podman service of this session's own."""
    found = run_apart(service.own(podman_run_dir, limit=LIMIT))
    yield found
    run_apart(_clean(found, podman_run_dir, podman_owner))


@pytest.fixture(scope="session")
def podman_socket(podman_service: service.Service) -> str:
    """The socket of a Podman service of this session's own."""
    return podman_service.socket


async def _clean(found: service.Service, run_dir: Path, owner: str) -> None:
    usable = await service.own(run_dir, limit=LIMIT)  # a test may have ended the first one
    podman = Podman(usable.socket)
    for state in await podman.containers(labels.owned_by(owner)):
        await podman.remove(state.id)
    await podman.close()
    await usable.stop()


@pytest.fixture(scope="session")
def tiny_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The docker archive of the tiny image."""
    folder = tmp_path_factory.mktemp("tiny")
    compiler = shutil.which("gcc")
    assert compiler is not None, "the tests need gcc"
    binary = folder / "workload"
    subprocess.run([compiler, "-static", "-Os", "-s", "-o", binary, SOURCE], check=True, timeout=60)
    archive = folder / "tiny.tar"
    tag = hashlib.sha256(binary.read_bytes()).hexdigest()[:12]
    docker_archive(binary.read_bytes(), f"localhost/outrider-test-tiny:{tag}", archive)
    return archive


@pytest.fixture(scope="session")
def tiny_image(podman_socket: str, tiny_archive: Path) -> str:
    """The id of an image whose entrypoint is `workload.c`."""

    async def load() -> str:
        podman = Podman(podman_socket)
        try:
            return (await podman.load_image(tiny_archive)).id
        finally:
            await podman.close()

    return run_apart(load())

"""The facade against real Podman."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from containers import proc, service
from containers.errors import (
    ContainerMissing,
    DeviceUnavailable,
    ImageMissing,
    NameInUse,
    PodmanFailed,
    PodmanTimeout,
    PodmanUnreachable,
)
from containers.podman import Podman
from containers.spec import Mount
from tests.containers.conftest import Specs, frozen, spoken
from tests.waiting import until

ABSENT = "sha256:" + "0" * 64
Start = Callable[..., Any]


async def test_a_container_lives_and_ends(podman: Podman, specs: Specs) -> None:
    spec = specs("talk")
    container = await podman.create(spec)
    made = await podman.inspect(container)
    assert made is not None
    assert (made.name, made.state, made.alive, made.exit_code, made.started_at) == (
        spec.name,
        "created",
        False,
        None,
        None,
    )
    assert made.image_id == spec.image
    assert made.labels.items() >= spec.labels.items()  # an image's own labels come with it

    await podman.start(container)
    await podman.start(container)  # it runs already: fine
    runs = await podman.inspect(container)
    assert runs is not None
    assert (runs.state, runs.alive, runs.conmon_alive, runs.exit_code) == ("running", True, True, None)
    assert runs.started_at is not None
    assert proc.process(runs.pid) is not None

    await spoken(podman, container)
    await podman.stop(container, 5)
    await podman.stop(container, 5)  # it ended already: fine
    ended = await podman.inspect(container)
    assert ended is not None
    assert (ended.state, ended.alive, ended.exit_code) == ("exited", False, 0)

    assert await podman.remove(container) is True
    assert await podman.remove(container) is False
    assert await podman.inspect(container) is None


async def test_what_cannot_be_created_says_why(podman: Podman, specs: Specs) -> None:
    spec = specs("quiet")
    container = await podman.create(spec)
    with pytest.raises(NameInUse) as taken:
        await podman.create(spec)
    assert taken.value.retryable
    with pytest.raises(ImageMissing):
        await podman.create(specs("quiet", image=ABSENT))
    with pytest.raises(ImageMissing):
        await podman.create(specs("quiet", image="localhost/outrider-none@" + ABSENT))
    with pytest.raises(DeviceUnavailable):
        await podman.create(specs("quiet", devices=("/dev/outrider-none",)))
    with pytest.raises(PodmanFailed, match="no such file"):
        await podman.create(specs("quiet", mounts=(Mount("/outrider-none", "/models"),)))
    await podman.remove(container)


async def test_an_unknown_cdi_device_fails_at_the_start(podman: Podman, specs: Specs) -> None:
    container = await podman.create(specs("quiet", devices=("outrider.test/gpu=0",)))
    with pytest.raises(DeviceUnavailable, match=r"outrider\.test/gpu=0"):
        await podman.start(container)
    await podman.remove(container)


async def test_what_is_not_there(podman: Podman) -> None:
    for call in (podman.start("outrider-none"), podman.stop("outrider-none", 1), podman.kill("outrider-none")):
        with pytest.raises(ContainerMissing):
            await call
    assert await podman.inspect("outrider-none") is None
    assert await podman.image("localhost/outrider-none:1") is None
    assert await podman.image(ABSENT) is None
    assert await podman.remove_image("localhost/outrider-none:1") is False


async def test_images(podman: Podman, tiny_image: str, tiny_archive: Path, tmp_path: Path) -> None:
    found = await podman.image(tiny_image)
    assert found is not None
    assert found.id == tiny_image
    assert found.labels == {"io.outrider.test": "tiny"}
    assert found.size > 10_000
    assert found.digest is not None
    assert found.digest.startswith("sha256:")
    assert (await podman.image(found.names[0])) == found
    assert (await podman.load_image(tiny_archive)).id == tiny_image
    assert tiny_image in [image.id for image in await podman.images("io.outrider.test=tiny")]
    assert await podman.images("io.outrider.test=none") == ()

    junk = tmp_path / "junk.tar"
    junk.write_bytes(b"no image" * 1000)
    with pytest.raises(PodmanFailed):
        await podman.load_image(junk)
    with pytest.raises(FileNotFoundError):
        await podman.load_image(tmp_path / "none.tar")


async def test_an_image_in_use_is_not_removed(podman: Podman, started: Start, tiny_image: str) -> None:
    await started("quiet")
    with pytest.raises(PodmanFailed, match="in use"):
        await podman.remove_image(tiny_image)


async def test_containers_are_found_by_labels(podman: Podman, specs: Specs) -> None:
    owner = dict(specs("quiet").labels)
    both = await podman.create(specs("quiet", labels={**owner, "io.outrider.deployment": "a=b"}))
    one = await podman.create(specs("quiet", labels={**owner, "io.outrider.deployment": "other"}))

    async def ids(labels: dict[str, str]) -> set[str]:
        return {state.id for state in await podman.containers(labels)}

    # A daemon that cannot find its engines after a restart would start each of them twice.
    assert {both, one} <= await ids(owner)
    assert await ids({**owner, "io.outrider.deployment": "a=b"}) == {both}
    assert await ids({**owner, "io.outrider.deployment": "none"}) == set()
    for container in (both, one):
        await podman.remove(container)


async def test_a_container_that_vanishes_during_a_list_is_left_out(podman: Podman, specs: Specs) -> None:
    doomed = [await podman.create(specs("quiet")) for _ in range(4)]
    owner = dict(specs("quiet").labels)
    listing = asyncio.create_task(podman.containers(owner))
    await asyncio.gather(*(podman.remove(c) for c in doomed))
    found = await listing
    assert {state.state for state in found} <= {"created", "removing", "exited", "running"}
    assert not set(doomed) & {state.id for state in await podman.containers(owner)}


async def test_a_workload_that_ignores_sigterm_is_removed_at_once(podman: Podman, started: Start) -> None:
    container = await started("stubborn")  # its own stop timeout is 30 s
    begun = time.monotonic()
    assert await podman.remove(container) is True
    assert time.monotonic() - begun < 5


async def test_stop_kills_after_the_grace(podman: Podman, started: Start) -> None:
    container = await started("stubborn")
    begun = time.monotonic()
    await podman.stop(container, 0.5)
    assert time.monotonic() - begun < 5
    state = await podman.inspect(container)
    assert state is not None
    assert (state.state, state.exit_code) == ("exited", 137)


async def test_kill_says_whether_there_was_something(podman: Podman, started: Start) -> None:
    container = await started("talk")
    await spoken(podman, container)
    assert await podman.kill(container, "SIGTERM") is True

    async def ended() -> bool:
        state = await podman.inspect(container)
        return state is not None and state.state == "exited"

    await until(ended, 10)
    assert await podman.kill(container) is False


async def test_a_dead_conmon_and_a_dead_workload_are_seen(podman: Podman, started: Start) -> None:
    container = await started("quiet")
    state = await podman.inspect(container)
    assert state is not None
    assert state.conmon_pid is not None
    assert state.pid is not None
    os.kill(state.conmon_pid, signal.SIGKILL)
    await until(lambda: not proc.conmon_alive(state.conmon_pid, container), 5)
    orphan = await podman.inspect(container)
    assert orphan is not None
    assert (orphan.state, orphan.conmon_alive, orphan.alive) == ("running", False, True)

    os.kill(state.pid, signal.SIGKILL)
    await until(lambda: not proc.workload_alive(state.pid, state.conmon_pid, container), 5)
    dead = await podman.inspect(container)
    assert dead is not None
    assert (dead.state, dead.conmon_alive, dead.alive) == ("running", False, False)  # Podman never learns of it
    assert await podman.remove(container) is True
    assert not Path("/run/runc", container).exists()  # nor does its runtime remember it


async def test_a_mount_that_podman_does_not_know_does_not_keep_a_container(podman: Podman, specs: Specs) -> None:
    """A start that is cut off early leaves one; Podman removes all of it and says that it failed."""
    container = await podman.create(specs("quiet"))
    shm = Path("/var/lib/containers/storage/overlay-containers", container, "userdata/shm")
    shm.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "shm", shm], check=True, timeout=10)
    assert await podman.remove(container) is True
    assert await podman.inspect(container) is None
    assert not shm.exists()


async def test_a_deadline_is_kept_when_the_service_hangs(private_service: service.Service) -> None:
    podman = Podman(private_service.socket, call_timeout=0.4)
    await podman.ping()
    async with frozen(private_service.pid):
        begun = time.monotonic()
        calls = [podman.ping() for _ in range(20)]  # more than there are threads
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - begun < 3
        assert {type(r) for r in results} <= {PodmanTimeout, PodmanUnreachable}
        assert type(results[0]) is PodmanTimeout

    async def back() -> bool:
        with contextlib.suppress(PodmanTimeout, PodmanUnreachable):
            return await podman.ping()
        return False

    await until(back, 10)
    await podman.close()


async def test_the_client_outlives_the_service(
    private_service: service.Service, podman: Podman, started: Start
) -> None:
    container = await started("quiet")
    other = Podman(private_service.socket)
    assert await other.version() == await podman.version()
    assert private_service.pid is not None
    os.kill(private_service.pid, signal.SIGKILL)
    await until(lambda: service.running(private_service.run_dir) is None, 5)
    with pytest.raises(PodmanUnreachable):
        await other.ping()
    again = await service.own(private_service.run_dir, limit=20)
    assert (again.socket, again.own) == (private_service.socket, True)
    assert again.pid != private_service.pid
    state = await other.inspect(container)
    assert state is not None
    assert state.alive  # containers do not care for the service
    await other.close()


async def test_a_service_that_was_never_there(tmp_path: Path) -> None:
    podman = Podman(tmp_path / "none.sock")
    with pytest.raises(PodmanUnreachable, match=r"none\.sock"):
        await podman.containers({"a": "b"})
    await podman.close()

"""Podman caps the log of a container that prints and prints; what goes on reading it goes on."""

from __future__ import annotations

import json
from contextlib import aclosing
from pathlib import Path

import pytest

from containers import labels
from containers.errors import SpecRefused
from containers.podman import Podman
from containers.spec import ContainerSpec
from containers.validator import Rules, validate
from tests.housekeeping.conftest import remote
from tests.waiting import until

pytestmark = pytest.mark.real
LINES = 100_000
"""Some 5.5 MB with the times that Podman writes before each."""


async def test_a_chatty_container(podman_socket: str, tiny_image: str, podman_owner: str) -> None:
    spec = ContainerSpec(
        name=f"outrider-chatty-{podman_owner}",
        image=tiny_image,
        argv=("burst", str(LINES)),
        labels={labels.OWNER: podman_owner},
        log_bytes=65_536,
    )
    podman = Podman(podman_socket)
    try:
        container = await podman.create(spec)
        file = Path(json.loads(remote(podman_socket, "inspect", container))[0]["HostConfig"]["LogConfig"]["Path"])
        sizes: list[int] = []

        async def ended() -> bool:
            sizes.append(file.stat().st_size if file.exists() else 0)
            state = await podman.inspect(container)
            return state is not None and state.exit_code == 0

        await podman.start(container)
        await until(ended, 30, "the burst is over")
        assert max(sizes) <= spec.log_bytes
        assert 0 < file.stat().st_size <= spec.log_bytes
        assert [name.name for name in file.parent.iterdir() if name.name.startswith("ctr.log")] == ["ctr.log"]
        async with aclosing(podman.logs(container, tail=2)) as lines:
            assert [line.text async for line in lines] == [f"line {LINES - 2}", f"line {LINES - 1}"]
        async with aclosing(podman.logs(container, follow=True)) as lines:
            kept = [line.text async for line in lines]
        assert 100 < len(kept) < LINES
        assert kept[-1] == f"line {LINES - 1}"
        await podman.remove(container)
    finally:
        await podman.close()


@pytest.mark.parametrize("size", [0, -1, 65_535, True])
def test_a_log_without_a_cap_is_refused(size: int) -> None:
    image = "sha256:" + "0" * 64
    spec = ContainerSpec(name="outrider-x", image=image, argv=(), labels={labels.OWNER: "o"}, log_bytes=size)
    with pytest.raises(SpecRefused, match="log"):
        validate(spec, Rules(model_folders=()))

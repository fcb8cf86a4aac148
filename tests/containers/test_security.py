"""What the profiles come to, as the kernel tells it inside a real container."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from containers import security
from containers.errors import PodmanFailed
from containers.podman import Podman
from containers.spec import ENGINE_UID, CacheVolume, Mount
from tests.containers.test_streams import collect, has_ended
from tests.waiting import until

Start = Callable[..., Any]


async def report(podman: Podman, started: Start, **changes: Any) -> str:
    container = await started("report", **changes)
    await until(lambda: has_ended(podman, container), 10)
    state = await podman.inspect(container)
    assert state is not None
    assert state.exit_code == 0
    return "\n".join(line.text for line in await collect(podman.logs(container)))


def value(text: str, key: str) -> str:
    return next(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(key + ":"))


def options(text: str, path: str) -> list[str]:
    """The mount options of a path in the container."""
    lines = [line.split() for line in text.splitlines()]
    return next(words[3].split(",") for words in lines if len(words) == 6 and words[1] == path)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Mount, Mount]:
    """A model folder, and an engine's socket folder as the daemon makes it."""
    (tmp_path / "models").mkdir()
    (tmp_path / "engine").mkdir()
    (tmp_path / "models").chmod(0o777)  # it is the mount that must refuse writing, not the mode
    (tmp_path / "engine").chmod(0o777)
    return (
        Mount(str(tmp_path / "models"), "/models"),
        Mount(str(tmp_path / "engine"), "/run/engine", read_only=False),
    )


async def test_strict_from_inside(podman: Podman, started: Start, folders: tuple[Mount, Mount]) -> None:
    text = await report(podman, started, mounts=folders, groups=(44, 993), env={"LLAMA_API_KEY": "k"}, shm_size=1 << 20)
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(value(text, capabilities), 16) == 0
    assert value(text, "NoNewPrivs") == "1"
    assert value(text, "Seccomp") == "2"
    assert value(text, "Umask") == "0000"
    assert value(text, "Groups").split() == ["44", "993", str(ENGINE_UID)]
    assert f"uid {ENGINE_UID} gid {ENGINE_UID}" in text
    interfaces = [line.partition(":")[0].strip() for line in text.splitlines() if line.count(" 0 ") > 8 and ":" in line]
    assert interfaces == ["lo"]
    assert value(text, "write /file") == "Read-only file system"
    assert value(text, "write /models/file") == "Read-only file system"
    assert value(text, "write /tmp/file") == "ok"
    assert value(text, "write /run/engine/file") == "ok"
    assert value(text, "listen") == "ok"
    assert "size=65536k" in options(text, "/tmp")
    assert "nosuid" in options(text, "/tmp")
    assert "size=1024k" in options(text, "/dev/shm")
    assert "env LLAMA_API_KEY=k" in text

    socket = Path(folders[1].source) / "engine.sock"
    mode = socket.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o777  # the gateway's user, whoever that is, can connect
    assert socket.stat().st_uid == ENGINE_UID


async def test_a_relaxed_profile_differs_only_in_its_relaxations(
    podman: Podman, started: Start, folders: tuple[Mount, Mount]
) -> None:
    text = await report(podman, started, mounts=folders, profile="rocm")
    assert value(text, "Seccomp") == "0"
    assert value(text, "NoNewPrivs") == "1"
    assert int(value(text, "CapEff"), 16) == 0
    assert value(text, "write /file") == "Read-only file system"
    assert "env HOME=/tmp" in text

    text = await report(podman, started, mounts=(folders[0],), profile="vllm-cuda")
    assert value(text, "Seccomp") == "2"
    assert "noexec" not in options(text, "/tmp")  # compilers load what they built from there
    size = security.VLLM_CUDA.tmpfs[0].size
    assert f"size={size // 1024}k" in options(text, "/tmp")


async def test_the_host_lends_no_environment(podman: Podman, started: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://secret@proxy")
    text = await report(podman, started)
    assert "proxy" not in text
    names = {line.removeprefix("env ").partition("=")[0] for line in text.splitlines() if line.startswith("env ")}
    assert names <= {"PATH", "HOME", "HOSTNAME", "TERM", "container"}


async def test_a_cache_volume_stays_between_containers(podman: Podman, started: Start, podman_owner: str) -> None:
    cache = CacheVolume(f"outrider-t-{podman_owner}", "/cache")
    first = await started("report", caches=(cache,))
    await until(lambda: has_ended(podman, first), 10)
    text = "\n".join(line.text for line in await collect(podman.logs(first)))
    assert "rw" in options(text, "/cache")
    second = await started("quiet", caches=(cache,))
    assert await podman.remove(second)
    assert cache.name in await podman.volumes("outrider-t-")
    with pytest.raises(PodmanFailed, match=r"in use|being used"):
        await podman.remove_volume(cache.name)  # the first container is still there
    await podman.remove(first)
    assert await podman.remove_volume(cache.name) is True
    assert await podman.remove_volume(cache.name) is False
    assert cache.name not in await podman.volumes("outrider-t-")

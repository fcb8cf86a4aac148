"""Pulls through a real Podman from a real registry that misbehaves: what is said, and that nothing is left."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from containers import pull_errors, pull_leftovers, pulling
from containers.errors import OutriderError, PodmanUnreachable
from containers.logins import Login
from containers.podman import Podman
from containers.pulling import PullProgress
from containers.references import parse
from tests.images.conftest import CLOSED, Registries
from tests.images.registry import PASSWORD, USER, Faults, PodmanOfMine, layer, noise, paced, publish
from tests.waiting import until

TINY = parse("docker.io/outrider/tiny:1")
LIMIT = 20.0


async def said(podman: Podman, name: str, **more: object) -> OutriderError:
    """The error of a pull that must fail, printed."""
    with pytest.raises(OutriderError) as caught:
        await podman.pull(parse(name), **more)  # type: ignore[arg-type]
    error = caught.value
    print(f"{name}: error[{error.code}]: {error.detail}\n  hint: {error.hint}")
    assert error.hint
    return error


async def clean(mine: PodmanOfMine, podman: Podman, registries: Registries) -> None:
    """No image is in the storage and nothing in the temporary folder, and a good pull takes what layers there are.

    Podman keeps a layer that came whole before another failed, uses it in the next pull, and has no call
    that would remove it.
    """
    await until(lambda: not mine.left_over(), LIMIT, "the temporary folder is empty")
    assert mine.run("images", "-q", "-a") == ""
    if mine.layers():
        registries.proxy.faults = Faults()
        assert (await podman.pull(TINY)).id == registries.tiny.id
        mine.empty()
    assert mine.layers() == []
    assert mine.left_over() == []


async def test_an_image_comes_by_its_real_name_with_its_bytes(
    podman: Podman, registries: Registries, mine: PodmanOfMine
) -> None:
    seen: list[PullProgress] = []
    sizes = {registries.tiny.layers[0]: 1_000_000, registries.tiny.layers[1]: 50_000}
    info = await podman.pull(TINY, sizes=sizes, report=seen.append)
    assert info.names == ("docker.io/outrider/tiny:1",)
    assert info.id == registries.tiny.id
    assert f"docker.io/outrider/tiny@{registries.tiny.digest}" in info.digests
    assert info.architecture == "amd64"
    assert seen[-1].done == seen[-1].total == sum(sizes.values())
    assert mine.left_over() == []


async def test_a_slow_pull_says_how_many_bytes_are_here(
    podman: Podman, registries: Registries, mine: PodmanOfMine
) -> None:
    seen: list[tuple[float, PullProgress]] = []
    async with paced(registries.proxy, 400_000):
        await podman.pull(TINY, report=lambda p: seen.append((time.monotonic(), p)))
    bytes_seen = [p.done for _, p in seen]
    assert bytes_seen == sorted(bytes_seen)
    assert len({b for b in bytes_seen if b}) >= 2, "bytes rose in between"
    assert max(b - a for (a, _), (b, _) in pairwise(seen)) < 2.0


async def test_by_digest(podman: Podman, registries: Registries) -> None:
    info = await podman.pull(TINY.pinned(registries.tiny.digest))
    assert info.id == registries.tiny.id


FAULTS: list[tuple[str, Callable[[Faults], object], str]] = [
    ("docker.io/outrider/tiny:nope", lambda f: None, "not_offered"),
    ("docker.io/outrider/none:1", lambda f: None, "not_offered"),
    ("docker.io/outrider/tiny:1", lambda f: setattr(f, "status", 401), "auth_failed"),
    ("docker.io/outrider/tiny:1", lambda f: setattr(f, "status", 403), "auth_failed"),
    ("docker.io/outrider/tiny:1", lambda f: setattr(f, "status", 404), "not_offered"),
    ("docker.io/outrider/tiny:1", lambda f: setattr(f, "status", 500), "source_failed"),
    ("docker.io/outrider/tiny:1", lambda f: setattr(f, "cut_after", 300_000), "source_failed"),
    ("docker.io/outrider/tiny:1", lambda f: setattr(f, "half_manifest", True), "source_failed"),
    ("docker.io/outrider/tiny:1", lambda f: setattr(f, "corrupt", 0), "digest_mismatch"),
    ("docker.io/outrider/tiny:1", lambda f: setattr(f, "corrupt", 10_000), "digest_mismatch"),
    ("ghcr.io/outrider/tiny:1", lambda f: None, "auth_failed"),
    ("nowhere.invalid/outrider/tiny:1", lambda f: None, "source_failed"),
]


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: f"{case[0]} {case[2]}")
async def test_what_is_said(
    podman: Podman, mine: PodmanOfMine, registries: Registries, case: tuple[str, Callable[[Faults], object], str]
) -> None:
    name, spoil, code = case
    spoil(registries.proxy.faults)
    error = await said(podman, name)
    assert error.code == code
    assert error.evidence["image"] == str(parse(name))
    await clean(mine, podman, registries)


async def test_a_login_goes_to_its_registry_and_is_never_shown(
    podman: Podman, registries: Registries, mine: PodmanOfMine
) -> None:
    wrong = await said(podman, f"{CLOSED}/outrider/tiny:1", logins={registries.closed: Login(USER, "no-good")})
    assert wrong.code == "auth_failed"
    right = {registries.closed: Login(USER, PASSWORD)}
    await podman.pull(parse(f"{CLOSED}/outrider/tiny:1"), logins=right)
    mine.empty()
    # nobody else is shown it, though Podman has it
    await podman.pull(TINY, logins=right)
    assert registries.proxy.faults.logins == []
    assert PASSWORD not in repr(right)
    assert mine.left_over() == []


async def test_a_pull_that_is_cancelled_leaves_nothing(
    podman: Podman, registries: Registries, mine: PodmanOfMine
) -> None:
    faults = registries.proxy.faults
    async with paced(registries.proxy, 100_000):
        pull = asyncio.create_task(podman.pull(TINY))
        await until(lambda: faults.open > 0 and mine.left_over(), LIMIT, "bytes move")
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
        await until(lambda: faults.open == 0, LIMIT, "the registry is let go")
        await clean(mine, podman, registries)


async def test_a_service_that_is_killed_leaves_what_the_sweep_takes(
    podman: Podman, registries: Registries, mine: PodmanOfMine
) -> None:
    faults = registries.proxy.faults
    logins = {registries.proxy.where: Login("a", "b"), "other.invalid": Login("c", "d")}
    before = pull_leftovers.entries(mine.temporary)
    async with paced(registries.proxy, 100_000):
        pull = asyncio.create_task(podman.pull(TINY, logins=logins))
        await until(lambda: faults.open > 0 and len(mine.left_over()) == 2, LIMIT, "bytes move")
        during = pull_leftovers.find(mine.temporary, now=time.time() + 3600)  # noqa: TID251 - file times
        assert during == (), "what a pull in progress has is nobody else's"
        mine.kill()
        with pytest.raises(PodmanUnreachable):
            await pull
    mine.start()
    left = pull_leftovers.entries(mine.temporary) - before
    assert len(left) == 2, "layers and logins"
    assert pull_leftovers.sweep(mine.temporary, now=time.time()) == ()  # noqa: TID251 - it has not rested
    gone = pull_leftovers.sweep(mine.temporary, now=time.time(), rested=0, names=left)  # noqa: TID251
    assert {g.path.name for g in gone} == left
    await clean(mine, podman, registries)
    await podman.pull(TINY)
    assert mine.left_over() == []


def test_the_sweep_looks_at_names_owners_and_rest(tmp_path: Path) -> None:
    for name in ("storage1", "storage22", "storage", "storagefoo", "buildah9"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").write_bytes(b"x" * 5000)
    (tmp_path / "storage3").symlink_to(tmp_path / "buildah9")
    now = time.time()  # noqa: TID251 - file times
    assert pull_leftovers.find(tmp_path, now=now) == ()
    with (tmp_path / "storage22" / "1").open("rb"):
        found = pull_leftovers.sweep(tmp_path, now=now + 61)
    assert [f.path.name for f in found] == ["storage1"]
    assert found[0].size >= 5000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["buildah9", "storage", "storage22", "storage3", "storagefoo"]


async def test_a_full_disk_says_so_and_comes_back(registries: Registries, small_disk: Path) -> None:
    big = publish(registries.behind, "outrider/big", "1", [layer({"x": noise(24_000_000, 3)})])
    assert big.compressed > 20_000_000
    with PodmanOfMine({"docker.io": registries.behind}, root=small_disk / "root") as mine:
        podman = Podman(mine.socket)
        error = await said(podman, "docker.io/outrider/big:1")
        assert error.code == "disk_full"
        assert error.retryable
        await clean(mine, podman, registries)
        assert (await podman.pull(TINY)).id == registries.tiny.id, "the space is back and the service well"
        await podman.close()


async def test_a_folder_that_cannot_be_written(registries: Registries, small_disk: Path) -> None:
    with PodmanOfMine({"docker.io": registries.behind}, temporary=small_disk / "big") as mine:
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        podman = Podman(mine.socket)
        error = await said(podman, str(TINY))
        assert (error.code, error.retryable) == ("disk_read_only", False)
        subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
        assert (await podman.pull(TINY)).id == registries.tiny.id
        await podman.close()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("writing blob: adding layer: processing tar file(write /x: no space left on device): exit 1", "disk_full"),
        ("mkdir /var/tmp/storage1: read-only file system", "disk_read_only"),
        ("pinging container registry docker.io: too many requests to registry", "rate_limited"),
        ("reading manifest 1: toomanyrequests: You have reached your pull rate limit.", "rate_limited"),
        ("Get https://r/v2/: http: server gave HTTP response to HTTPS client", "source_failed"),
        ("Get https://r/v2/: tls: failed to verify certificate: x509: certificate signed by ...", "source_failed"),
        ("choosing image instance: no image found in manifest list for architecture amd64", "not_offered"),
        ("an error nobody has seen", "podman_failed"),
    ],
)
def test_words_of_podmans(text: str, code: str) -> None:
    assert pull_errors.classify(text, TINY).code == code


async def test_silence_ends_a_pull(podman: Podman, registries: Registries, mine: PodmanOfMine) -> None:
    held = asyncio.Event()

    async def hold(_sent: int) -> None:
        await held.wait()

    registries.proxy.faults.pace = hold
    with pytest.raises(OutriderError) as caught:
        await pulling.pull(mine.socket, TINY, silence=1.5)
    assert caught.value.code == "source_failed"
    assert "nothing has come" in caught.value.detail
    registries.proxy.faults.pace = None
    await clean(mine, podman, registries)


def test_only_layers_count_as_layers() -> None:
    """Podman names the configuration of an image as it names layers."""
    tally = pulling.Tally({"sha256:" + "a" * 64: 100, "sha256:" + "b" * 64: 50})
    for name in ("a" * 12, "c" * 12, "b" * 12):
        tally.feed({"id": name, "status": "Download complete"})
    assert tally.progress() == pulling.PullProgress(150, 150, 2, 2)

"""Pulls as jobs, pins, mirrors, logins, room: with a real Podman and a registry that a test can spoil."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from containers import references
from containers.errors import DiskFull, OutriderError
from containers.podman import Podman
from containers.references import parse
from orchestrator.config import ImageSettings
from orchestrator.errors import NotFound, Refused
from orchestrator.plan import Plan, Planned
from orchestrator.store import Store
from orchestrator.views import JobState
from tests.daemon.world import a_plan
from tests.images.conftest import Registries
from tests.images.desk import LIMIT, Desk, desk, finished
from tests.images.registry import (
    PASSWORD,
    USER,
    PodmanOfMine,
    layer,
    noise,
    paced,
    publish,
    publish_index,
)
from tests.waiting import until

NAME = "docker.io/outrider/tiny:1"
TINY = parse(NAME)


@pytest.fixture
async def own(
    tmp_path: Path, podman: Podman, mine: PodmanOfMine, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Desk]:
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(mine.registries))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "none.json"))
    async with desk(tmp_path, podman, [{"name": "tiny", "reference": "outrider/tiny:1", "machine": ["amd64"]}]) as it:
        yield it


async def failed(own: Desk, name: str) -> tuple[str, str]:
    """A pull that must fail: code and text of its job's error, printed."""
    job = await own.ended(own.images.pull(name, author="t"))
    assert job.state is JobState.FAILED
    assert job.error is not None
    print(f"{name}: error[{job.error.code}]: {job.error.text}\n  hint: {job.error.hint}")
    assert job.error.hint
    return job.error.code, job.error.text


# pulls


async def test_a_pull_is_a_job_with_bytes(own: Desk, registries: Registries) -> None:
    async with paced(registries.proxy, 600_000):
        job = own.images.pull("tiny", author="t")
        assert job.kind == "image_pull"
        assert job.subject == NAME
        await until(lambda: 0 < (own.jobs.get(job.id).done_bytes or 0) < 1_000_000, LIMIT, "bytes move")
        assert own.jobs.get(job.id).total_bytes == registries.tiny.layer_bytes, "the registry told"
    job = await own.ended(job)
    assert (job.state, job.detail) == (JobState.DONE, f"{NAME} is here")
    assert job.done_bytes == job.total_bytes
    (view,) = await own.images.list()
    assert (view.reference, view.id, view.digest) == (NAME, registries.tiny.id, registries.tiny.digest)
    assert view.catalogue == ("tiny",)
    assert view.needs is not None
    assert view.needs.machine == ("amd64",)
    assert await own.codes() == ["image_pull_started", "image_pulled"]


@pytest.mark.slow
async def test_many_wait_for_one_pull(own: Desk, registries: Registries) -> None:
    faults = registries.proxy.faults
    async with paced(registries.proxy, 400_000):
        one, two = (asyncio.create_task(own.images.fetch(NAME, by=by)) for by in ("a", "b"))
        job = own.images.pull(NAME, author="t")
        await until(lambda: faults.open, LIMIT, "bytes move")
        one.cancel()
        await asyncio.wait([one])
        assert own.jobs.get(job.id).state is JobState.RUNNING
        found = await two
    assert found is not None
    assert found.id == registries.tiny.id
    assert len(own.jobs.list()) == 1
    assert len([a for a in faults.asked if registries.tiny.layers[0] in a]) == 1


async def test_the_last_who_waits_takes_the_pull_along(own: Desk, mine: PodmanOfMine, registries: Registries) -> None:
    faults = registries.proxy.faults
    async with paced(registries.proxy, 100_000):
        waits = [asyncio.create_task(own.images.fetch(NAME, by=by)) for by in ("a", "b")]
        await until(lambda: faults.open, LIMIT, "bytes move")
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
        assert [j.state for j in own.jobs.list()] == [JobState.CANCELLED]
        await until(lambda: not faults.open and not mine.left_over(), LIMIT, "nothing is left")
    assert "image_pull_cancelled" in await own.codes()
    assert own.images.pulls.under_way() == []


async def test_who_asks_while_the_last_one_leaves_is_not_told_that_it_was_cancelled(
    own: Desk, registries: Registries
) -> None:
    async with paced(registries.proxy, 100_000):
        first = asyncio.create_task(own.images.fetch(NAME, by="a"))
        await until(lambda: registries.proxy.faults.open, LIMIT, "bytes move")
        first.cancel()
        second: list[asyncio.Task[object]] = []
        first_job = own.jobs.list()[0].id
        while own.jobs.get(first_job).state is JobState.RUNNING:
            second.append(asyncio.create_task(own.images.fetch(NAME, by="b")))
            await asyncio.sleep(0)
        registries.proxy.faults.pace = None
        found = await asyncio.gather(*second[2:])
    assert {getattr(image, "id", None) for image in found} == {registries.tiny.id}
    assert own.images.pulls.under_way() == []
    await asyncio.wait([first, *second])


async def test_a_job_that_is_cancelled_tells_the_start_that_waits(own: Desk, registries: Registries) -> None:
    async with paced(registries.proxy, 100_000):
        wait = asyncio.create_task(own.images.fetch(NAME, by="a"))
        await until(lambda: registries.proxy.faults.open, LIMIT, "bytes move")
        await own.jobs.cancel(own.jobs.list()[0].id)
        error = await finished(wait)
    assert (error.code, error.retryable) == ("cancelled", False)


async def test_a_registry_that_is_busy_is_asked_again_when_it_says(own: Desk, registries: Registries) -> None:
    faults = registries.proxy.faults
    faults.status, faults.retry_after, faults.refusals = 429, "0.2", 1
    job = await own.ended(own.images.pull(NAME, author="t"))
    assert job.state is JobState.DONE
    again = [e for e in await own.events() if e.code == "image_pull_again"]
    assert [e.evidence["error"] for e in again] == ["rate_limited"]


async def test_a_registry_that_wants_an_hour_is_not_waited_for(own: Desk, registries: Registries) -> None:
    registries.proxy.faults.status, registries.proxy.faults.retry_after = 429, "3600"
    error = await finished(asyncio.create_task(own.images.fetch(NAME, by="a")))
    assert (error.code, error.evidence["retry_after_s"], error.retryable) == ("rate_limited", 3600.0, True)
    assert len(registries.proxy.faults.asked) == 1, "Podman would have asked for a minute"


@pytest.mark.parametrize(("status", "code"), [(401, "auth_failed"), (403, "auth_failed"), (404, "not_offered")])
async def test_a_clear_no_is_not_asked_for_twice(own: Desk, registries: Registries, status: int, code: str) -> None:
    registries.proxy.faults.status = status
    assert (await failed(own, NAME))[0] == code
    assert "image_pull_again" not in await own.codes()
    assert own.images.pulls.under_way() == []


@pytest.mark.parametrize(
    "case",
    [
        ("cut_after", 300_000, "source_failed"),
        ("corrupt", 0, "digest_mismatch"),
        ("half_manifest", True, "source_failed"),
    ],
)
async def test_what_may_heal_is_tried_again_and_then_said(
    own: Desk, registries: Registries, mine: PodmanOfMine, case: tuple[str, object, str]
) -> None:
    fault, value, code = case
    setattr(registries.proxy.faults, fault, value)
    assert (await failed(own, NAME))[0] == code
    assert (await own.codes()).count("image_pull_again") == 3
    assert mine.left_over() == []
    setattr(registries.proxy.faults, fault, False if fault == "half_manifest" else None)
    assert (await own.ended(own.images.pull(NAME, author="t"))).state is JobState.DONE


async def test_a_podman_that_is_killed_meanwhile_is_pulled_with_again(
    own: Desk, registries: Registries, mine: PodmanOfMine
) -> None:
    async with paced(registries.proxy, 100_000):
        job = own.images.pull(NAME, author="t")
        await until(lambda: registries.proxy.faults.open and mine.left_over(), LIMIT, "bytes move")
        mine.kill()
        mine.start()
    assert (await own.ended(job)).state is JobState.DONE
    codes = await own.codes()
    assert "image_pull_again" in codes
    assert "image_leftovers_swept" in codes
    assert mine.left_over() == []
    mine.empty()
    assert mine.layers() == []


async def test_an_image_for_another_processor_is_not_kept(
    own: Desk, registries: Registries, mine: PodmanOfMine
) -> None:
    arm = publish(registries.behind, "outrider/arm", "1", [layer({"b": b"x"})], architecture="arm64")
    code, text = await failed(own, "docker.io/outrider/arm:1")
    assert code == "arch_mismatch"
    assert "is for arm64, and this host is amd64" in text
    assert mine.run("images", "-q") == ""
    publish_index(registries.behind, "outrider/arm", "index", {"arm64": arm})
    code, text = await failed(own, "docker.io/outrider/arm:index")
    assert code == "not_offered"
    assert "has no image for amd64; it has arm64" in text


def test_what_is_built_here_is_in_no_registry(own: Desk) -> None:
    with pytest.raises(Refused) as caught:
        own.images.pull("localhost/outrider/llama-cpu", author="t")
    assert caught.value.hint == "`outrider image build cpu` builds the embedded engine"


# room


async def test_a_disk_without_room_is_seen_before_a_byte_comes(
    tmp_path: Path, registries: Registries, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(registries.behind, "outrider/roomy", "1", [layer({"x": noise(8_000_000, 4)})])
    registries.proxy.faults.asked.clear()
    with PodmanOfMine({"docker.io": registries.proxy.where}, root=small_disk / "root") as mine:
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(mine.registries))
        podman = Podman(mine.socket)
        async with desk(tmp_path, podman) as own:
            error = await finished(asyncio.create_task(own.images.fetch("outrider/roomy:1", by="a")))
        await podman.close()
    assert (error.code, error.retryable) == ("disk_full", True)
    assert int(str(error.evidence["needed_bytes"])) == pytest.approx(8_000_000 * 2.5 * 1.1, rel=0.01)
    assert not [a for a in registries.proxy.faults.asked if "/blobs/" in a]


async def test_low_water_refuses_and_stops_pulls(own: Desk, registries: Registries) -> None:
    low = DiskFull("a disk is nearly full", hint="`outrider prune --dry-run`")
    async with paced(registries.proxy, 100_000):
        wait = asyncio.create_task(own.images.fetch(NAME, by="a"))
        await until(lambda: registries.proxy.faults.open, LIMIT, "bytes move")
        own.refusal = low
        await own.jobs.cancel(own.jobs.list()[0].id)
        assert await finished(wait) is low, "the start hears why, and is tried again"
    with pytest.raises(DiskFull):
        own.images.pull(NAME, author="t")


# logins


def auth_file(folder: Path, registry: str, secret: str) -> Path:
    file = folder / "auth.json"
    login = base64.b64encode(f"{USER}:{secret}".encode()).decode()
    file.write_text(json.dumps({"auths": {registry: {"auth": login}}}))
    return file


async def test_a_login_by_file(own: Desk, registries: Registries, tmp_path: Path, mine: PodmanOfMine) -> None:
    name = "ghcr.io/outrider/tiny:1"
    assert (await failed(own, name))[0] == "auth_failed"
    own.settings = ImageSettings(auth_file=str(auth_file(tmp_path, "ghcr.io", "wrong-horse")))
    assert (await failed(own, name))[0] == "auth_failed"
    own.settings = ImageSettings(auth_file=str(auth_file(tmp_path, "ghcr.io", PASSWORD)))
    assert (await own.ended(own.images.pull(name, author="t"))).state is JobState.DONE
    told = repr(await own.events()) + repr(own.jobs.list())
    for secret in (PASSWORD, "wrong-horse", base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()):
        assert secret not in told
    assert registries.proxy.faults.logins == [], "nobody else was shown it"
    assert mine.left_over() == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not there"),
        ("{", "is not in the form that `podman login` writes"),
        ('{"auths": {"ghcr.io": {"auth": "!!"}}}', "is garbled"),
        (
            json.dumps({"auths": {"ghcr.io": {"auth": base64.b64encode(b"u:s3cret\n").decode()}}}),
            "has a line break or another control character in it",
        ),
    ],
    ids=["missing", "no JSON", "garbled", "newline"],
)
async def test_a_bad_file_of_logins(own: Desk, tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "logins.json"
    if content is not None:
        file.write_text(content)
    own.settings = ImageSettings(auth_file=str(file))
    code, text = await failed(own, "ghcr.io/outrider/tiny:1")
    assert code == "auth_failed"
    assert words in text
    assert "s3cret" not in text + repr(await own.events())


# mirrors


async def test_a_mirror_of_ours_comes_first_and_the_name_stays(
    own: Desk, registries: Registries, mine: PodmanOfMine, podman: Podman
) -> None:
    layers = [layer({"a": noise(1_000_000, 1)}), layer({"b": noise(50_000, 2)})]
    publish(registries.behind, "hub/outrider/tiny", "1", layers)
    own.settings = ImageSettings(mirrors={"docker.io": f"{registries.behind}/hub"})
    job = await own.ended(own.images.pull(NAME, author="t"))
    assert job.state is JobState.DONE, job.error
    assert not [a for a in registries.proxy.faults.asked if "/blobs/" in a]
    info = await podman.image(NAME)
    assert info is not None
    assert info.id == registries.tiny.id
    assert await podman.image(f"docker.io/outrider/tiny@{registries.tiny.digest}") is not None

    # one that lacks the image, and one that is down, are passed over
    for mirror in (f"{registries.behind}/elsewhere", "127.0.0.1:1"):
        mine.empty()
        own.settings = ImageSettings(mirrors={"docker.io": mirror})
        assert (await own.ended(own.images.pull(NAME, author="t"))).state is JobState.DONE
    passed = [e.evidence["error"] for e in await own.events() if e.code == "image_place_passed"]
    assert passed == ["not_offered", "source_failed"]


async def test_a_mirror_of_podmans_own_settings(
    tmp_path: Path, registries: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = PodmanOfMine({})
    mine.registries.write_text(
        f"""
        [[registry]]
        prefix = "docker.io"
        location = "docker.io"
        [[registry.mirror]]
        location = "{registries.behind}"
        insecure = true
        """
    )
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(mine.registries))
    with mine:
        podman = Podman(mine.socket)
        async with desk(tmp_path, podman, [{"name": "tiny", "reference": NAME}]) as own:
            job = await own.ended(own.images.pull(NAME, author="t"))
            assert job.state is JobState.DONE, job.error
            assert job.total_bytes == registries.tiny.layer_bytes
            assert (await own.images.list())[0].reference == NAME
        await podman.close()


# pins


async def test_a_pin_says_what_a_name_means(own: Desk, registries: Registries, tmp_path: Path) -> None:
    pin = await own.images.pin("tiny", None, author="ann")
    assert (pin.reference, pin.digest, pin.author) == (NAME, registries.tiny.digest, "ann")
    named = own.images.named(Planned(planned("outrider/tiny:1")))
    assert named.plan is not None
    assert named.plan.image == f"docker.io/outrider/tiny@{registries.tiny.digest}"
    assert [r.code for r in named.plan.reasons] == ["image_pinned"]
    store = await Store.open(tmp_path / "images.db")
    assert [p.reference for p in await store.pins()] == [NAME]
    await store.close()

    # the tag moves; the pinned name still brings what it meant
    publish(registries.behind, "outrider/tiny", "1", [layer({"other": b"x"})])
    try:
        job = await own.ended(own.images.pull(NAME, author="t"))
        assert job.subject == f"docker.io/outrider/tiny@{registries.tiny.digest}"
        assert job.state is JobState.DONE
        (view,) = [v for v in await own.images.list() if v.id is not None]
        assert view.id == registries.tiny.id
        assert view.pinned == pin
    finally:
        republish(registries)
    await own.images.unpin(NAME, author="ann")
    with pytest.raises(NotFound):
        await own.images.unpin(NAME, author="ann")
    plan = planned("outrider/tiny:1")
    assert own.images.named(Planned(plan)).plan == plan


async def test_an_index_is_pinned_as_a_whole(own: Desk, registries: Registries) -> None:
    amd = publish(registries.behind, "outrider/both", "amd", [layer({"a": b"amd"})])
    arm = publish(registries.behind, "outrider/both", "arm", [layer({"a": b"arm"})], architecture="arm64")
    index = publish_index(registries.behind, "outrider/both", "1", {"arm64": arm, "amd64": amd})
    assert (await own.images.pin("outrider/both:1", None, author="t")).digest == index
    job = await own.ended(own.images.pull("outrider/both:1", author="t"))
    assert job.state is JobState.DONE, job.error
    (view,) = [v for v in await own.images.list() if v.id is not None]
    assert view.id == amd.id


async def test_a_pin_of_what_is_not_there(own: Desk, registries: Registries) -> None:
    for digest, code in (("sha256:" + "0" * 64, "not_offered"),):
        error = await finished(asyncio.create_task(own.images.pin(NAME, digest, author="t")))
        assert error.code == code
    for name in ("localhost/outrider/llama-cpu", f"docker.io/outrider/tiny@{registries.tiny.digest}"):
        with pytest.raises(Refused):
            await own.images.pin(name, None, author="t")
    with pytest.raises(OutriderError) as caught:
        await own.images.pin("Not A Name", None, author="t")
    assert caught.value.code == "image_unnamed"
    assert await own.store.pins() == []


async def test_a_pin_without_a_registry_takes_what_is_here(own: Desk, registries: Registries) -> None:
    await own.ended(own.images.pull(NAME, author="t"))
    registries.proxy.faults.status = 500
    assert (await own.images.pin(NAME, None, author="t")).digest == registries.tiny.digest
    assert (
        await finished(asyncio.create_task(own.images.pin("outrider/x:1", None, author="t")))
    ).code == "source_failed"


def planned(image: str) -> Plan:
    return dataclasses.replace(a_plan(), image=image)


def republish(registries: Registries) -> None:
    """The tag as the other tests expect it."""
    layers = [layer({"a": noise(1_000_000, 1)}), layer({"b": noise(50_000, 2)})]
    assert publish(registries.behind, "outrider/tiny", "1", layers).digest == registries.tiny.digest


# removal


async def test_only_what_outrider_brought_is_shown_and_removed(
    own: Desk, registries: Registries, mine: PodmanOfMine, podman: Podman
) -> None:
    publish(registries.behind, "somebody/theirs", "1", [layer({"b": b"theirs"})])
    publish(registries.behind, "somebody/ours", "1", [layer({"b": b"ours"})])
    await podman.pull(parse("docker.io/somebody/theirs:1"))
    await own.ended(own.images.pull("docker.io/somebody/ours:1", author="t"))
    here = [v.reference for v in await own.images.list() if v.id is not None]
    assert here == ["docker.io/somebody/ours:1"]
    with pytest.raises(NotFound):
        await own.images.remove("docker.io/somebody/theirs:1", force=True, author="t")
    await own.images.remove("docker.io/somebody/ours:1", force=False, author="t")
    assert mine.run("images", "--format", "{{.Repository}}").split() == ["docker.io/somebody/theirs"]


async def test_an_image_goes_when_nobody_needs_it(own: Desk, registries: Registries, mine: PodmanOfMine) -> None:
    await own.ended(own.images.pull(NAME, author="t"))
    await own.images.pin(NAME, None, author="ann")
    own.users["m"] = (True, [registries.tiny.id])
    for force in (False, True):
        with pytest.raises(Refused) as caught:
            await own.images.remove(NAME, force=force, author="t")
        assert "is used by m" in caught.value.detail
        assert caught.value.hint == "`outrider stop m` first"
    assert (await own.images.list())[0].used_by == ("m",)
    own.users["m"] = (False, [registries.tiny.id])
    with pytest.raises(Refused, match="is pinned to"):
        await own.images.remove("tiny", force=False, author="t")
    view = await own.images.remove("tiny", force=True, author="t")
    assert view.id == registries.tiny.id
    assert mine.layers() == []
    assert await own.store.pins() == []
    assert await own.store.pulled() == {}
    with pytest.raises(NotFound):
        await own.images.remove("tiny", force=False, author="t")
    (view,) = await own.images.list()
    assert (view.reference, view.id) == (NAME, None), "the catalogue's image that is not here"


def test_what_a_name_means() -> None:
    assert references.parse("vllm/vllm-openai:v1").exact == "docker.io/vllm/vllm-openai:v1"
    assert references.parse("alpine").exact == "docker.io/library/alpine:latest"
    assert references.parse("127.0.0.1:5000/a/b:1").name == "127.0.0.1:5000/a/b"
    assert references.parse("localhost/a").local
    both = references.parse("ghcr.io/a/b:1@sha256:" + "a" * 64)
    assert (both.tag, both.manifest) == ("1", "sha256:" + "a" * 64)
    for bad in ("", "A/b", "a b", "http://x/y", "x@sha256:12", "a" * 64, "../x", "-x/y", "x:", "x\n"):
        with pytest.raises(OutriderError):
            references.parse(bad)

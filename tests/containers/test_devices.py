"""How a container gets its devices, groups, shared memory and namespaces: real containers, and rules by version."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from containers import cdi, labels, payload, security
from containers.errors import DeviceUnavailable, GroupsUnmapped, SpecRefused
from containers.podman import Podman
from containers.spec import CacheVolume, ContainerSpec, Mount
from containers.validator import MOST_DEVICES, Rules, validate
from tests.containers.test_security import Start, report, value

KIND = "outrider.test/gpu"


async def inspected(podman_socket: str, container: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        *("podman", "--url", f"unix://{podman_socket}", "inspect", container),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 30)
    return json.loads(said)[0]


@pytest.fixture
def two_gpus() -> Iterator[tuple[str, ...]]:
    """A CDI file with two devices that exist here under other names, where every Podman looks for it."""
    file = Path("/var/run/cdi") / f"outrider-test-{os.getpid()}.json"
    nodes = {"0": "/dev/zero", "1": "/dev/full"}
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/fakegpu{name}", "hostPath": node}]}}
        for name, node in nodes.items()
    ]
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": KIND, "devices": devices}))
    yield tuple(f"{KIND}={name}" for name in nodes)
    file.unlink()


async def test_a_model_shared_by_two_gpus_gets_both(podman: Podman, started: Start, two_gpus: tuple[str, ...]) -> None:
    container = await started("quiet", devices=two_gpus)
    state = await podman.inspect(container)
    assert state is not None
    inside = Path(f"/proc/{state.pid}/root/dev")
    assert os.major((inside / "fakegpu0").stat().st_rdev) == 1
    assert (inside / "fakegpu1").stat().st_rdev == Path("/dev/full").stat().st_rdev
    assert not (inside / "dri").exists()


async def test_a_cdi_file_that_is_too_new_names_the_next_step(
    podman: Podman, specs: Any, two_gpus: tuple[str, ...]
) -> None:
    container = await podman.create(specs("quiet", devices=(f"{KIND}=7",)))
    try:
        with pytest.raises(DeviceUnavailable) as failed:
            await podman.start(container)
    finally:
        await podman.remove(container)
    version = await podman.version()
    newest = cdi.reads(version)
    assert newest is not None
    hint = failed.value.hint or ""
    assert newest in hint
    assert version in hint
    assert "outrider doctor" in hint


async def test_amd_nodes_come_with_the_numbers_of_their_groups(podman: Podman, started: Start) -> None:
    """/dev/kfd and a render node are nodes of a group; these two stand for them."""
    container = await started("quiet", devices=("/dev/zero", "/dev/full"), groups=(44, 993), profile="rocm")
    state = await podman.inspect(container)
    assert state is not None
    assert (Path(f"/proc/{state.pid}/root/dev/full")).stat().st_rdev == Path("/dev/full").stat().st_rdev
    status = Path(f"/proc/{state.pid}/status").read_text()
    assert {"44", "993"} <= set(value(status, "Groups").split())
    assert value(status, "Seccomp") == "0"
    assert int(value(status, "CapEff"), 16) == 0


async def test_nothing_of_the_host_is_shared(
    podman: Podman, started: Start, podman_socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await started("quiet", shm_size=3 << 20)
    state = await podman.inspect(container)
    assert state is not None
    for name in ("ipc", "pid", "uts", "net", "mnt"):
        assert os.readlink(f"/proc/{state.pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}"), name
    said = await inspected(podman_socket, container)
    assert said["HostConfig"]["ShmSize"] == 3 << 20
    assert said["HostConfig"]["Privileged"] is False


async def test_shared_memory_is_as_large_as_it_says(podman: Podman, started: Start) -> None:
    text = await report(podman, started, shm_size=16 << 30)
    assert f"size={16 << 20}k" in text


async def test_groups_without_root_are_kept_instead_of_given(
    podman: Podman, specs: Any, podman_socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This Podman is root's, so what a user's would be told is sent to it all the same; it takes the annotation."""
    monkeypatch.setattr(podman, "_owner", (True, "crun"))
    container = await podman.create(specs("quiet", groups=(44,)))
    try:
        said = await inspected(podman_socket, container)
        assert said["Config"]["Annotations"][payload.KEEP_GROUPS] == "1"
        assert not said["HostConfig"]["GroupAdd"]
    finally:
        await podman.remove(container)
    monkeypatch.setattr(podman, "_owner", (True, "runc"))
    with pytest.raises(GroupsUnmapped) as refused:
        await podman.create(specs("quiet", groups=(44,)))
    assert "crun" in (refused.value.hint or "")


async def test_how_this_podman_runs_is_asked_once(podman: Podman, specs: Any) -> None:
    container = await podman.create(specs("quiet", groups=(44,)))
    await podman.remove(container)
    assert podman._owner is not None
    assert podman._owner[0] is (os.geteuid() != 0)


@pytest.mark.parametrize(
    ("podman_version", "newest"),
    [
        ("4.0.3", None),
        ("4.1.0", "0.4.0"),
        ("4.3.1", "0.5.0"),
        ("4.6.2", "0.5.0"),
        ("4.9.3", "0.6.0"),
        ("5.0.0", "0.6.0"),
        ("5.1.0", "0.7.0"),
        ("5.4.2", "0.8.0"),
        ("5.5.0", "1.0.0"),
        ("6.0.0-rc1", "1.1.0"),
        ("", None),
        (None, None),
        ("latest", None),
    ],
)
def test_which_cdi_a_podman_reads(podman_version: str | None, newest: str | None) -> None:
    assert cdi.reads(podman_version) == newest
    if podman_version:
        assert ("4.3 or later" in cdi.hint(podman_version)) is (newest is None)


@pytest.mark.parametrize(
    ("name", "is_cdi"),
    [("nvidia.com/gpu=0", True), ("nvidia.com/gpu=all", True), ("/dev/kfd", False), ("/dev/dri/renderD128", False)],
)
def test_names_and_nodes(name: str, is_cdi: bool) -> None:
    assert cdi.is_cdi(name) is is_cdi


SPEC = ContainerSpec(name="outrider-a", image=f"sha256:{'0' * 64}", argv=(), labels={labels.OWNER: "0" * 16})
NVIDIA = tuple(f"nvidia.com/gpu={number}" for number in range(2))
AMD = ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129")


@pytest.mark.parametrize("devices", [NVIDIA, AMD, (*NVIDIA, *AMD), ("nvidia.com/gpu=all",), ()])
def test_several_devices_pass(devices: tuple[str, ...]) -> None:
    validate(replace(SPEC, devices=devices), Rules(model_folders=()))


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ((NVIDIA[0], NVIDIA[0]), "twice"),
        (("nvidia.com/gpu=all", NVIDIA[0]), "all devices"),
        (("/dev/dri",), "no rule"),
        (("/dev/dri/card0",), "no rule"),
        (("/dev/nvidia0",), "no rule"),
        (("/dev/mem",), "no rule"),
        ((f"{NVIDIA[0]}:rw",), "no rule"),
        (tuple(f"/dev/dri/renderD{number}" for number in range(128, 129 + MOST_DEVICES)), "more than"),
    ],
)
def test_other_devices_are_refused(devices: tuple[str, ...], why: str) -> None:
    with pytest.raises(SpecRefused, match=why):
        validate(replace(SPEC, devices=devices), Rules(model_folders=()))


@pytest.mark.parametrize("profile", security.PROFILES.values(), ids=lambda profile: profile.name)
def test_each_step_away_from_strict_says_why_and_who_taught_it(profile: security.Profile) -> None:
    assert all(r.what and r.reason and r.source for r in profile.relaxations)
    assert all(w.what and w.instead and w.source for w in profile.withheld)
    told = " ".join(r.what for r in profile.relaxations)
    assert (profile.seccomp is None) is ("seccomp" not in told)
    assert (profile.tmpfs == security.STRICT.tmpfs) is ("temporary folder" not in told)
    assert not profile.cap_add
    assert not profile.root_user
    words = security.keywords(profile)
    assert "SELinux" in told
    assert words["security_opt"] == ["disable"]  # not `label=disable`, and no seccomp in it: both are ignored
    assert words["cap_drop"] == ["ALL"]
    assert words.get("seccomp_profile_path") == profile.seccomp


def test_user_paths_are_never_relabelled() -> None:
    """A `z` or `Z` would rewrite the labels of a user's folder, and of everything in it."""
    spec = replace(
        SPEC,
        mounts=(Mount("/srv/models", "/models"), Mount("/run/outrider/e", "/run/engine", read_only=False)),
        caches=(CacheVolume("outrider-c", "/cache"),),
    )
    words = payload.create_keywords(spec)
    assert all("relabel" not in mount and "extended_mode" not in mount for mount in words["mounts"])
    assert words["volumes"] == {"outrider-c": {"bind": "/cache", "mode": "rw"}}

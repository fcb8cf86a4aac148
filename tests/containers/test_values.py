"""Labels, errors, `/proc` and Podman's JSON: values in, values out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from podman.errors import APIError

from containers import failures, labels, payload, proc, security
from containers.errors import (
    ContainerMissing,
    DeviceUnavailable,
    ImageMissing,
    NameInUse,
    PodmanFailed,
    PodmanTimeout,
    PodmanUnreachable,
    SpecRefused,
)
from containers.spec import CacheVolume, ContainerSpec, Mount, Network

IDENT = "ab" * 32
TEXT = st.text(max_size=30)


LABELS = st.builds(
    labels.Labels,
    deployment=TEXT,
    generation=st.integers(0, 10**6),
    plan=TEXT,
    host=TEXT,
    owner=TEXT,
    plan_json=TEXT,
    engine=st.from_regex(r"\A[0-9a-f]{16}\Z"),
)


@given(LABELS)
def test_labels_come_back_as_they_went(written: labels.Labels) -> None:
    assert labels.read(labels.write(written)) == written
    assert set(labels.write(written)) == labels.KEYS


@pytest.mark.parametrize(
    "change",
    [{labels.GENERATION: "-1"}, {labels.GENERATION: "\u0661"}, {labels.GENERATION: ""}, {labels.ENGINE: "../x"}],
)
def test_malformed_labels_are_not_an_engine(change: dict[str, str]) -> None:
    good = labels.write(labels.Labels("m", 1, "p", "h", "o", "{}", "0" * 16))
    assert labels.read(good) is not None
    assert labels.read(good | change) is None
    assert labels.read({k: v for k, v in good.items() if k != labels.PLAN_JSON}) is None


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (
            500,
            'creating container storage: the container name "x" is already in use by abc: that name is already in use',
            NameInUse,
        ),
        (409, 'name "x" is in use: container already exists: name is in use', NameInUse),
        (500, "localhost/x:1: image not known", ImageMissing),
        (404, "no such image: unable to find a name and tag match for x", ImageMissing),
        (404, 'no container with name or ID "x" found: no such container', ContainerMissing),
        (500, "getting container x: container not known", ContainerMissing),
        (500, "setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=0", DeviceUnavailable),
        (500, 'failed to stat CDI host device "/dev/nvidia9": no such file or directory', DeviceUnavailable),
        (500, "stat /dev/kfd: no such file or directory", DeviceUnavailable),
        (500, "statfs /srv/models: no such file or directory", PodmanFailed),
        (500, "OCI runtime error: crun: something", PodmanFailed),
    ],
)
def test_podmans_words_become_errors(status: int, text: str, kind: type[Exception]) -> None:
    error = failures.refused(status, text, "doing it")
    assert type(error) is kind
    assert text in error.detail
    assert error.evidence == {"status": status}


def test_errors_of_the_transport() -> None:
    def wrapped(cause: Exception) -> APIError:
        try:
            raise APIError("http://x") from cause
        except APIError as error:
            return error

    timeout = failures.translate(wrapped(requests.ReadTimeout()), "doing it", "/s", 3)
    assert type(timeout) is PodmanTimeout
    assert "3 s" in timeout.detail
    assert type(failures.translate(wrapped(requests.ConnectionError()), "doing it", "/s", 3)) is PodmanUnreachable
    assert type(failures.translate(ConnectionResetError(), "doing it", "/s", 3)) is PodmanUnreachable


class Tree:
    """A `/proc` of processes that never were."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(
        self, pid: int, parent: int, command: str, *, state: str = "S", args: str = "", cgroup: str = "0::/x"
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        after = " ".join(["0"] * 17)
        (folder / "stat").write_text(f"{pid} ({command}) {state} {parent} {after} 777 0 0\n")
        (folder / "cmdline").write_bytes("\0".join(args.split()).encode() + b"\0" if args else b"")
        (folder / "cgroup").write_text(cgroup + "\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def inspected(**state: Any) -> dict[str, Any]:
    """What Podman 4 and 5 answer, as far as it is read."""
    return {
        "Id": IDENT,
        "Name": "outrider-x",
        "Image": "cd" * 32,
        "Config": {"Labels": {"a": "b"}},
        "State": {
            "Status": "running",
            "Pid": 20,
            "ConmonPid": 10,
            "ExitCode": 0,
            "StartedAt": "2026-11-29T18:00:00.123456789Z",
            **state,
        },
    }


def test_a_running_container(tree: Tree) -> None:
    tree.add(10, 1, "conmon", args=f"conmon -c {IDENT}")
    tree.add(20, 10, "a (name) with) brackets")
    state = payload.container_state(inspected(), root=tree.root)
    assert (state.alive, state.conmon_alive, state.pid, state.conmon_pid) == (True, True, 20, 10)
    assert state.image_id == "sha256:" + "cd" * 32
    assert state.exit_code is None
    assert state.started_at == pytest.approx(1795975200.123456)
    found = proc.process(20, root=tree.root)
    assert found is not None
    assert (found.command, found.start) == ("a (name) with) brackets", 777)


def test_podman_says_running_and_proc_knows_better(tree: Tree) -> None:
    nobody = payload.container_state(inspected(), root=tree.root)
    assert (nobody.state, nobody.alive, nobody.conmon_alive) == ("running", False, False)

    tree.add(10, 1, "conmon", state="Z", args=f"conmon -c {IDENT}")
    tree.add(20, 10, "engine", state="Z")
    zombies = payload.container_state(inspected(), root=tree.root)
    assert (zombies.alive, zombies.conmon_alive) == (False, False)

    tree.add(10, 1, "sh", args="sh -c something")
    tree.add(20, 1, "cron")
    strangers = payload.container_state(inspected(), root=tree.root)  # both pids were given out again
    assert (strangers.alive, strangers.conmon_alive) == (False, False)

    tree.add(20, 1, "engine", cgroup=f"0::/machine.slice/libpod-{IDENT}.scope")
    orphan = payload.container_state(inspected(), root=tree.root)
    assert (orphan.alive, orphan.conmon_alive) == (True, False)

    tree.add(20, 1, "conmon", cgroup=f"0::/machine.slice/libpod-conmon-{IDENT}.scope")
    assert not payload.container_state(inspected(), root=tree.root).alive


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [("exited", 137, 137), ("stopped", 1, 1), ("running", 0, None), ("created", 0, None), ("stopping", 0, None)],
)
def test_an_exit_code_counts_only_at_the_end(tree: Tree, status: str, code: int, expected: int | None) -> None:
    data = inspected(Status=status, ExitCode=code, Pid=0, ConmonPid=0, StartedAt="0001-01-01T00:00:00Z")
    state = payload.container_state(data, root=tree.root)
    assert (state.exit_code, state.pid, state.conmon_pid, state.started_at) == (expected, None, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T00:00:01.5Z", 1.5),
        ("1970-01-01T01:00:00.123456789+01:00", 0.123456),
        ("0001-01-01T00:00:00Z", None),
        ("", None),
    ],
)
def test_podmans_times(text: str, seconds: float | None) -> None:
    assert payload.unix_time(text) == seconds


def test_a_spec_in_podman_pys_words() -> None:
    spec = ContainerSpec(
        name="outrider-x",
        image="sha256:" + "0" * 64,
        argv=("-m", "x"),
        env={"A": "b"},
        mounts=(Mount("/srv/m", "/models"),),
        caches=(CacheVolume("outrider-c", "/cache"),),
        devices=("nvidia.com/gpu=0",),
        groups=(44,),
        network=Network.BRIDGE,
        host_port=17001,
        container_port=8000,
        profile="vllm-cuda",
        stop_timeout=9.2,
    )
    words = payload.create_keywords(spec)
    assert words["ports"] == {"8000/tcp": ("127.0.0.1", 17001)}  # never 0.0.0.0
    assert words["environment"] == {"HOME": "/tmp", "A": "b"}
    assert words["group_add"] == ["44"]
    assert words["stop_timeout"] == 10
    assert {m["target"]: m.get("read_only") for m in words["mounts"]} == {"/tmp": None, "/models": True}
    assert "mem_limit" not in words
    assert "ulimits" not in words  # any of ours would drop all of the host's
    assert payload.create_keywords(replace(spec, env={"HOME": "/x"}))["environment"]["HOME"] == "/x"
    with pytest.raises(SpecRefused, match="loose"):
        payload.create_keywords(replace(spec, profile="loose"))
    assert set(security.PROFILES) == {"strict", "vllm-cuda", "rocm"}

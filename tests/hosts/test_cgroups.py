"""From a process to its container, by the names that Podman, Docker and Kubernetes give control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from containers import labels
from containers.podman import Podman
from containers.spec import ContainerSpec
from hosts.cgroups import ContainerSample, container_memory, container_of, container_of_pid
from hosts.roots import Roots
from tests.hosts.trees import Tree, write

ID = "4f" * 32
OTHER = "a0" * 32

NAMES = [
    f"0::/machine.slice/libpod-{ID}.scope/container\n",  # Podman 4 and 5, systemd, control groups v2
    f"0::/machine.slice/libpod-{ID}.scope\n",
    f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container\n",  # rootless
    f"0::/libpod_parent/libpod-{ID}\n",  # cgroupfs
    f"12:memory:/libpod_parent/libpod-{ID}\n1:name=systemd:/libpod_parent/libpod-{ID}\n0::/\n",  # v1
    f"9:name=systemd:/\n4:memory:/libpod_parent/libpod-{ID}\n0::/\n",
    f"11:devices:/\n5:memory:/machine.slice/libpod-{ID}.scope\n0::/system.slice/podman.service\n",
    f"0::/machine.slice/machine-libpod_pod_{OTHER}.slice/libpod-{ID}.scope\n",  # in a pod
    f"0::/docker/{OTHER}/libpod_parent/libpod-{ID}\n",  # Podman in a container: the inner one
    f"0::/system.slice/docker-{ID}.scope\n",
    f"4:memory:/docker/{ID}\n",
    f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n",
    f"4:memory:/kubepods/burstable/pod1/{ID}\n",
    f"0::/kubepods.slice/crio-{ID}.scope\n",
]


@pytest.mark.parametrize("text", NAMES)
def test_names_of_containers(text: str) -> None:
    assert container_of(text) == ID


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "0::/\n",
        "0::/user.slice/user-1000.slice/session-2.scope\n",
        f"0::/machine.slice/libpod-conmon-{ID}.scope\n",
        f"0::/libpod_parent/conmon\n4:memory:/libpod_parent/libpod-conmon-{ID}\n",
        f"0::/machine.slice/libpod_pod_{ID}\n",
        "0::/machine.slice/libpod-abc.scope\n",
        f"0::/home/{ID}\n",
        f"0:/libpod-{ID}\nlibpod-{ID}\n::\n",
        "\xff\n::::\n",
    ],
)
def test_processes_of_the_host_are_in_none(text: str | None) -> None:
    assert container_of(text) is None


def test_memory_by_control_groups_v2(tree: Tree) -> None:
    write(tree.base / "proc/77/cgroup", NAMES[0])
    folder = tree.base / f"sys/fs/cgroup/machine.slice/libpod-{ID}.scope"
    write(folder / "memory.current", "5368709120\n")
    write(folder / "memory.stat", "anon 1073741824\nfile 4294967296\n")
    write(folder / "container/memory.current", "1\n")  # a part of it
    assert container_of_pid(tree.roots, 77) == ID
    assert container_memory(tree.roots, ID, 77) == ContainerSample(5368709120, 1073741824)


def test_memory_by_control_groups_v1(tree: Tree) -> None:
    write(tree.base / "proc/77/cgroup", NAMES[6])
    folder = tree.base / f"sys/fs/cgroup/memory/machine.slice/libpod-{ID}.scope"
    write(folder / "memory.usage_in_bytes", "4096\n")
    write(folder / "memory.stat", "cache 1\nrss 5\ntotal_cache 10\ntotal_rss 2048\n")
    assert container_memory(tree.roots, ID, 77) == ContainerSample(4096, 2048)


def test_the_most_that_its_processes_had(tree: Tree) -> None:
    """The kernel keeps each process's high-water mark; those of the group below, as crun makes one, count too."""
    scope = f"/machine.slice/libpod-{ID}.scope"
    write(tree.base / "proc/77/cgroup", f"0::{scope}/container\n")
    folder = tree.base / f"sys/fs/cgroup{scope}"
    write(folder / "memory.current", "4096\n")
    write(folder / "cgroup.procs", "")
    write(folder / "container/cgroup.procs", "77\n78\n79\n0\nx\n")
    write(tree.base / "proc/77/status", "Name:\tx\nVmHWM:\t    1000 kB\nVmRSS:\t 1 kB\n")
    write(tree.base / "proc/78/status", "Name:\tx\nVmHWM:\t 24 kB\n")
    write(tree.base / "proc/79/status", "Name:\tkernel thread\nVmHWM:\t many kB\n")
    assert container_memory(tree.roots, ID, 77) == ContainerSample(4096, None, 1024 * 1024)


def test_a_process_that_is_gone_or_another_by_now_says_nothing(tree: Tree) -> None:
    assert container_of_pid(tree.roots, 77) is None
    assert container_memory(tree.roots, ID, 77) is None
    write(tree.base / "proc/77/cgroup", f"0::/machine.slice/libpod-{OTHER}.scope\n")
    assert container_memory(tree.roots, ID, 77) is None
    write(tree.base / "proc/77/cgroup", NAMES[0])
    assert container_memory(tree.roots, ID, 77) == ContainerSample(None, None)  # no memory controller
    path = tree.base / f"sys/fs/cgroup/machine.slice/libpod-{ID}.scope"
    path.mkdir(parents=True)
    os.mkfifo(path / "memory.current")
    assert container_memory(tree.roots, ID, 77) == ContainerSample(None, None)


def test_names_do_not_lead_out_of_the_tree(tree: Tree, tmp_path: Path) -> None:
    write(tmp_path / "etc/memory.current", "7\n")
    write(tree.base / "proc/77/cgroup", f"0::/../../../../../../etc/libpod-{ID}\n")
    assert container_memory(tree.roots, ID, 77) == ContainerSample(None, None)


async def test_a_container_of_this_machines_podman(podman_socket: str, tiny_image: str, podman_owner: str) -> None:
    podman = Podman(podman_socket)
    spec = ContainerSpec(
        name=f"outrider-t-{podman_owner[:8]}-cgroup",
        image=tiny_image,
        argv=("quiet",),
        labels=labels.owned_by(podman_owner),
    )
    try:
        made = await podman.create(spec)
        await podman.start(made)
        state = await podman.inspect(made)
        assert state is not None
        assert state.pid is not None
        assert container_of_pid(Roots(), state.pid) == made
        sample = container_memory(Roots(), made, state.pid)
        assert sample is not None
        assert sample.memory is not None
        assert 0 < sample.memory < 1 << 30
        assert sample.peak is not None
        assert 0 < sample.peak < 1 << 30
        assert state.conmon_pid is not None
        assert container_of_pid(Roots(), state.conmon_pid) is None
        await podman.remove(made)
        assert container_memory(Roots(), made, state.pid) is None
    finally:
        await podman.close()

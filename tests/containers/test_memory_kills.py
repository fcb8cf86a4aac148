"""What control groups and Podman say of the kernel's kills, as recorded, and for real."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from containers import memory_kills, payload
from containers.memory_kills import MemoryKills

ID = "d3449a3872310bddad8e102b8ca32a2cf35dba8c2299a8c374a915b62560bdfd"
V1 = f"""16:net_cls,net_prio:/libpod_parent/libpod-{ID}
4:memory:/libpod_parent/libpod-{ID}
1:cpu:/libpod_parent/libpod-{ID}
0::/libpod_parent/libpod-{ID}
"""
"""Mixed groups: memory is counted in v1's."""
V2 = f"0::/machine.slice/libpod-{ID}.scope/container\n"
"""crun makes a group of its own below the container's."""
EVENTS = "low 0\nhigh 0\nmax 212\noom {oom}\noom_kill {kills}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def told(tmp_path: Path, cgroup: str) -> Path | None:
    write(tmp_path / "proc" / "7", {"cgroup": cgroup})
    return memory_kills.group_of(7, root=tmp_path / "proc", groups=tmp_path / "groups")


@pytest.mark.parametrize(
    ("oom", "kills", "expected"),
    [(0, 0, (0, False)), (1, 1, (1, True)), (0, 1, (1, False)), (3, 2, (2, True))],
    ids=["none", "its own limit", "the machine", "two"],
)
def test_groups_v2(tmp_path: Path, oom: int, kills: int, expected: tuple[int, bool]) -> None:
    group = told(tmp_path, V2)
    assert group == tmp_path / f"groups/machine.slice/libpod-{ID}.scope", "which has the limit"
    write(group, {"memory.events": EVENTS.format(oom=oom, kills=kills)})
    assert memory_kills.read(group) == MemoryKills(*expected, "memory.events")


@pytest.mark.parametrize(
    ("failed", "swap_failed", "kills", "expected"),
    [(0, 0, 0, (0, False)), (4108, 0, 1, (1, True)), (0, 3, 1, (1, True)), (0, 0, 1, (1, False))],
)
def test_groups_v1(tmp_path: Path, failed: int, swap_failed: int, kills: int, expected: tuple[int, bool]) -> None:
    group = told(tmp_path, V1)
    assert group == tmp_path / f"groups/memory/libpod_parent/libpod-{ID}"
    counted = {"memory.failcnt": f"{failed}\n", "memory.memsw.failcnt": f"{swap_failed}\n"}
    write(group, {"memory.oom_control": CONTROL.format(kills=kills), **counted})
    assert memory_kills.read(group) == MemoryKills(*expected, "memory.oom_control")


@pytest.mark.parametrize(
    "cgroup",
    ["", "0::/\n", "0::/user.slice/session-1.scope\n", f"0::/../../libpod-{ID}\n", "nonsense", f"5:cpu:/libpod-{ID}\n"],
)
def test_what_is_in_no_container_of_podmans_has_no_group(tmp_path: Path, cgroup: str) -> None:
    assert told(tmp_path, cgroup) is None


def test_a_group_that_has_gone_or_does_not_count_says_nothing(tmp_path: Path) -> None:
    assert memory_kills.read(None) is None
    assert memory_kills.read(tmp_path / "gone") is None
    write(tmp_path / "old", {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"})  # before Linux 4.13
    assert memory_kills.read(tmp_path / "old") is None
    write(tmp_path / "odd", {"memory.events": "oom_kill many\n\n"})
    assert memory_kills.read(tmp_path / "odd") is None
    assert memory_kills.group_of(0) is None


@pytest.mark.parametrize(
    ("word", "expected"), [({"OOMKilled": True}, True), ({"OOMKilled": False}, False), ({}, False)]
)
def test_podmans_word(word: dict[str, bool], expected: bool) -> None:
    """The state that Podman 4.3.1 gave of a container that the kernel had ended, but for the one word."""
    state = {
        "OciVersion": "1.0.2-dev",
        "Status": "exited",
        "Running": False,
        "Pid": 0,
        "ExitCode": 128 + signal.SIGKILL,
        "Error": "",
        "StartedAt": "2026-11-30T08:33:11.665224094Z",
        "FinishedAt": "2026-11-30T08:33:11.771976488Z",
        **word,
    }
    found = payload.container_state({"Id": ID, "Name": "m-1", "Image": "ab" * 32, "State": state})
    assert (found.exit_code, found.oom_killed) == (137, expected)


def test_this_process_is_in_no_container_of_podmans() -> None:
    assert memory_kills.group_of(os.getpid()) is None

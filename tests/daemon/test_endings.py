"""Why an engine ended: its log first, else what its exit code says, and always the next step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from containers.memory_kills import MemoryKills
from containers.ports import Ports
from containers.spec import ContainerState, LogLine
from orchestrator.admission import Admission
from orchestrator.clock import SystemClock
from orchestrator.engine import Engine
from orchestrator.gateway_link import GatewayLink
from orchestrator.paths import find
from orchestrator.plan import Limits
from orchestrator.profiles import load
from orchestrator.runner import Identity, Runner
from orchestrator.timing import Timing
from tests.daemon.world import a_plan, marks_in


class Ended:
    """In Podman's place: one container that has ended."""

    def __init__(self, code: int, words: str, *, oom_killed: bool = False) -> None:
        state = ContainerState("c", "m-1", "exited", {}, "sha256:0", None, None, False, False, code, None)
        self.state = replace(state, oom_killed=oom_killed)
        self.words = words

    async def inspect(self, container: str) -> ContainerState:
        return self.state

    async def logs(self, container: str, *, tail: int, follow: bool) -> AsyncIterator[LogLine]:
        for line in self.words.splitlines():
            yield LogLine("stderr", line)

    async def remove(self, container: str) -> bool:
        return True


def runner_with(folder: Path, podman: Ended, **more: Any) -> Runner:
    clock, timing, paths = SystemClock(), Timing(), find(state_dir=folder)
    made: dict[str, Any] = {"podman": podman, "paths": paths, "clock": clock, "timing": timing}
    return Runner(
        **made,
        identity=Identity("owner", "host"),
        admission=Admission(lambda: load("dankclaw")),
        model_folders=tuple,
        gateway=GatewayLink(paths.gateway_socket, clock, timing),
        ports=Ports(clock.now),
        log_bytes=lambda: 65536,
        marks=marks_in(folder / "loading"),
        **more,
    )


@pytest.mark.parametrize(
    ("code", "words", "kind", "retryable"),
    [
        (137, "", "engine_killed", True),
        (132, "", "cpu_unsupported", False),
        (1, "error: the embedded engine needs a CPU with avx2; this one lacks avx2", "cpu_unsupported", False),
        (137, "gguf_init_from_file: invalid magic", "model_unreadable", False),
        (7, "some last words", "engine_exited", True),
        (7, "", "engine_exited", True),
    ],
)
async def test_why_an_engine_ended(tmp_path: Path, code: int, words: str, kind: str, retryable: bool) -> None:
    runner = runner_with(tmp_path, Ended(code, words))
    engine = Engine("0" * 16, "m", 1, a_plan(), "key", None, None, 0.0, container_id="c")
    error = await runner.why_it_ended(engine)
    assert (error.code, error.retryable) == (kind, retryable)
    assert error.hint
    assert error.evidence["exit_code"] == code
    assert words in error.detail


@pytest.mark.parametrize(
    ("counted", "oom_killed", "limit", "expected"),
    [
        (None, True, 1 << 30, ("cgroup_out_of_memory", "podman")),
        (None, True, None, ("host_out_of_memory", "podman")),
        (None, False, 1 << 30, ("engine_killed", None)),
        (MemoryKills(1, True, "memory.oom_control"), False, 1 << 30, ("cgroup_out_of_memory", "memory.oom_control")),
        (MemoryKills(0, False, "memory.events"), True, 1 << 30, ("engine_killed", None)),
    ],
    ids=["podman knows", "podman knows of no limit", "nobody knows", "podman missed it", "the group knows better"],
)
async def test_who_knows_of_a_kill_for_want_of_memory(
    tmp_path: Path, counted: MemoryKills | None, oom_killed: bool, limit: int | None, expected: tuple[str, str | None]
) -> None:
    runner = runner_with(tmp_path, Ended(137, "loading", oom_killed=oom_killed))
    plan = replace(a_plan(), limits=Limits(memory=limit))
    engine = Engine("0" * 16, "m", 1, plan, "key", None, None, 0.0, container_id="c", kills=counted)
    error = await runner.why_it_ended(engine)
    assert (error.code, error.evidence.get("known_by")) == expected


async def test_a_reading_of_the_host_that_fails_keeps_no_engine_from_ending(tmp_path: Path) -> None:
    async def reading() -> None:
        raise RuntimeError("a defect")

    runner = runner_with(tmp_path, Ended(0, ""), refresh=reading)
    engine = Engine("0" * 16, "m", 1, a_plan(5), "key", None, None, 0.0, container_id="c")
    await runner.admission.reserve(engine.id, engine.plan)
    with structlog.testing.capture_logs() as logs:
        await runner.take_down(engine)
    assert runner.admission.promised_bytes() == 0
    assert [entry["event"] for entry in logs] == ["host_not_read"]

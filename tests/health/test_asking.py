"""Asking an engine: whose fault it is that nothing comes."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hosts.roots import Roots
from orchestrator import engine_client
from orchestrator.clock import SystemClock
from orchestrator.engine_client import EngineClient, EngineUnreachable
from orchestrator.health.watching import HealthWatch
from orchestrator.runtimes import adapter
from orchestrator.stopping.path_watch import PathWatch
from orchestrator.timing import Timing
from orchestrator.views import State


async def asked(path: Path) -> EngineUnreachable:
    async with EngineClient(socket=str(path), port=None, key="k", timeout=2) as client:
        with pytest.raises(EngineUnreachable) as failed:
            await client.get("/health")
        return failed.value


async def test_a_socket_that_nobody_listens_at_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left.sock"))
    for name in ("left.sock", "never.sock"):
        error = await asked(tmp_path / name)
        assert (error.refused, error.ours, error.connected) == (True, False, False), name


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_a_daemon_that_cannot_ask_blames_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The kernel's answer stands in: taking all file descriptors of the test's own process would take pytest's, too."""

    def none_left(_: str) -> object:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(engine_client, "opened", none_left)
    error = await asked(tmp_path / "x.sock")
    assert (error.refused, error.ours) == (False, True)


class Nobody:
    """An engine's client that remembers what was asked, and gets no answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __aenter__(self) -> Nobody:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get(self, path: str, **_: object) -> None:
        self.asked.append(f"GET {path}")
        raise EngineUnreachable("no answer in time", busy=True)

    async def post(self, path: str, body: dict[str, Any], **_: object) -> None:
        self.asked.append(f"POST {path} {body['max_tokens']}")
        raise EngineUnreachable("no answer in time", busy=True)


def context(client: Nobody) -> Any:
    return SimpleNamespace(
        clock=SystemClock(),
        timing=Timing(),
        runner=SimpleNamespace(client=lambda _: client),
        gateway=SimpleNamespace(data_at=lambda _: None),
    )


@pytest.mark.parametrize(
    ("runtime", "word"), [("llama.cpp", "/slots"), ("vllm", "/metrics"), ("sglang", "/metrics")], ids=lambda v: v
)
async def test_what_an_engine_that_serves_is_asked(runtime: str, word: str) -> None:
    """Its own word of its work, and, while nobody was given anything, a token on the clients' way: whatever the
    runtime, for else the gateway alone witnesses of one whose counters and CPU say nothing (SGLang). Never its health
    path: SGLang's is a generation, and takes any output of its scheduler for one."""
    client = Nobody()
    watch = HealthWatch(context(client), Roots(), broken=lambda _: None)  # type: ignore[arg-type,return-value]
    engine: Any = SimpleNamespace(
        id="e", name="e-1", container_id="c", state=State.READY, plan=SimpleNamespace(runtime=runtime, model="m")
    )
    watched: Any = SimpleNamespace(since=0.0, said=SimpleNamespace(progress=None, moved_at=None))
    watch._ask(watched, engine, "c", Timing().health_canary)
    await asyncio.gather(*watch._asking._out.values())
    assert set(client.asked) == {f"GET {word}", f"GET {adapter(runtime).metrics_path}", "POST /v1/chat/completions 1"}
    await watch.close()


async def test_the_way_to_an_engine_is_looked_at_without_work_of_the_model() -> None:
    client, inside = Nobody(), []

    def status_inside(_: int, __: int, path: str, **___: object) -> None:
        inside.append(path)

    engine: Any = SimpleNamespace(port=17000, pid=os.getpid(), plan=SimpleNamespace(runtime="sglang"))
    assert await PathWatch(context(client), inside=status_inside).broken(engine) is None
    assert (client.asked, inside) == (["GET /v1/models"], ["/v1/models"])

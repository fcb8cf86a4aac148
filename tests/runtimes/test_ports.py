"""An engine without a unix socket: a bridge network and one loopback port, with real containers.

SGLang is such a runtime and needs a GPU, so llama.cpp stands in for it: the daemon's adapter is told that it
has no socket, and everything else is as it would be.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from containers import labels
from containers.podman import Podman
from containers.ports import PORTS, REST, Ports, PortsExhausted, listens
from containers.spec import ContainerSpec, Mount, Network
from orchestrator.clock import SystemClock
from orchestrator.engine_client import EngineClient
from orchestrator.errors import EngineFailed
from orchestrator.health.starting import Start
from orchestrator.models import Runtime
from orchestrator.runner import CONTAINER_PORT
from orchestrator.runtimes import adapter
from orchestrator.timing import Timing
from tests.models import generate as g
from tests.ports import free_ports
from tests.stack.stack import Stack
from tests.waiting import until

STAND_IN = """
from dataclasses import replace
import orchestrator.runtimes as runtimes
from orchestrator.models import Runtime
llama = runtimes.ADAPTERS[Runtime.LLAMA_CPP]
runtimes.ADAPTERS = {**runtimes.ADAPTERS, Runtime.LLAMA_CPP: replace(llama, socket=False)}
"""


@contextmanager
def held(port: int) -> Iterator[None]:
    """Somebody else has this port."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        yield


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(120)
def test_start_serve_adopt_and_start_again(
    podman_socket: str, embedded_image: str, test_models: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STAND_IN)
    stack = Stack(podman_socket, environ={"PYTHONPATH": str(tmp_path)})
    stack.define("ported", test_models / g.TARGET, method="none")
    with stack:
        (first,) = stack.start("ported")
        engine = first["engine"]
        port = engine["port"]
        assert port in PORTS
        assert engine["socket"] is None
        text = stack.text("ported")
        assert text

        (container,) = stack.containers()
        (said,) = json.loads(stack.podman("inspect", container))
        assert said["HostConfig"]["NetworkMode"] == "bridge"
        published = [one for bound in said["NetworkSettings"]["Ports"].values() for one in bound or ()]
        assert [(p["HostIp"], p["HostPort"]) for p in published] == [("127.0.0.1", str(port))]
        assert not (stack.paths.engines / engine["id"] / "engine.sock").exists()

        stack.kill_daemon()
        assert stack.text("ported") == text
        stack.start_daemon()
        adopted = stack.wait_state("ported", "ready")["engine"]
        assert (adopted["container_id"], adopted["port"]) == (engine["container_id"], port)
        assert stack.text("ported") == text

        stack.want("ported", "stopped")
        stack.wait_state("ported", "stopped")
        expected = Ports(SystemClock().now, stack.paths.engine_ports, boot=_boot(stack)).take()
        with held(expected):
            (again,) = stack.start("ported")
            other = again["engine"]["port"]
            assert other in PORTS
            assert other not in (port, expected)
            assert stack.text("ported") == text


def _boot(stack: Stack) -> str:
    return str(json.loads(stack.paths.engine_ports.read_text())["boot"])


@pytest.fixture
async def podman(podman_socket: str) -> AsyncIterator[Podman]:
    client = Podman(podman_socket, call_timeout=20)
    yield client
    await client.close()


@contextmanager
def leads_nowhere(port: int) -> Iterator[None]:
    """What a Podman service leaves behind that died inside a start: a rule that leads the port to nobody."""
    (nobody,) = free_ports(1)
    rule = ["OUTPUT", "-p", "tcp", "-d", "127.0.0.1", "--dport", str(port)]
    rule += ["-j", "DNAT", "--to-destination", f"127.0.0.1:{nobody}"]
    subprocess.run(["iptables", "-w", "-t", "nat", "-I", *rule], check=True, timeout=20)
    try:
        yield
    finally:
        subprocess.run(["iptables", "-w", "-t", "nat", "-D", *rule], check=True, timeout=20)


@pytest.mark.real
@pytest.mark.timeout(120)
async def test_a_port_that_leads_nowhere_is_given_up(
    podman: Podman, embedded_image: str, test_models: Path, podman_owner: str
) -> None:
    port = Ports(SystemClock().now).take()
    name = f"outrider-t-{podman_owner[:8]}-{secrets.token_hex(4)}"
    spec = ContainerSpec(
        name=name,
        image=embedded_image,
        argv=("-m", f"/models/{g.TARGET}", "--host", "0.0.0.0", "--port", str(CONTAINER_PORT), "-t", "1", "-c", "512"),
        labels=labels.owned_by(podman_owner),
        mounts=(Mount(str(test_models), "/models"),),
        network=Network.BRIDGE,
        host_port=port,
        container_port=CONTAINER_PORT,
    )
    container = await podman.create(spec)
    try:
        await podman.start(container)
        state = await podman.inspect(container)
        assert state is not None
        assert state.pid is not None
        pid = state.pid

        def cut_off() -> EngineFailed | None:
            return EngineFailed("port_dead", "dead") if listens(pid, CONTAINER_PORT) else None

        async def healthy(limit: float) -> None:
            runtime, timing = adapter(Runtime.LLAMA_CPP), replace(Timing().scaled(0.1), cut_off=0.5, engine_call=2.0)
            async with EngineClient(socket=None, port=port, key="none", timeout=2) as client:
                await Start(client, runtime, timing, SystemClock(), limit, lambda _: None, cut_off=cut_off).wait()

        await healthy(30)  # as long as the port leads to it, what listens is never given up
        with leads_nowhere(port):
            with pytest.raises(EngineFailed) as failed:
                await healthy(30)
            assert failed.value.code == "port_dead"
            assert listens(pid, CONTAINER_PORT) is True
            assert listens(pid, 9) is False
        await healthy(30)
    finally:
        await podman.remove(container)


async def test_an_engine_that_does_not_listen_yet_is_waited_for() -> None:
    (port,) = free_ports(1)
    asked = 0

    def cut_off() -> EngineFailed | None:
        nonlocal asked
        asked += 1
        return None

    timing = replace(Timing().scaled(0.1), cut_off=0.0)
    async with EngineClient(socket=None, port=port, key="none", timeout=1) as client:
        waiting = asyncio.create_task(
            Start(client, adapter(Runtime.LLAMA_CPP), timing, SystemClock(), 30, lambda _: None, cut_off=cut_off).wait()
        )
        await until(lambda: asked > 2, 10, "three looks")
        assert not waiting.done()
        waiting.cancel()


def test_ports_rest_for_the_next_daemon_too(tmp_path: Path) -> None:
    now = [1000.0]
    kept = tmp_path / "ports.json"

    def ports(boot: str = "b") -> Ports:
        return Ports(lambda: now[0], kept, boot=boot)

    one = ports()
    used, running = one.take(), one.take()
    one.give_back(used)
    successor = ports()
    successor.keep(running)  # adopted
    assert successor.take() not in (used, running)
    now[0] += REST + 1
    assert used in (ports().take(), ports().take(), ports().take())
    assert ports(boot="another").take() <= min(used, running)


@pytest.mark.parametrize("content", ["", "[]", '{"boot": "b"}', '{"boot": "b", "ports": {"x": 1}}', "\xff", "{" * 9999])
def test_a_file_that_is_none_of_ours_rests_nothing(tmp_path: Path, content: str) -> None:
    kept = tmp_path / "ports.json"
    kept.write_text(content)
    assert Ports(SystemClock().now, kept, boot="b").take() in PORTS


def test_no_port_left(tmp_path: Path) -> None:
    ports = Ports(lambda: 0.0)
    for port in PORTS:
        ports.keep(port)
    with pytest.raises(PortsExhausted):
        ports.take()


def test_listening_is_read_off_proc(tmp_path: Path) -> None:
    assert listens(1, 8080, root=tmp_path) is None
    net = tmp_path / "1" / "net"
    net.mkdir(parents=True)
    rows: dict[str, Any] = {"tcp": "0100007F:1F91 00000000:0000 01", "tcp6": f"{'0' * 32}:1F90 {'0' * 32}:0000 0A"}
    for name, row in rows.items():
        (net / name).write_text(f"  sl  local_address rem_address   st\n   0: {row}\n")
    assert listens(1, 8080, root=tmp_path) is True
    assert listens(1, 8081, root=tmp_path) is False

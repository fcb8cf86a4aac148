"""An engine that was taken over puts something else in its socket's place. Nobody follows it anywhere."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.gateway.upstream import Pool
from containers.spec import ENGINE_UID
from orchestrator.engine_client import EngineClient, SocketReplaced
from orchestrator.engine_socket import NotASocket, opened
from orchestrator.plan import SOCKET
from tests.models.tokenizer import recital
from tests.stack.stack import Stack
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


class Elsewhere:
    """Something on the host that an engine cannot reach, and that answers whoever comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.visits: list[bytes] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        path.chmod(0o777)
        self._server.listen(100)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                visitor, _ = self._server.accept()
            except OSError:
                return
            with visitor:
                visitor.settimeout(5)
                try:
                    self.visits.append(visitor.recv(65536))
                    visitor.sendall(ANSWER)
                except OSError:
                    continue

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="or-e-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def elsewhere(folder: Path) -> Iterator[Elsewhere]:
    made = Elsewhere(folder / "elsewhere.sock")
    yield made
    made.close()


def link(place: Path, elsewhere: Elsewhere) -> None:
    place.symlink_to(elsewhere.path)


def link_to_a_link(place: Path, elsewhere: Elsewhere) -> None:
    (place.parent / "other").symlink_to(elsewhere.path)
    place.symlink_to("other")


def file(place: Path, elsewhere: Elsewhere) -> None:
    place.write_bytes(b"x")


def pipe(place: Path, elsewhere: Elsewhere) -> None:
    os.mkfifo(place)


def directory(place: Path, elsewhere: Elsewhere) -> None:
    place.mkdir()


Plant = Callable[[Path, Elsewhere], None]


@pytest.mark.parametrize("plant", [link, link_to_a_link, file, pipe, directory])
async def test_daemon_and_gateway_connect_to_a_socket_only(folder: Path, elsewhere: Elsewhere, plant: Plant) -> None:
    place = folder / "e" / "engine.sock"
    place.parent.mkdir()
    plant(place, elsewhere)
    with pytest.raises(NotASocket):
        await Pool(path=str(place)).dial(1.0)
    async with EngineClient(socket=str(place), port=None, key="secret", timeout=1) as client:
        with pytest.raises(SocketReplaced, match="in the place of the engine's socket") as unreachable:
            await client.post("/v1/chat/completions", {})
    assert not unreachable.value.busy
    assert elsewhere.visits == []


async def test_a_socket_is_reached_under_a_path_of_any_length(folder: Path, elsewhere: Elsewhere) -> None:
    deep = folder / ("d" * 120)
    deep.mkdir()
    os.rename(elsewhere.path, deep / "engine.sock")
    async with EngineClient(socket=str(deep / "engine.sock"), port=None, key="k", timeout=5) as client:
        assert (await client.get("/health")).status == 200
    (await Pool(path=str(deep / "engine.sock")).dial()).abort()


async def test_a_place_that_is_swapped_all_the_time(folder: Path, elsewhere: Elsewhere) -> None:
    """Between look and connection as well: what was looked at is what is connected to."""
    place, good = folder / "engine.sock", Elsewhere(folder / "good.sock")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for target in (os.symlink, os.link):
                scratch = folder / "scratch"
                target(elsewhere.path if target is os.symlink else good.path, scratch)
                os.replace(scratch, place)
                if target is os.link and scratch.exists():  # both names were one already
                    scratch.unlink()

    swapper = threading.Thread(target=swap)
    swapper.start()
    reached = refused = 0
    try:
        until_sync(lambda: os.path.lexists(place), 5, "the swapper is at work")
        while (reached < 50 or refused < 50) and reached + refused < 20_000:
            try:
                with opened(str(place)) as address, socket.socket(socket.AF_UNIX) as knock:
                    knock.settimeout(5)
                    knock.connect(address)
                    knock.sendall(b"hello")
                    knock.recv(1)
                reached += 1
            except NotASocket:
                refused += 1
    finally:
        over.set()
        swapper.join()
        good.close()
    assert reached >= 50
    assert refused >= 50, "a fair test"
    assert elsewhere.visits == []


def test_the_gateways_user_may_connect_to_what_it_opened(folder: Path, elsewhere: Elsewhere) -> None:
    code = (
        "import os, socket, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from orchestrator.engine_socket import NotASocket, opened\n"
        "with opened(sys.argv[1]) as address, socket.socket(socket.AF_UNIX) as s:\n"
        "    s.connect(address); s.sendall(b'x'); print(s.recv(8).decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(elsewhere.path)], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "HTTP/1.1\n"


# a real engine


TAKE_OVER = f"""
import os
os.symlink(TARGET, "{SOCKET}.new")
os.replace("{SOCKET}.new", "{SOCKET}")
"""


@pytest.mark.slow
def test_an_engine_that_was_taken_over(stack: Stack, engine: Any, key: str, elsewhere: Elsewhere) -> None:
    assert stack.text("plain", 4) == recital(4)
    code = TAKE_OVER.replace("TARGET", repr(str(elsewhere.path)))
    done = subprocess.run(
        ["podman", "--url", f"unix://{stack.podman_socket}", "exec", "--user", str(ENGINE_UID),
         engine["container_id"], "/usr/bin/python3", "-c", code],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert os.readlink(engine["socket"]) == str(elsewhere.path)
    # through a link, who follows it would get there: a fair test
    with httpx.Client(transport=httpx.HTTPTransport(uds=engine["socket"]), base_url="http://engine") as naive:
        assert naive.get("/").status_code == 200
    visits = len(elsewhere.visits)

    # the gateway: another one, for this one has connections from before
    assert stack.gateway is not None
    stack.gateway.kill()
    stack.gateway.wait(10)
    stack.start_gateway()
    assert stack.chat("plain", 4).status_code in (502, 503)
    # the daemon, which asks an engine that it adopts: that one is not waited for, but replaced
    stack.kill_daemon()
    stack.start_daemon()
    stack.wait(lambda: (stack.deployment("plain")["engine"] or {}).get("generation") == 2, what="a new engine")
    stack.wait_state("plain", "ready", may_fail=True)
    (told,) = (event for event in stack.events("plain") if event["code"] == "failed")
    assert told["evidence"]["code"] == "engine_socket_replaced"
    assert stack.text("plain", 4) == recital(4)
    assert len(elsewhere.visits) == visits
    assert key.encode() not in b"".join(elsewhere.visits)

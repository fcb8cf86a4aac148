"""A loopback gateway is for the programs of its machine: Host and Origin, on both paths and at the operators' door."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from api.gateway.guard import Guard, is_loopback
from tests.gateway.client import Client, ask, build
from tests.gateway.stack import Stack, chat

OURS = ["localhost", "LocalHost:8080", "127.0.0.1", "127.0.0.1:1", "[::1]:8080", "[::1]"]
FOREIGN = [
    *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8080", "evil.example:localhost", "localhost."),
    *("127.0.0.1:", "127.0.0.1:80a", "localhost:1234567", "0.0.0.0", "[::2]", "10.0.0.1:8080", "", "a@localhost"),
]


@pytest.mark.parametrize("host", OURS)
def test_names_of_the_machine_itself_are_taken(host: str) -> None:
    guard = Guard("127.0.0.1")
    assert guard.refusal([(b"host", host.encode())], "1.1") is None
    assert guard.refusal([(b"host", host.encode()), (b"origin", b"http://" + host.encode())], "1.1") is None


@pytest.mark.parametrize("host", FOREIGN)
def test_every_other_name_is_refused(host: str) -> None:
    refused = Guard("127.0.0.1").refusal([(b"host", host.encode())], "1.1")
    assert refused is not None
    assert (refused.status, refused.code) == (421, "foreign_host")


@pytest.mark.parametrize(
    "origin",
    ["null", "https://evil.example", "http://localhost.evil.example", "http://localhost@evil.example", "", "x"],
)
def test_a_page_of_another_host_is_refused(origin: str) -> None:
    refused = Guard("::1").refusal([(b"host", b"localhost"), (b"origin", origin.encode())], "1.1")
    assert refused is not None
    assert (refused.status, refused.code) == (403, "foreign_origin")
    twice = [(b"host", b"localhost"), (b"origin", origin.encode()), (b"origin", b"http://localhost")]
    assert Guard("::1").refusal(twice, "1.1") == refused


def test_the_listen_addresses_own_name_is_taken() -> None:
    assert Guard("127.0.0.5").refusal([(b"host", b"127.0.0.5:80")], "1.1") is None
    assert Guard("127.0.0.5").refusal([(b"host", b"127.0.0.6:80")], "1.1") is not None
    assert Guard("127.0.0.5").refusal([(b"host", b"127a0.0.5")], "1.1") is not None


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0"])
def test_one_host_header_is_what_http_asks_for(listen: str) -> None:
    guard = Guard(listen)
    for headers in ([], [(b"host", b"localhost")] * 2, [(b"host", b"a"), (b"x", b"y"), (b"host", b"b")]):
        refused = guard.refusal(headers, "1.1")
        assert refused is not None
        assert (refused.status, refused.code) == (400, "invalid_host")
    assert guard.refusal([], "1.0") is None
    assert guard.refusal([(b"host", b"localhost"), (b"x", b"1"), (b"x", b"2")], "1.1") is None


def test_beyond_loopback_every_name_is_taken() -> None:
    headers = [(b"host", b"gateway.example"), (b"origin", b"https://chat.example")]
    assert Guard("0.0.0.0").refusal(headers, "1.1") is None


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("localhost", True), ("127.9.9.9", True), ("::1", True), ("::", False), ("192.168.1.4", False), ("box", False)],
)
def test_what_loopback_is(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


@pytest.mark.asyncio(loop_scope="package")
async def test_a_rebound_name_reaches_no_model(stack: Stack) -> None:
    (engine,) = await stack.serve("rebound")
    body = b'{"model": "rebound"}'
    for path, method in (("/v1/chat/completions", b"POST"), ("/v1/models", b"GET"), ("/nothing", b"GET")):
        for host, origin, status in (
            (b"evil.example:8080", b"", 421),
            (b"localhost", b"origin: https://evil.example\r\n", 403),
            (b"localhost\r\nhost: localhost", b"", 400),
        ):
            client = await Client.connect(stack.gateway.address)
            client.send(
                b"%b %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n%b"
                % (method, path.encode(), host, origin, len(body), body)
            )
            response = await client.response()
            assert response.status == status
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}
            assert await client.closed()
    assert not engine.requests


@pytest.mark.asyncio(loop_scope="package")
async def test_programs_of_the_machine_are_served(stack: Stack) -> None:
    await stack.serve("own")
    client = await Client.connect(stack.gateway.address)
    client.send(build("POST", "/v1/chat/completions", chat("own"), Origin="http://127.0.0.1:3000"))
    assert (await client.response()).status == 200
    old = await Client.connect(stack.gateway.address)
    old.send(b"GET /v1/models HTTP/1.0\r\n\r\n")
    assert (await old.response()).status == 200


@pytest.mark.asyncio(loop_scope="package")
async def test_the_operators_door_is_guarded_too(stack: Stack) -> None:
    client = await Client.connect(stack.gateway.ops)
    client.send(b"GET /metrics HTTP/1.1\r\nhost: evil.example\r\n\r\n")
    assert (await client.response()).status == 421


@pytest_asyncio.fixture(loop_scope="package")
async def public(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    made = await Stack.start(tmp_path_factory.mktemp("public"), "--listen", "0.0.0.0:0")
    yield made
    assert await made.stop() == 0


@pytest.mark.asyncio(loop_scope="package")
async def test_a_public_gateway_has_any_name_and_says_so(public: Stack) -> None:
    await public.serve("any")
    address = ("127.0.0.1", public.gateway.address[1])
    request = build("POST", "/v1/chat/completions", chat("any"), Origin="https://chat.example")
    client = await Client.connect(address)
    client.send(request.replace(b"Host: localhost", b"Host: gateway.example"))
    assert (await client.response()).status == 200
    assert public.gateway.logged("listening_beyond_loopback")
    assert (await ask(address, None, "/v1/models")).status == 200

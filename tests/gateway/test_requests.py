"""What clients may send: bodies, methods, paths, limits; on the fast path and on the plain one."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.gateway.client import Client, build
from tests.gateway.stack import Stack, chat

pytestmark = pytest.mark.asyncio(loop_scope="package")
MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{not json", 400, "invalid_json"),
        (b"\xff\xfe{}", 400, "invalid_json"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b'{"model": "m", "temperature": NaN}', 400, "invalid_json"),
        (b"[1]", 400, "invalid_json"),
        (b'{"model": "m"} {}', 400, "invalid_json"),
        (b"", 400, "invalid_json"),
        (b"{}", 400, "missing_required_parameter"),
        (b'{"model": null}', 400, "missing_required_parameter"),
        (b'{"model": 7}', 400, "invalid_type"),
        (b'{"model": "nobody"}', 404, "model_not_found"),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_wrong_bodies_are_explained(stack: Stack, body: bytes, status: int, code: str) -> None:
    await stack.serve("there") if "there" not in stack.models else None
    response = await stack.ask(body)
    assert (response.status, response.code) == (status, code)
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    if code == "model_not_found":
        assert next(iter(stack.models)) in error["message"]


async def test_a_post_without_a_body_is_no_json(stack: Stack) -> None:
    client = await Client.connect(stack.gateway.address)
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert (await client.response()).code == "invalid_json"
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
    assert (await client.response()).code == "invalid_json"


async def test_ten_megabytes_pass(stack: Stack) -> None:
    (engine,) = await stack.serve("big")
    body = json.dumps(chat("big", pad="p" * 10_000_000)).encode()
    response = await stack.ask(body)
    assert response.status == 200
    assert engine.requests[0].body == body


async def test_a_body_in_chunks_is_sent_on_with_its_length(stack: Stack) -> None:
    (engine,) = await stack.serve("chunks")
    body = json.dumps(chat("chunks", pad="p" * 100_000)).encode()
    client = await Client.connect(stack.gateway.address)
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
    for start in range(0, len(body), 30_000):
        piece = body[start : start + 30_000]
        client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await client.writer.drain()
    client.send(b"0\r\n\r\n")
    assert (await client.response()).status == 200
    assert engine.requests[0].body == body
    assert engine.requests[0].header("content-length") == str(len(body))
    assert engine.requests[0].header("transfer-encoding") is None


async def test_a_declared_body_over_the_limit_is_refused_unread(stack: Stack) -> None:
    client = await Client.connect(stack.gateway.address)
    length = 33 * MIB
    client.send(f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{{".encode())
    response = await client.response()
    assert (response.status, response.code) == (413, "request_too_large")
    assert response.headers["connection"] == "close"


async def test_who_sends_before_reading_sees_the_refusal_too(stack: Stack) -> None:
    client = await Client.connect(stack.gateway.address)
    client.send(build("POST", "/v1/chat/completions", b" " * (34 * MIB)))
    async with asyncio.timeout(10):
        await client.writer.drain()
    response = await client.response()
    assert (response.status, response.code) == (413, "request_too_large")


async def test_a_body_that_grows_over_the_limit_is_refused(stack: Stack) -> None:
    before = _resident(stack)
    client = await Client.connect(stack.gateway.address)
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
    piece = b"%x\r\n%b\r\n" % (MIB, b" " * MIB)

    async def pour() -> None:
        for _ in range(48):
            client.send(piece)
            await client.writer.drain()

    pouring = asyncio.create_task(pour())
    response = await client.response()
    assert (response.status, response.code) == (413, "request_too_large")
    client.abort()
    await asyncio.gather(pouring, return_exceptions=True)
    assert _resident(stack) - before < 80 * MIB


async def test_expect_100_continue_is_answered(stack: Stack) -> None:
    await stack.serve("expecting")
    data = json.dumps(chat("expecting")).encode()
    client = await Client.connect(stack.gateway.address)
    client.send(build("POST", "/v1/chat/completions", data, Expect="100-continue").removesuffix(data))
    assert (await client.head()).status == 100
    client.send(data)
    response = await client.response()
    assert (response.status, response.headers["x-outrider-method"]) == (200, "dflash")


async def test_expect_100_continue_over_the_limit_is_refused_without_it(stack: Stack) -> None:
    client = await Client.connect(stack.gateway.address)
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
    client.send(f"{head}content-length: {99 * MIB}\r\n\r\n".encode())
    assert (await client.response()).status == 413
    assert await client.closed()


@pytest.mark.parametrize("length", [70_000, 300_000])
async def test_heads_have_a_limit(stack: Stack, length: int) -> None:
    await stack.serve("heads") if "heads" not in stack.models else None
    client = await Client.connect(stack.gateway.address)
    client.send(build("POST", "/v1/chat/completions", chat("heads"), X_Long="h" * length))
    response = await client.response()
    assert (response.status, response.code) == (431, "headers_too_large")


async def test_a_head_without_an_end_is_cut_off(stack: Stack) -> None:
    client = await Client.connect(stack.gateway.address)
    client.send(b"GET /v1/models HTTP/1.1\r\nx: " + b"h" * 70_000)
    response = await client.response()
    assert (response.status, response.code) == (431, "headers_too_large")


async def test_what_is_not_http_is_refused_in_json(stack: Stack) -> None:
    client = await Client.connect(stack.gateway.address)
    client.send(b"\x16\x03\x01\x02\x00\x01 hello\r\n\r\n")
    response = await client.response()
    assert (response.status, response.code) == (400, "invalid_http")
    assert await client.closed()


@pytest.mark.parametrize(
    "path", ["/", "/slots", "/metrics", "/props", "/health", "/v1/embeddings", "/v1/chat/completions/", "/v1/../slots"]
)
async def test_nothing_else_of_an_engine_can_be_reached(stack: Stack, path: str) -> None:
    for method, body in (("GET", None), ("POST", chat("there"))):
        response = await stack.ask(body, path, method=method)
        assert (response.status, response.code) == (404, "unknown_url")
        assert "/v1/chat/completions" in response.json()["error"]["message"]


async def test_wrong_methods_name_the_right_one(stack: Stack) -> None:
    for path, method, allow in (
        ("/v1/chat/completions", "GET", "POST"),
        ("/v1/completions", "PUT", "POST"),
        ("/v1/models", "POST", "GET, HEAD"),
        ("/v1/models/x", "DELETE", "GET, HEAD"),
    ):
        response = await stack.ask({} if method != "GET" else None, path, method=method)
        assert (response.status, response.code) == (405, "method_not_allowed")
        assert response.headers["allow"] == allow


async def test_models_are_listed(stack: Stack) -> None:
    await stack.serve("org/listed", aliases=["listed"])
    document = (await stack.ask(None, "/v1/models")).json()
    assert document["object"] == "list"
    (entry,) = [item for item in document["data"] if item["id"] == "org/listed"]
    assert entry["object"] == "model"
    assert entry["owned_by"] == "outrider"
    assert entry["created"] > 1_700_000_000
    for name in ("org/listed", "listed", "org%2Flisted"):
        assert (await stack.ask(None, f"/v1/models/{name}")).json() == entry
    response = await stack.ask(None, "/v1/models/missing")
    assert (response.status, response.code) == (404, "model_not_found")


async def test_head_has_no_body(stack: Stack) -> None:
    client = await Client.connect(stack.gateway.address)
    client.send(build("HEAD", "/v1/models") + build("GET", "/v1/models"))
    head = await client.response(head_only=True)
    whole = await client.response()
    assert head.status == whole.status == 200
    assert head.headers["content-length"] == whole.headers["content-length"]
    client.send(build("HEAD", "/v1/chat/completions"))
    assert (await client.response(head_only=True)).status == 405


def _resident(stack: Stack) -> int:
    assert stack.gateway.process is not None
    with open(f"/proc/{stack.gateway.process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096

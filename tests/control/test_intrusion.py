"""Attempts to get in: each is refused, with its own status and code, and the daemon never hears of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.control.conftest import TOKEN, Served, tcp_client
from tests.control.raw import answer_of, ask, connected, request

BEARER = f"Authorization: Bearer {TOKEN}"
JSON = "Content-Type: application/json"
RUN = '{"state":"running"}'
DESIRED = "/api/v1/deployments/smollm2/desired"


@pytest.mark.parametrize(
    ("headers", "target", "expected"),
    [
        ((), "/api/v1/deployments", (401, "token_missing")),
        ((), "/metrics", (401, "token_missing")),
        ((), "/openapi.json", (401, "token_missing")),
        ((), "/api/v1/nothing", (401, "token_missing")),
        ((), "/healthz/", (401, "token_missing")),
        ((), "/%68ealthz/../metrics", (401, "token_missing")),
        (("Authorization: Bearer wrong",), "/api/v1/deployments", (401, "token_wrong")),
        ((f"Authorization: Bearer {TOKEN}x",), "/api/v1/deployments", (401, "token_wrong")),
        ((f"Authorization: Bearer {TOKEN[:-1]}",), "/api/v1/deployments", (401, "token_wrong")),
        (("Authorization: Bearer \xff\xfe",), "/api/v1/deployments", (401, "token_wrong")),
        (("Authorization: Bearer",), "/api/v1/deployments", (401, "token_missing")),
        ((f"Authorization: Basic {TOKEN}",), "/api/v1/deployments", (401, "token_missing")),
        ((f"Cookie: token={TOKEN}",), "/api/v1/deployments", (401, "token_missing")),
        ((), f"/api/v1/deployments?token={TOKEN}", (401, "token_missing")),
        ((), f"/api/v1/deployments?access_token={TOKEN}", (401, "token_missing")),
        ((BEARER, "Authorization: Bearer other"), "/api/v1/deployments", (400, "duplicate_header")),
    ],
)
async def test_without_the_token(
    served: Served, headers: tuple[str, ...], target: str, expected: tuple[int, str]
) -> None:
    answer = await ask(served.port, request(target=target, headers=headers).encode("latin-1"))
    assert answer.problem == expected
    assert (answer.headers.get("www-authenticate") is not None) == (expected[0] == 401)
    assert TOKEN.encode() not in answer.body


async def test_with_the_token_and_only_healthz_without(served: Served) -> None:
    assert (await ask(served.port, request(headers=(BEARER,)))).status == 200
    assert (await ask(served.port, request(headers=(f"authorization: bearer {TOKEN}",)))).status == 200
    assert (await ask(served.port, request(target="/healthz"))).status == 200
    assert (await ask(served.paths.control_socket, request(target="/api/v1/deployments"))).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8081",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "localhost.",
        "outrider.test.evil",
        "0.0.0.0",
        "169.254.1.1",
        "[::2]",
        "localhost:80:80",
        "localhost@evil.example",
        "evil.example, localhost",
        "",
    ],
)
async def test_a_page_that_rebinds_its_name(served: Served, host: str) -> None:
    for target in ("/api/v1/deployments", "/healthz"):
        answer = await ask(served.port, request(target=target, host=host, headers=(BEARER,)))
        assert answer.problem == (421, "host_refused")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8081", "127.0.0.1:1", "[::1]:8081"])
async def test_names_of_this_daemon(served: Served, host: str) -> None:
    assert (await ask(served.port, request(host=host, headers=(BEARER,)))).status == 200


async def test_rebinding_a_forwarded_unix_socket(served: Served) -> None:
    """`ssh -L 9000:/run/outrider/control.sock` makes a port of it that needs no token."""
    socket = served.paths.control_socket
    assert (await ask(socket, request(host="evil.example:9000"))).problem == (421, "host_refused")
    assert (await ask(socket, request(host="192.168.1.5:9000"))).problem == (421, "host_refused")
    assert (await ask(socket, request(host="localhost:9000"))).status == 200
    assert (await ask(socket, request(host="outrider"))).status == 200
    assert (await ask(socket, request(host=""))).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        ("Origin: http://evil.example",),
        ("Origin: null",),
        ("Origin: http://127.0.0.1:3000",),
        ("Origin: http://localhost",),
        ("Origin: http://127.0.0.1.evil.example",),
        ("Origin: file://",),
        ("Origin:",),
        ("Sec-Fetch-Site: cross-site",),
        ("Sec-Fetch-Site: same-site",),
    ],
)
async def test_pages_of_another_origin(served: Served, headers: tuple[str, ...]) -> None:
    for where in (served.port, served.paths.control_socket):
        for text in (
            request(target=DESIRED, headers=(BEARER, *headers)),
            request("PUT", DESIRED, headers=(BEARER, JSON, *headers), body=RUN),
            request(target="/healthz", headers=headers),
        ):
            answer = await ask(where, text)
            assert answer.problem == (403, "origin_refused")
            assert not [name for name in answer.headers if name.startswith("access-control")]
    assert served.facade.journal == []


async def test_the_same_origin_may_call(served: Served) -> None:
    host = f"127.0.0.1:{served.port}"
    answer = await ask(served.port, request(host=host, headers=(BEARER, f"Origin: http://{host}")))
    assert answer.status == 200


async def test_two_origins_are_one_too_many(served: Served) -> None:
    headers = ("Origin: http://127.0.0.1", "Origin: http://evil.example")
    assert (await ask(served.paths.control_socket, request(headers=headers))).problem == (400, "duplicate_header")


@pytest.mark.parametrize("asked", ["PUT", "DELETE"])
async def test_a_preflight_gets_no_leave(served: Served, asked: str) -> None:
    preflight = ("Origin: http://evil.example", f"Access-Control-Request-Method: {asked}")
    for where in (served.port, served.paths.control_socket):
        answer = await ask(where, request("OPTIONS", DESIRED, headers=preflight))
        assert answer.problem == (403, "origin_refused")
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_other_methods(served: Served) -> None:
    socket = served.paths.control_socket
    assert (await ask(served.port, request("OPTIONS"))).problem == (401, "token_missing")
    assert (await ask(socket, request("OPTIONS"))).problem == (405, "method_not_allowed")
    assert (await ask(served.port, request("OPTIONS", "*"))).problem == (400, "bad_target")
    head = await ask(served.port, request("HEAD"), head=True)
    assert head.status == 401
    assert (await ask(socket, request("HEAD"), head=True)).status == 405
    assert (await ask(socket, request("TRACE"))).problem == (405, "method_not_allowed")
    assert (await ask(socket, request("CONNECT", "127.0.0.1:22"))).problem == (400, "bad_target")
    wrong = await ask(socket, request("POST", DESIRED))
    assert wrong.problem == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "PUT"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json"]
)
async def test_bodies_that_a_form_could_send(served: Served, kind: str) -> None:
    for where in (served.port, served.paths.control_socket):
        text = request("PUT", DESIRED, headers=(BEARER, f"Content-Type: {kind}"), body=RUN)
        assert (await ask(where, text)).problem == (415, "unsupported_media_type")
        bare = request("POST", "/api/v1/deployments/smollm2/restart", headers=(BEARER, f"Content-Type: {kind}"))
        assert (await ask(where, bare)).problem == (415, "unsupported_media_type")
    untyped = request("PUT", DESIRED, headers=(BEARER,), body=RUN)
    assert (await ask(served.port, untyped)).problem == (415, "unsupported_media_type")
    packed = request("PUT", DESIRED, headers=(BEARER, JSON, "Content-Encoding: gzip"), body=RUN)
    assert (await ask(served.port, packed)).problem == (415, "unsupported_media_type")
    charset = request("PUT", DESIRED, headers=(BEARER, f"{JSON}; charset=utf-16"), body=RUN)
    assert (await ask(served.port, charset)).problem == (415, "unsupported_media_type")
    assert served.facade.journal == []
    fine = request("PUT", DESIRED, headers=(BEARER, f"{JSON}; charset=UTF-8"), body=RUN)
    assert (await ask(served.port, fine)).status == 200


async def test_ten_megabytes_declared(served: Served) -> None:
    body = b'{"path": "' + b"x" * 10_000_000 + b'"}'
    for client in (served.unix, served.tcp):
        answer = await client.post("/api/v1/models", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 413
        assert answer.json()["code"] == "body_too_large"
        assert answer.json()["evidence"] == {"limit_bytes": 1024 * 1024}
    async with tcp_client(served.port, token=None) as stranger:
        answer = await stranger.post("/api/v1/models", content=body, headers={"content-type": "application/json"})
        assert answer.json()["code"] == "token_missing"


async def test_a_body_of_no_declared_length(served: Served) -> None:
    head = request("POST", "/api/v1/models", headers=(BEARER, JSON, "Transfer-Encoding: chunked"))
    async with connected(served.port) as (reader, writer):
        writer.write(head.encode())
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        answering = asyncio.create_task(answer_of(reader))
        sent = 0
        while not answering.done() and sent < 200:
            writer.write(chunk)
            await writer.drain()
            sent += 1
            await asyncio.sleep(0)
        answer = await answering
        assert answer.problem == (413, "body_too_large")
        assert sent < 200


async def test_a_body_just_within_the_limit(served: Served) -> None:
    filler = "x" * (1024 * 1024 - len('{"name":"m","path":""}'))
    answer = await served.unix.post(
        "/api/v1/models", content=f'{{"name":"m","path":"{filler}"}}', headers={"content-type": "application/json"}
    )
    assert answer.status_code == 202


async def test_nested_and_broken_json(served: Served) -> None:
    for body in ("[" * 200_000, '{"state":', "", "nonsense", '{"state": NaN}', "[]", "null", "\x00"):
        answer = await served.unix.put(DESIRED, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, body[:20]
        assert answer.json()["code"] == "usage"


@pytest.mark.parametrize("target", ["/api/v1/gateway/table", "/api/v1/gateway/report", "/api/v1/%67ateway/table"])
async def test_the_routing_table_is_not_there_over_tcp(served: Served, target: str) -> None:
    assert (await ask(served.port, request(target=target))).problem == (401, "token_missing")
    assert (await ask(served.port, request(target=target, headers=(BEARER,)))).problem == (404, "no_such_route")
    assert "/api/v1/gateway/table" not in (await served.tcp.get("/openapi.json")).text
    assert served.facade.open_iterators == 0


@pytest.mark.parametrize(
    "target",
    [
        "/api/v1/../v1/version",
        "/api/v1/%2e%2e/v1/version",
        "/api/v1/.%2E/v1/version",
        "/api/v1/./version",
        "/healthz/../api/v1/version",
        "//api/v1/version",
        "/api//v1/version",
        "/api/v1/version/",
        "/api/v1/%252e%252e/version",
        "/api/v1/version%00",
        "/api/v1/version%0a",
        "/api/v1/version%5c..",
        "/api/v1/%ff",
        "/api/v1/%",
    ],
)
async def test_paths_that_are_not_plain(served: Served, target: str) -> None:
    assert (await ask(served.paths.control_socket, request(target=target))).problem == (400, "bad_path")
    assert (await ask(served.port, request(target=target, headers=(BEARER,)))).problem == (400, "bad_path")
    assert (await ask(served.port, request(target=target))).problem == (401, "token_missing")


@pytest.mark.parametrize("target", ["/api%2Fv1/version", "/api/v1/deployments/a%2F..%2Fb", "/api/v1/Version", "/x#y"])
async def test_paths_that_lead_nowhere(served: Served, target: str) -> None:
    assert (await ask(served.paths.control_socket, request(target=target))).status in (400, 404)


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1/api/v1/version", "http://evil.example/healthz", "healthz", "127.0.0.1:8081"]
)
async def test_targets_that_are_not_paths(served: Served, target: str) -> None:
    assert (await ask(served.port, request(target=target, headers=(BEARER,)))).problem == (400, "bad_target")


@pytest.mark.parametrize(
    "text",
    [
        request(headers=(BEARER, "Host: evil.example")),
        request(host=None, headers=(BEARER,)),
        request("POST", "/api/v1/reload", headers=(BEARER, JSON, "Content-Length: 2", "Content-Length: 3")) + "{}",
        request("POST", "/api/v1/reload", headers=(BEARER, JSON, "Content-Length: +2")) + "{}",
        request("POST", "/api/v1/reload", headers=(BEARER, JSON, "Transfer-Encoding: gzip, chunked")) + "{}",
        request(headers=(BEARER, "X-A : b")),
        request(headers=(BEARER, "X-A: b\x00c")),
        "GET /api/v1/version\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_heads_that_can_be_read_in_two_ways(served: Served, text: str) -> None:
    answer = await ask(served.port, text.encode("latin-1"))
    assert answer.problem in ((400, "bad_request"), (505, "http_version"))
    assert served.facade.journal == []


async def test_a_length_and_chunks(served: Served) -> None:
    """Request smuggling's classic: a proxy in front could believe the other one."""
    headers = (BEARER, JSON, "Content-Length: 4", "Transfer-Encoding: chunked")
    text = request("POST", "/api/v1/reload", headers=headers) + "2\r\n{}\r\n0\r\n\r\n"
    assert (await ask(served.port, text)).problem == (400, "duplicate_header")


async def test_a_second_request_in_the_same_packet_is_judged_by_itself(served: Served) -> None:
    async with connected(served.port) as (reader, writer):
        writer.write((request(target="/healthz") + request(target="/api/v1/version")).encode())
        assert (await answer_of(reader)).status == 200
        assert (await answer_of(reader)).problem == (401, "token_missing")


async def test_a_head_that_never_ends(served: Served) -> None:
    async with connected(served.port) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        answering = asyncio.create_task(answer_of(reader))
        for n in range(100):
            writer.write(f"X-{n}: ".encode() + b"y" * 1000 + b"\r\n")
        answer = await answering
        assert answer.problem == (400, "bad_request")


async def test_an_upgrade_is_not_taken(served: Served) -> None:
    headers = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")
    assert (await ask(served.port, request(headers=headers))).problem == (401, "token_missing")
    assert (await ask(served.port, request(headers=(BEARER, *headers)))).status == 200


async def test_a_client_that_leaves_in_its_body(served: Served) -> None:
    socket: Path = served.paths.control_socket
    async with connected(socket) as (_, writer):
        writer.write(request("POST", "/api/v1/reload", headers=(JSON, "Content-Length: 100")).encode() + b"{")
        await writer.drain()
    assert (await ask(socket, request())).status == 200


@pytest.mark.parametrize("author", ["", "x" * 65, "\x7f", "kim\tlee"])
async def test_authors_that_would_spoil_the_journal(served: Served, author: str) -> None:
    headers = (JSON, f"X-Outrider-Author: {author}")
    answer = await ask(served.paths.control_socket, request("PUT", DESIRED, headers=headers, body=RUN))
    assert answer.status == 400
    assert served.facade.journal == []

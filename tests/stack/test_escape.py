"""Attempts to get in through the control API and the gateway. All fail, each in the way that is written here.

Their kin: `test_escape_users` (other users of the machine, and code in a container) and
`test_escape_plans` (definitions and plans that ask for too much).
"""

from __future__ import annotations

import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.control.token import load_or_create
from orchestrator.paths import find
from tests.control.raw import ask, request
from tests.models.tokenizer import recital
from tests.stack.stack import Stack

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def token(stack: Stack) -> str:
    return stack.paths.token_file.read_text().strip()


# in through the control API


async def test_a_page_of_another_origin(stack: Stack, token: str) -> None:
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{stack.gateway_port}"):
        headers = (f"Authorization: Bearer {token}", f"Origin: {origin}")
        assert (await ask(stack.api_port, request(headers=headers))).problem == (403, "origin_refused")
        assert (await ask(stack.paths.control_socket, request(headers=headers))).problem == (403, "origin_refused")


async def test_a_page_that_rebinds_its_name(stack: Stack, token: str) -> None:
    bearer = f"Authorization: Bearer {token}"
    for host in ("evil.example", f"evil.example:{stack.api_port}", "127.0.0.1.evil.example", "169.254.169.254"):
        assert (await ask(stack.api_port, request(host=host, headers=(bearer,)))).problem == (421, "host_refused")
        # a socket that SSH forwards to a port
        assert (await ask(stack.paths.control_socket, request(host=host))).problem == (421, "host_refused")


async def test_no_token_or_a_wrong_one(stack: Stack, token: str) -> None:
    desired = "/api/v1/deployments/plain/desired"
    for headers, target, code in (
        ((), "/api/v1/deployments", "token_missing"),
        ((), f"/api/v1/deployments?token={token}", "token_missing"),
        ((f"Cookie: token={token}",), "/api/v1/deployments", "token_missing"),
        (("Authorization: Bearer wrong",), "/api/v1/deployments", "token_wrong"),
        ((f"Authorization: Bearer {token[:-1]}",), "/api/v1/deployments", "token_wrong"),
        ((f"Authorization: Bearer {token}{token}",), "/api/v1/deployments", "token_wrong"),
    ):
        assert (await ask(stack.api_port, request(target=target, headers=headers))).problem == (401, code)
    json_body = "Content-Type: application/json"
    stop = request("PUT", desired, headers=(json_body,), body='{"state": "stopped"}')
    assert (await ask(stack.api_port, stop)).problem == (401, "token_missing")
    assert stack.deployment("plain")["desired"] == "running"


async def test_the_token_of_another_state_folder(stack: Stack, tmp_path: Path) -> None:
    other = load_or_create(find(state_dir=tmp_path / "other"))
    answer = await ask(stack.api_port, request(headers=(f"Authorization: Bearer {other}",)))
    assert answer.problem == (401, "token_wrong")


async def test_an_engines_key_is_no_token(stack: Stack, key: str) -> None:
    answer = await ask(stack.api_port, request(headers=(f"Authorization: Bearer {key}",)))
    assert answer.problem == (401, "token_wrong")


async def test_the_gateways_routes_over_tcp(stack: Stack, token: str) -> None:
    """They tell engines' keys; the unix socket has them, for root and the gateway's user."""
    bearer = f"Authorization: Bearer {token}"
    for target in ("/api/v1/gateway/table", "/api/v1/gateway/report", "/api/v1/%67ateway/table"):
        assert (await ask(stack.api_port, request(target=target))).problem == (401, "token_missing")
        assert (await ask(stack.api_port, request(target=target, headers=(bearer,)))).problem == (404, "no_such_route")


async def test_paths_and_targets_of_the_control_api_that_are_not_plain(stack: Stack, token: str) -> None:
    bearer = f"Authorization: Bearer {token}"
    for target, code in (
        ("/api/v1/gateway/../version", "bad_path"),
        ("/healthz/../api/v1/deployments", "bad_path"),
        ("/api/v1/%2e%2e/v1/deployments", "bad_path"),
        ("//api/v1/deployments", "bad_path"),
        ("/api/v1/deployments%00", "bad_path"),
        (f"http://127.0.0.1:{stack.api_port}/api/v1/deployments", "bad_target"),
    ):
        assert (await ask(stack.api_port, request(target=target, headers=(bearer,)))).problem == (400, code), target
    assert (await ask(stack.api_port, request("CONNECT", "127.0.0.1:22", headers=(bearer,)))).problem == (
        400,
        "bad_target",
    )
    # a path that is no path needs a token all the same
    assert (await ask(stack.api_port, request(target="/healthz/../api/v1/deployments"))).problem[0] == 401


async def test_requests_to_the_control_api_that_can_be_read_in_two_ways(stack: Stack, token: str) -> None:
    bearer, kind = f"Authorization: Bearer {token}", "Content-Type: application/json"
    smuggled = request("POST", "/api/v1/shutdown", headers=(bearer, kind), body='{"engines": true}')
    for head, problem in (
        ((bearer, "Host: evil.example"), (400, "bad_request")),
        ((bearer, kind, "Content-Length: 4", "Transfer-Encoding: chunked"), (400, "duplicate_header")),
        ((bearer, kind, "Content-Length: 4", "Content-Length: 5"), (400, "bad_request")),
        ((bearer, kind, "Transfer-Encoding: gzip, chunked"), (400, "bad_request")),
    ):
        method = "GET" if "evil" in head[-1] else "POST"
        text = request(method, "/api/v1/reload", headers=head)
        answer = await ask(stack.api_port, text + "0\r\n\r\n" + smuggled.replace(bearer, "X-Was: bearer"))
        assert answer.problem == problem
    assert stack.deployment("plain")["state"] == "ready"


# in through the gateway


def bare(port: int, data: bytes) -> list[tuple[int, str]]:
    """(status, error code) of everything that comes back until the gateway closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(data)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    found, rest = [], b"".join(parts)
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        length = int(re.findall(rb"(?i)\r\ncontent-length: (\d+)", head)[0])
        body, rest = rest[:length], rest[length:]
        document = json.loads(body) if body.startswith(b"{") else {}
        found.append((int(head.split()[1]), document.get("error", {}).get("code", "")))
    return found


UNKNOWN = [(404, "unknown_url")]
BAD = [(400, "invalid_http")]
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "target",
    [
        *(
            "/slots",
            "/slots/0?action=save",
            "/metrics",
            "/props",
            "/completion",
            "/lora-adapters",
            "/tokenize",
            "/health",
        ),
        *("/v1/embeddings", "/v1/../slots", "//slots", "/v1/%2e%2e/slots", "/v1/chat/completions/../../slots"),
        *("/v1/chat/completions%2f..%2f..%2fslots", "/v1//slots", "/./slots", "/v1/chat/completions/", "/SLOTS"),
        *("http://engine/slots", "http://127.0.0.1/metrics", "http://169.254.169.254/latest", "/v1;/slots", "/%73lots"),
    ],
)
def test_an_engines_other_endpoints(stack: Stack, target: str) -> None:
    for method in ("GET", "POST"):
        text = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        assert bare(stack.gateway_port, text.encode()) == UNKNOWN


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: localhost\r\n\r\n", BAD),
        (
            CHAT + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n",
            BAD,
        ),
        (
            CHAT + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n",
            BAD,
        ),
        (CHAT + b"Content-Length: 2\r\nContent-Length: 30\r\n\r\n{}GET /v1/models HTTP/1.1\r\n\r\n", BAD),
        (CHAT + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", BAD),
        (CHAT + b"Transfer-Encoding: xchunked\r\nContent-Length: 2\r\n\r\n{}", BAD),
        (CHAT + b"X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", BAD),
        (CHAT + b"Content-Length: -1\r\n\r\n{}", BAD),
        (CHAT + b"X-A: b\0c\r\nContent-Length: 2\r\n\r\n{}", BAD),
        (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: y\rZ: \r\n\r\n", BAD),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BAD),
        # a name is text, and stays in the body
        (
            b"GET /v1/models/x%0d%0aX-Evil:%20y HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            [(404, "model_not_found")],
        ),
        (
            b"GET /v1/models/..%2f..%2fslots HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            [(404, "model_not_found")],
        ),
    ],
)
def test_requests_to_the_gateway_that_can_be_read_in_two_ways(
    stack: Stack, data: bytes, expected: list[tuple[int, str]]
) -> None:
    """One answer, and the connection is closed: nothing that was smuggled behind it is read."""
    assert bare(stack.gateway_port, data) == expected


class Tap(threading.Thread):
    """Listens in an engine's place, keeps the heads that come, and answers each with an empty chat."""

    def __init__(self, path: str) -> None:
        super().__init__(daemon=True)
        self.heads: list[bytes] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen()

    def run(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            with client:
                data = b""
                while b"\r\n\r\n" not in data and (part := client.recv(65536)):
                    data += part
                self.heads.append(data.partition(b"\r\n\r\n")[0])
                client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


def test_what_a_client_sends_for_the_gateway_never_reaches_the_engine(stack: Stack, engine: Any, key: str) -> None:
    path = Path(engine["socket"])
    aside = path.with_name("aside.sock")
    assert stack.gateway is not None
    stack.gateway.terminate()
    stack.gateway.wait(20)
    path.rename(aside)
    tap = Tap(str(path))
    tap.start()
    try:
        stack.start_gateway()
        body = json.dumps({"model": "plain", "messages": []}).encode()
        head = b"".join(
            (
                CHAT,
                b"Authorization: Bearer client-secret\r\nX-Api-Key: client-secret\r\n",
                b"Cookie: client-secret\r\nProxy-Authorization: client-secret\r\nOrigin: http://localhost:9999\r\n",
                b"Connection: close, authorization, content-length, x-hop\r\nX-Hop: client-secret\r\nX-Other: kept\r\n",
                b"X-Outrider-Author: root\r\nExpect: nothing\r\nContent-Length: %d\r\n\r\n" % len(body),
            )
        )
        assert bare(stack.gateway_port, head + body)[0][0] == 200
    finally:
        tap.close()
        aside.rename(path)
    (seen,) = (head for head in tap.heads if b"x-other" in head.lower())  # the daemon reads its metrics meanwhile
    lines = [line.lower() for line in seen.split(b"\r\n")]
    names = [line.partition(b":")[0] for line in lines[1:]]
    assert lines[0] == b"post /v1/chat/completions http/1.1"
    assert b"client-secret" not in seen
    assert b"9999" not in seen, "neither the Host nor the Origin of the client"
    assert [line for line in seen.split(b"\r\n") if line.lower().startswith(b"authorization:")] == [
        b"authorization: Bearer " + key.encode()
    ]
    for once in (b"host", b"authorization", b"content-length"):
        assert names.count(once) == 1
    assert b"x-other: kept" in lines
    assert b"content-length: %d" % len(body) in lines
    assert stack.text("plain", 20) == recital(20)


def test_a_client_with_a_key_of_its_own_is_answered_as_any(stack: Stack) -> None:
    headers = {"authorization": "Bearer sk-something", "x-api-key": "sk-something"}
    body = {"model": "plain", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    assert httpx.post(f"{stack.base_url}/chat/completions", json=body, headers=headers, timeout=20).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Host: evil.example\r\n", 421),
        (b"Host: 127.0.0.1.evil.example\r\n", 421),
        (b"Host: localhost\r\nOrigin: http://evil.example\r\n", 403),
        (b"Host: localhost\r\nOrigin: null\r\n", 403),
        (b"Host: localhost\r\nHost: evil.example\r\n", 400),
    ],
)
def test_a_web_page_cannot_use_the_models(stack: Stack, headers: bytes, status: int) -> None:
    """A page that rebinds its own name to loopback, or simply posts across origins."""
    body = json.dumps({"model": "plain", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + headers + b"Connection: close\r\nContent-Length: %d\r\n\r\n"
    assert bare(stack.gateway_port, head % len(body) + body)[0][0] == status

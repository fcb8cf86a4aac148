"""Talking to a registry beforehand: tokens, digests that lie, answers that are none, and where to ask."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from containers import logins, registries, registry
from containers.errors import OutriderError
from containers.logins import Login
from containers.references import parse
from containers.registries import Place
from tests.ports import free_ports

REFERENCE = parse("ghcr.io/owner/name:1")
MANIFEST = json.dumps({"config": {"size": 10}, "layers": [{"digest": "sha256:" + "1" * 64, "size": 90}]}).encode()
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"


@asynccontextmanager
async def answering(answer: Callable[[web.Request], web.Response]) -> AsyncIterator[Place]:
    """A registry whose every answer is made by the test."""

    async def handle(request: web.Request) -> web.Response:
        return answer(request)

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield Place(f"127.0.0.1:{port}", "owner/name", insecure=True)
    finally:
        await runner.cleanup()


async def test_a_token_is_fetched_where_the_registry_says() -> None:
    """As docker.io and ghcr.io have it: a challenge, a token for this repository, the manifest."""
    asked: list[tuple[str, str | None]] = []

    def answer(request: web.Request) -> web.Response:
        asked.append((request.path_qs, request.headers.get("Authorization")))
        if request.path == "/token":
            assert request.query["scope"] == "repository:owner/name:pull"
            assert request.query["service"] == "here"
            return web.json_response({"token": "t0ken"})
        if request.headers.get("Authorization") != "Bearer t0ken":
            realm = f"http://{request.host}/token"
            challenge = f'Bearer realm="{realm}",service="here",scope="repository:owner/name:pull"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        return web.Response(body=MANIFEST, headers={"Docker-Content-Digest": DIGEST})

    async with answering(answer) as place:
        offer = await registry.look_up(REFERENCE, place, Login("u", "p"))
    assert (offer.digest, offer.compressed) == (DIGEST, 100)
    assert [path.partition("?")[0] for path, _ in asked] == [
        "/v2/owner/name/manifests/1",
        "/token",
        "/v2/owner/name/manifests/1",
    ]
    assert [a for _, a in asked] == [None, Login("u", "p").basic, "Bearer t0ken"]


async def test_a_login_goes_to_no_token_server_without_tls() -> None:
    sent: list[str | None] = []

    def answer(request: web.Request) -> web.Response:
        sent.append(request.headers.get("Authorization"))
        return web.Response(
            status=401, headers={"WWW-Authenticate": 'Bearer realm="http://elsewhere.invalid/token",service="x"'}
        )

    async with answering(answer) as place:
        with pytest.raises(OutriderError) as caught:
            await registry.look_up(REFERENCE, place, Login("u", "p"))
    assert caught.value.code == "source_failed"
    assert sent == [None]
    assert "p" not in str(caught.value).split()


@pytest.mark.parametrize(
    ("status", "headers", "body", "code"),
    [
        (200, {"Docker-Content-Digest": "sha256:" + "0" * 64}, MANIFEST, "digest_mismatch"),
        (200, {}, MANIFEST[:20], "source_failed"),
        (200, {}, b"[]", "source_failed"),
        (200, {}, b"<html>sign in</html>", "source_failed"),
        (500, {}, b"", "source_failed"),
        (302, {"Location": "http://127.0.0.1:1/"}, b"", "source_failed"),
        (401, {}, b"", "auth_failed"),
        (403, {}, b'{"errors": [{"message": "no"}]}', "auth_failed"),
        (404, {}, b'{"errors": []}', "not_offered"),
        (429, {"Retry-After": "7"}, b"", "rate_limited"),
        (429, {"Retry-After": "soon"}, b"", "rate_limited"),
    ],
)
async def test_an_answer_that_is_none(status: int, headers: dict[str, str], body: bytes, code: str) -> None:
    async with answering(lambda _: web.Response(status=status, headers=headers, body=body)) as place:
        with pytest.raises(OutriderError) as caught:
            await registry.look_up(REFERENCE, place)
    print(f"{status}: error[{caught.value.code}]: {caught.value.detail}\n  hint: {caught.value.hint}")
    assert caught.value.code == code
    assert caught.value.evidence.get("retry_after_s") == (7.0 if headers.get("Retry-After") == "7" else None)


async def test_a_registry_that_is_not_there() -> None:
    with pytest.raises(OutriderError) as caught:
        await registry.look_up(REFERENCE, Place("127.0.0.1:1", "owner/name", insecure=True), limit=5)
    assert caught.value.code == "source_failed"


def test_retry_after() -> None:
    assert registry.retry_after("30") == 30
    assert registry.retry_after("Sun, 06 Nov 1994 08:49:47 GMT", now=784111777) == 10
    assert registry.retry_after("Sun, 06 Nov 1994 08:49:47 GMT") is None
    assert registry.retry_after("never") is None
    assert registry.retry_after(None) is None


RULES: list[Mapping[str, Any]] = [
    {"prefix": "docker.io", "location": "docker.io", "mirror": [{"location": "m.lan:5000/hub", "insecure": True}]},
    {"prefix": "docker.io/vllm", "location": "fast.lan/vllm"},
    {"location": "m.lan:5000", "insecure": True},
]


def test_places_are_those_of_podman() -> None:
    named = parse("docker.io/library/x:1")
    assert [(p.name, p.insecure) for p in registries.places(named, RULES)] == [
        ("m.lan:5000/hub/library/x", True),
        ("docker.io/library/x", False),
    ]
    assert registries.places(named, RULES)[1].url == "https://registry-1.docker.io/v2/library/x"
    assert [p.name for p in registries.places(parse("vllm/vllm-openai:1"), RULES)] == ["fast.lan/vllm/vllm-openai"]
    assert registries.places(parse("m.lan:5000/a:1"), RULES)[0].url == "http://m.lan:5000/v2/a"
    assert [p.name for p in registries.places(parse("docker.io/vllm2/y:1"), RULES)][-1] == "docker.io/vllm2/y"
    assert registries.places(parse("quay.io/a/b:1"), [])[0].url == "https://quay.io/v2/a/b"


def test_a_registries_conf_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "registries.conf"
    for content in ("[[registry", "registry = 3", '[[registry]]\nlocation = "a.lan"'):
        file.write_text(content)
        assert len(registries.load({"CONTAINERS_REGISTRIES_CONF": str(file)})) == (1 if "a.lan" in content else 0)
    assert registries.load({"CONTAINERS_REGISTRIES_CONF": str(tmp_path / "none")}) == []


def test_the_most_special_login_counts(tmp_path: Path) -> None:
    file = tmp_path / "auth.json"
    auths = {
        name: {"username": name, "password": "p"}
        for name in ("ghcr.io", "ghcr.io/owner", "https://index.docker.io/v1/")
    }
    file.write_text(json.dumps({"auths": auths}))

    def user(name: str) -> str | None:
        login = logins.find(parse(name), str(file))
        return None if login is None else login.user

    assert user("ghcr.io/owner/name:1") == "ghcr.io/owner"
    assert user("ghcr.io/other/name:1") == "ghcr.io"
    assert user("vllm/x:1") == "https://index.docker.io/v1/"
    assert user("quay.io/x/y:1") is None
    assert logins.find(REFERENCE, environ={"REGISTRY_AUTH_FILE": str(file)}) == Login("ghcr.io/owner", "p")
    assert logins.find(REFERENCE, environ={"REGISTRY_AUTH_FILE": str(tmp_path / "none")}) is None
    assert "'p'" not in repr(logins.find(REFERENCE, str(file)))


@pytest.mark.parametrize(
    "body",
    [
        b'{"layers": [1]}',
        b'{"layers": [{"size": 1}]}',
        b'{"layers": [{"digest": "d", "size": "many"}]}',
        b'{"layers": [{"digest": "d", "size": -5}]}',
        b'{"layers": [{"digest": "d", "size": 1e999}]}',
        b'{"layers": [{"digest": "d", "size": 1%s}]}' % (b"0" * 400),
        b'{"manifests": [1]}',
        b'{"manifests": [{"platform": {"architecture": "amd64"}}]}',
        b'{"manifests": [{"platform": {"architecture": "amd64"}, "digest": "../../x"}]}',
        b"[" * 200_000,
    ],
)
async def test_a_manifest_that_is_none(body: bytes) -> None:
    async with answering(lambda _: web.Response(body=body)) as place:
        with pytest.raises(OutriderError) as caught:
            await registry.look_up(REFERENCE, place, wants="amd64")
    assert caught.value.code == "source_failed"


async def test_what_a_registry_says_is_cut_short_and_drives_no_terminal() -> None:
    """In errors, which end in the journal and on a screen."""
    many = {"manifests": [{"digest": DIGEST, "platform": {"architecture": f"\x1b]0;{n}\x07"}} for n in range(20_000)]}
    for status, body in ((200, many), (500, {"errors": [{"message": "\x1b[2J\r" + "x" * 500}]})):
        async with answering(lambda _, s=status, b=body: web.json_response(b, status=s)) as place:  # type: ignore[misc]
            with pytest.raises(OutriderError) as caught:
                await registry.look_up(REFERENCE, place)
        assert caught.value.detail.isprintable()
        assert len(caught.value.detail) < 500
        assert len(json.dumps(caught.value.evidence)) < 2000


@pytest.mark.parametrize("said", ["inf", "nan", "1e999", "-1", "9" * 400])
async def test_a_wait_that_is_no_time(said: str) -> None:
    async with answering(lambda _: web.Response(status=429, headers={"Retry-After": said})) as place:
        with pytest.raises(OutriderError) as caught:
            await registry.look_up(REFERENCE, place)
    assert caught.value.code == "rate_limited"
    json.dumps(caught.value.evidence, allow_nan=False)


@pytest.mark.parametrize(
    "token",
    [
        {"token": "a\r\nX-Evil: 1"},
        {"token": {"a": 1}},
        {"token": "x" * (1 << 20)},
        {"access_token": None},
        ["token"],
        b"[" * 200_000,
        b'{"token": "t0ken", "more": "' + b"x" * (8 << 20) + b'"}',
    ],
)
async def test_a_token_that_is_none(token: object) -> None:
    def answer(request: web.Request) -> web.Response:
        if request.path == "/token":
            return web.Response(body=token if isinstance(token, bytes) else json.dumps(token).encode())
        return web.Response(
            status=401, headers={"WWW-Authenticate": f'Bearer realm="http://{request.host}/token",service="x"'}
        )

    async with answering(answer) as place:
        with pytest.raises(OutriderError) as caught:
            await registry.look_up(REFERENCE, place, Login("u", "pw"))
    assert caught.value.code == "source_failed"


@pytest.mark.parametrize("realm", ["http://[", "http://x:999999/", "ftp://x/", "//", "file:///etc/passwd"])
async def test_a_token_server_that_is_none(realm: str) -> None:
    challenge = {"WWW-Authenticate": f'Bearer realm="{realm}"'}
    async with answering(lambda _: web.Response(status=401, headers=challenge)) as place:
        with pytest.raises(OutriderError) as caught:
            await registry.look_up(REFERENCE, place, Login("u", "pw"))
    assert caught.value.code in ("source_failed", "auth_failed")


async def test_neither_login_nor_token_follows_a_redirect() -> None:
    seen: list[str | None] = []

    def other(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"token": "t"}) if "token" in request.path else web.Response(body=MANIFEST)

    async with answering(other) as elsewhere:

        def answer(request: web.Request) -> web.Response:
            if request.path == "/token" or request.headers.get("Authorization") == "Bearer t":
                raise web.HTTPFound(f"http://{elsewhere.host}{request.path}")
            realm = f"http://{request.host}/token"
            return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'})

        async with answering(answer) as place:
            assert (await registry.look_up(REFERENCE, place, Login("u", "pw"))).digest == DIGEST
    assert seen == [None, None]


@pytest.mark.parametrize(
    "address", ["u:S3cret@127.0.0.1:1", "http://u:S3cret@127.0.0.1:bad", "http://u:S3cret@127.0.0.1:1"]
)
async def test_the_login_of_a_proxy_is_in_no_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", address)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(OutriderError) as caught:
        await registry.look_up(REFERENCE, Place("ghcr.io", "owner/name"), limit=5)
    assert caught.value.code == "source_failed"
    assert "S3cret" not in f"{caught.value} {caught.value.hint} {caught.value.evidence}"

"""What a hub refuses, and what it means: through the real library, each with its code and next step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import (
    AuthFailed,
    AuthGated,
    NotOffered,
    OutriderError,
    RateLimited,
    SourceFailed,
    UsageError,
    exit_code,
    status,
)
from orchestrator.kinds import Backend
from orchestrator.models import Format, Runtime
from orchestrator.runtimes import ADAPTERS
from orchestrator.runtimes.base import LaunchRequest
from orchestrator.weights import token
from orchestrator.weights.answers import Asked, refusal
from orchestrator.weights.choosing import Wanted
from orchestrator.weights.fetching import origin, redirected
from orchestrator.weights.meter import Meter
from orchestrator.weights.token import Token
from tests.weights.conftest import Place, safetensors, some_bytes

GGUF = Wanted(Format.GGUF, file="m.gguf")


def said(error: OutriderError) -> str:
    text = f"[{error.code}, exit {exit_code(error)}, HTTP {status(error)}] {error.detail} | {error.hint}"
    print(text)
    return text


async def test_gated_without_a_token(place: Place) -> None:
    place.server.add("meta/llama", safetensors(), gated=True)
    with pytest.raises(AuthGated) as raised:
        await place.pull("meta/llama")
    text = said(raised.value)
    assert f"accept it at {place.server.endpoint}/meta/llama" in text
    assert "[hub] token_file" in text
    assert "HF_TOKEN" in text
    assert (exit_code(raised.value), status(raised.value)) == (4, 403)


async def test_gated_with_a_token_whose_account_has_not_agreed(place: Place) -> None:
    place.server.add("meta/llama", safetensors(), gated=True)
    place.server.tokens = {"hf_x-nogate", "hf_good"}
    place.token = Token("hf_x-nogate", "[hub] token_file /etc/outrider/hub.token")
    with pytest.raises(AuthGated) as raised:
        await place.pull("meta/llama")
    assert "the account whose token is in [hub] token_file /etc/outrider/hub.token" in said(raised.value)
    place.token = Token("hf_good", "a file")
    await place.pull("meta/llama")


async def test_a_token_that_the_hub_does_not_know(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(9000)})
    place.token = Token("hf_old", "the daemon's HF_TOKEN")
    with pytest.raises(AuthFailed) as raised:
        await place.pull("org/m", GGUF)
    text = said(raised.value)
    assert "does not know the token in the daemon's HF_TOKEN" in text
    assert "hf_old" not in text


async def test_a_private_repository_without_a_token(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(9000)}, private=True)
    with pytest.raises(AuthFailed, match="not there, or is private") as raised:
        await place.pull("org/m", GGUF)
    said(raised.value)


async def test_repository_revision_and_file_are_told_apart(place: Place) -> None:
    place.server.tokens = {"hf_good"}
    place.token = Token("hf_good", "a file")
    place.server.add("org/m", {"m.gguf": some_bytes(9000)})
    with pytest.raises(NotOffered, match="no repository org/none") as raised:
        await place.pull("org/none", GGUF)
    said(raised.value)
    with pytest.raises(NotOffered, match="org/m has no revision v9") as raised:
        await place.pull("org/m", GGUF, "v9")
    said(raised.value)
    with pytest.raises(NotOffered, match="no GGUF file of it is q8") as raised:
        await place.pull("org/m", Wanted(Format.GGUF, tag="q8"))
    assert "there are m.gguf" in said(raised.value)
    assert exit_code(raised.value) == 3
    settled = await place.settle("org/m", GGUF)
    del place.server.repos["org/m", settled.commit].files["m.gguf"]
    with pytest.raises(NotOffered, match="has no file m") as raised:
        await place.puller().carry_out(settled, Meter(SystemClock().now))
    said(raised.value)


async def test_weights_that_could_run_code_are_not_taken(place: Place) -> None:
    place.server.add("org/old", {"pytorch_model.bin": some_bytes(9000), "config.json": b"{}"})
    with pytest.raises(NotOffered) as raised:
        await place.pull("org/old")
    assert "other formats of weights are not taken; there are pytorch_model.bin" in said(raised.value)


async def test_a_name_that_is_none(place: Place) -> None:
    with pytest.raises(UsageError, match="is no name of a repository") as raised:
        await place.pull("org/--bad..name", GGUF)
    said(raised.value)


async def test_something_that_is_no_hub(place: Place) -> None:
    place.server.refuse = [(200, {"Content-Type": "text/html"})] * 5
    with pytest.raises(SourceFailed) as raised:
        await place.pull("org/m", GGUF)
    said(raised.value)


async def test_a_signed_address_that_ran_out_says_nothing_of_the_token(place: Place) -> None:
    place.server.add("org/m", {"m.gguf": some_bytes(9000)})
    place.server.refuse_bytes = [(403, {})]
    await place.pull("org/m", GGUF)
    assert [s.status for s in place.server.served] == [302, 403, 302, 200]


@pytest.mark.parametrize(
    ("number", "headers", "kind"),
    [
        (401, {"x-error-code": "GatedRepo"}, AuthGated),
        (403, {}, AuthFailed),
        (404, {}, NotOffered),
        (410, {}, NotOffered),
        (416, {}, SourceFailed),
        (418, {}, SourceFailed),
        (429, {"retry-after": "7"}, RateLimited),
        (500, {}, SourceFailed),
        (451, {"x-error-message": "Access to this resource is disabled."}, NotOffered),
    ],
)
def test_every_refusal_has_a_code_and_a_next_step(
    number: int, headers: dict[str, str], kind: type[OutriderError]
) -> None:
    for where in (None, "the daemon's HF_TOKEN"):
        error = refusal(number, headers, Asked("http://hub", "org/m", "main", token=where))
        assert type(error) is kind
        assert error.hint, said(error)
        assert error.evidence.get("retry_after_s") == (7.0 if number == 429 else None)


# tokens


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hf_a\nhf_b", "a line break"),
        ("hf_a\r\nX-Evil: 1", "a line break"),
        ("hf a", "a space"),
        (" hf_a", "a space"),
        ("hf_\u00e9", "a character that no token has"),
        ("hf_\x00", "a character that no token has"),
        ("x" * 600, "a character that no token has"),
    ],
)
def test_what_is_no_token_is_never_sent(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "token"
    file.write_text(text, newline="")
    for named, environment in ((str(file), {}), (None, {"HF_TOKEN": text})):
        with pytest.raises(AuthFailed) as raised:
            token.read(named, environment)
        assert fault in said(raised.value)
        assert text not in str(raised.value)
        assert "hf_a" not in str(raised.value)
    with pytest.raises(AuthFailed):
        token.read(None, {"HF_TOKEN": "hf_a\n"})


def test_where_a_token_comes_from(tmp_path: Path) -> None:
    named, home = tmp_path / "named", tmp_path / "home"
    home.mkdir()
    (home / "token").write_text("hf_login\n")
    named.write_text("hf_named\n")
    named.chmod(0o640)
    env = {"HF_TOKEN": "hf_env", "HF_HOME": str(home)}
    assert token.read(str(named), env) == Token("hf_named", f"[hub] token_file {named}")
    assert token.read(None, env) == Token("hf_env", "the daemon's HF_TOKEN")
    (home / "token").chmod(0o604)
    found = token.read(None, {"HF_HOME": str(home)})
    assert found is not None
    assert (found.value, found.shared) == ("hf_login", True)
    assert token.read(None, {"HOME": str(tmp_path)}) is None
    assert "hf_" not in repr(found)
    with pytest.raises(AuthFailed, match="cannot be read") as raised:
        token.read(str(tmp_path / "none"), env)
    said(raised.value)


def test_no_engine_asks_a_hub_or_has_a_token() -> None:
    newest = {Runtime.VLLM: "0.33.0", Runtime.SGLANG: "0.5.23", Runtime.LLAMA_CPP: "b11434"}
    for runtime, adapter in ADAPTERS.items():
        for method in adapter.methods:
            request = LaunchRequest(
                "/models/target",
                ("m",),
                method=method,
                drafter="/models/drafter",
                draft_tokens=3,
                backend=Backend.CUDA,
                version=newest[runtime],
                port=None if adapter.socket else "17000",
            )
            env = adapter.command(request).env
            assert env["HF_HUB_OFFLINE"] == "1", runtime
            assert env["TRANSFORMERS_OFFLINE"] == "1", runtime
            assert not [name for name in env if "TOKEN" in name.upper()], json.dumps(dict(env))


@pytest.mark.parametrize(
    ("url", "location", "onward"),
    [
        ("https://hub/o/m/resolve/c/f", "https://cdn/x?sig=1", "https://cdn/x?sig=1"),
        ("https://hub/o/m/resolve/c/f", "/o/new/resolve/c/f", "https://hub/o/new/resolve/c/f"),
        ("http://hub.lan/o/m/resolve/c/f", "http://cdn.lan/x", "http://cdn.lan/x"),
        ("https://hub/o/m/resolve/c/f", "http://hub/o/m/resolve/c/f", None),
        ("https://hub/o/m/resolve/c/f", "file:///etc/shadow", None),
        ("https://hub/o/m/resolve/c/f", None, None),
    ],
)
def test_where_a_redirect_may_lead(url: str, location: str | None, onward: str | None) -> None:
    if onward is not None:
        assert redirected(url, location) == onward
        return
    with pytest.raises(SourceFailed, match="is not followed") as raised:
        redirected(url, location)
    said(raised.value)


def test_the_token_goes_to_the_hubs_own_host_only() -> None:
    home = origin("https://hub.lan")
    assert origin("https://hub.lan:443/o/m") == home
    for other in ("http://hub.lan/", "https://hub.lan:444/", "https://cdn.hub.lan/", "https://hub.lan.evil/"):
        assert origin(other) != home

"""The small pure parts: heads, events, settings, uvicorn's contract."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.gateway import heads, protocol, settings, sse
from api.gateway.heads import Tags, pairs, request_head, response_head
from orchestrator.errors import ConfigError, UsageError


def test_a_connection_header_cannot_take_the_length_away() -> None:
    client = [(b"connection", b"Content-Length, X-A"), (b"x-a", b"1"), (b"x-b", b"2")]
    head = request_head(b"/v1/completions", b"host: localhost\r\n", client, 7)
    assert head == b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 7\r\nx-b: 2\r\n\r\n"


def test_a_response_head_is_read() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=u\r\ncontent-length:  5\r\nServer: s\r\nX:y: z"
    for _ in range(2):  # the second time it is remembered
        head = response_head(raw)
        assert (head.stream, head.length) == (True, 5)
        assert head.lines == b"content-type: Text/Event-Stream; charset=u\r\nx: y: z\r\n"
        assert pairs(head.lines) == [(b"content-type", b"Text/Event-Stream; charset=u"), (b"x", b"y: z")]


def test_what_is_remembered_of_heads_is_bounded() -> None:
    for number in range(3000):
        assert (
            response_head(b"HTTP/1.1 200 OK\r\ndate: %d\r\nx-id: %d" % (number, number)).lines
            == b"x-id: %d\r\n" % number
        )
    assert len(heads._seen) <= heads._MOST_SEEN


def test_tags_are_the_same_as_headers_and_as_a_comment() -> None:
    tags = Tags.of("h", "e", 3, "p", "none")
    assert tags.lines == (
        b"x-outrider-host: h\r\nx-outrider-engine: e-3\r\nx-outrider-plan: p\r\nx-outrider-method: none\r\n"
    )
    assert tags.comment == b": x-outrider-engine=e-3 x-outrider-plan=p x-outrider-method=none\n\n"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_come_whole_from_any_pieces(size: int) -> None:
    raw = b": ping\n\nevent: table\r\ndata: {\xc3\xa9}\r\n\r\nid: 3\ndata: a\ndata:b\n\nevent: empty\n\ndata: cut"
    decoder = sse.Decoder()
    events = [event for start in range(0, len(raw), size) for event in decoder.feed(raw[start : start + size])]
    assert events == [sse.Event("table", "{é}"), sse.Event("message", "a\nb")]


def test_a_table_of_megabytes_is_put_together_once() -> None:
    decoder = sse.Decoder()
    began = time.perf_counter()
    assert not decoder.feed(b"event: table\ndata: ")
    for _ in range(4000):
        assert not decoder.feed(b"x" * 4096)
    (event,) = decoder.feed(b"\n\n")
    assert (event.name, len(event.data)) == ("table", 4000 * 4096)
    assert time.perf_counter() - began < 1.0


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LONGEST", 1000)
    decoder = sse.Decoder()
    for _ in range(10):
        decoder.feed(b"data: " + b"x" * 500 + b"\n\n")
    with pytest.raises(sse.EventTooLong):
        decoder.feed(b"data: " + b"x" * 1001)


def made(file: Path, given: dict[str, str | None] | None = None, **environ: str) -> settings.Settings:
    return settings.settle(file, given or {}, environ)


def test_defaults_need_no_file(tmp_path: Path) -> None:
    found = made(tmp_path / "outrider.toml")
    assert (str(found.listen), str(found.ops_listen)) == ("127.0.0.1:8080", "127.0.0.1:8082")
    assert found.limits.max_waiting == 256
    assert found.limits.hold_s == 600.0
    assert found.limits.max_body_bytes == 32 * 1024 * 1024
    assert found.limits.held_stream_comment == 10.0


def test_the_command_line_wins_over_the_environment_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text('[gateway]\nlisten = "127.0.0.1:1"\nmax_waiting = 1\nhold_s = 1\n[timing]\nscale = 0.5\n[other]\n')
    found = made(file, {"listen": "[::1]:3"}, OUTRIDER_GATEWAY_LISTEN="127.0.0.1:2", OUTRIDER_GATEWAY_MAX_WAITING="2")
    assert str(found.listen) == "[::1]:3"
    assert found.limits.max_waiting == 2
    assert found.limits.hold_s == 1.0
    assert found.limits.held_stream_comment == 5.0


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("gateway = 1", "gateway"),
        ("[gateway]\nlisten = 8080", "gateway.listen"),
        ("[gateway]\nmax_waiting = 1.5", "gateway.max_waiting"),
        ("[gateway]\nmax_waiting = true", "gateway.max_waiting"),
        ("[gateway]\nmax_waiting = -1", "gateway.max_waiting"),
        ("[gateway]\nhold_s = inf", "gateway.hold_s"),
        ("[gateway]\nmax_body_bytes = 3", "gateway.max_body_bytes"),
        ("[timing]\nscale = 0", "timing.scale"),
        ("[gateway\n", None),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(tmp_path: Path, text: str, key: str | None) -> None:
    file = tmp_path / "outrider.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        made(file)
    assert caught.value.file == str(file)
    assert caught.value.key == key


def test_wrong_options_and_variables_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"command line: --hold-s"):
        made(tmp_path / "none", {"hold_s": "soon"})
    with pytest.raises(ConfigError, match=r"environment: OUTRIDER_TIMING_SCALE"):
        made(tmp_path / "none", OUTRIDER_TIMING_SCALE="x")
    for text in ("8080", "host:", "host:99999", "host:x"):
        with pytest.raises(UsageError, match="HOST:PORT"):
            made(tmp_path / "none", {"listen": text})


def test_uvicorn_is_as_known() -> None:
    assert protocol.BROKEN is None


def test_another_uvicorn_turns_the_fast_path_off(monkeypatch: pytest.MonkeyPatch) -> None:
    class Renamed(HttpToolsProtocol):
        def on_body(self, body: bytes, extra: int = 0) -> None: ...

    class Slimmer(RequestResponseCycle):
        def __init__(self) -> None:
            self.body = bytearray()

    assert "on_body" in str(protocol.contract_broken(protocol=Renamed))
    assert "more_body" in str(protocol.contract_broken(cycle=Slimmer))
    monkeypatch.setattr("uvicorn.__version__", "0.55.0")
    assert "0.55.0" in str(protocol.contract_broken())

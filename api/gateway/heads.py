"""Rewriting of heads: what of a client's goes to an engine, and what of an engine's goes to a client. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Headers = Iterable[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection te trailer trailers transfer-encoding upgrade http2-settings "
    b"proxy-authenticate proxy-authorization".split()
)
_NOT_UPSTREAM = (
    _HOP_BY_HOP
    | frozenset(b"host content-length content-type expect".split())  # written anew
    | frozenset(b"accept-encoding".split())  # who compresses a stream buffers it
    | frozenset(b"authorization x-api-key api-key cookie".split())  # between the client and us
    | frozenset(b"origin".split())  # engines give any Origin leave to read
)
_NOT_DOWNSTREAM = (
    _HOP_BY_HOP
    | frozenset(b"content-length server date set-cookie alt-svc strict-transport-security".split())
    | frozenset(b"x-outrider-host x-outrider-engine x-outrider-plan x-outrider-method".split())  # ours alone
    | frozenset(
        b"access-control-allow-origin access-control-allow-credentials access-control-allow-headers "
        b"access-control-allow-methods access-control-expose-headers".split()
    )
)
_PLAIN_CONNECTION = frozenset((b"close", b"keep-alive", b""))


@dataclass(frozen=True, slots=True)
class Tags:
    """The `x-outrider-*` response headers of one engine: ready as lines, and as one SSE comment."""

    lines: bytes
    comment: bytes

    @classmethod
    def of(cls, host: str, engine: str, generation: int, plan: str, method: str) -> Tags:
        own = (b"x-outrider-host", host.encode())
        rest = (
            (b"x-outrider-engine", f"{engine}-{generation}".encode()),
            (b"x-outrider-plan", plan.encode()),
            (b"x-outrider-method", method.encode()),
        )
        comment = b": " + b" ".join(b"%b=%b" % pair for pair in rest) + b"\n\n"
        return cls(lines((own, *rest)), comment)


def lines(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


def pairs(text: bytes) -> list[tuple[bytes, bytes]]:
    """What `lines` made, apart again."""
    found = []
    for line in text.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        found.append((name, value))
    return found


def request_prefix(key: str | None) -> bytes:
    """What every request to one engine begins with, after its request line."""
    secret = b"" if key is None else b"authorization: Bearer %b\r\n" % key.encode()
    return b"host: localhost\r\n" + secret + b"content-type: application/json\r\n"


def request_head(path: bytes, prefix: bytes, client: Headers, length: int) -> bytes:
    """The head of a POST to an engine: the client's headers without what is not the engine's business."""
    dropped = _NOT_UPSTREAM
    kept = []
    for pair in client:
        if pair[0] not in dropped:
            kept.append(b"%b: %b\r\n" % pair)
        elif pair[0] == b"connection" and pair[1].lower() not in _PLAIN_CONNECTION:
            dropped = dropped | _named_by(pair[1])
    if dropped is not _NOT_UPSTREAM:
        kept = [b"%b: %b\r\n" % pair for pair in client if pair[0] not in dropped]
    return b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\n%b\r\n" % (path, prefix, length, b"".join(kept))


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """An engine's headers as they go on to the client: `lines`, without what says how the body is framed.

    `length` is None when the engine gave none.
    """

    lines: bytes
    length: int | None
    stream: bool


_MOST_SEEN = 256
_seen: dict[bytes, ResponseHead] = {}


def response_head(raw: bytes) -> ResponseHead:
    """Read and filter an engine's head (without the empty line at its end; a parser has found it well-formed).

    Engines repeat themselves, streams above all, so what was read lately is remembered.
    """
    known = _seen.get(raw)
    if known is None:
        if len(_seen) >= _MOST_SEEN:
            _seen.clear()
        known = _seen[raw] = _read(raw)
    return known


def _read(raw: bytes) -> ResponseHead:
    length: int | None = None
    stream = False
    kept: list[tuple[bytes, bytes]] = []
    extra: frozenset[bytes] = frozenset()
    for line in raw.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        name, value = name.strip().lower(), value.strip()
        if name == b"content-length":
            length = int(value)
        elif name == b"connection":
            extra |= _named_by(value)
        elif name and name not in _NOT_DOWNSTREAM:
            kept.append((name, value))
            if name == b"content-type":
                stream = value[:17].lower() == b"text/event-stream"
    return ResponseHead(lines(pair for pair in kept if pair[0] not in extra), length, stream)


def _named_by(connection: bytes) -> frozenset[bytes]:
    """The headers that a Connection header declares hop-by-hop (never the ones that carry the message)."""
    names = {token.strip().lower() for token in connection.split(b",")}
    return frozenset(names - {b"close", b"keep-alive", b"content-type", b"content-length", b""})

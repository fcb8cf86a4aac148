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
    """The `x-outrider-*` response headers of one engine: as pairs, ready as lines, and as one SSE comment."""

    pairs: tuple[tuple[bytes, bytes], ...]
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
        pairs = (own, *rest)
        comment = b": " + b" ".join(b"%b=%b" % pair for pair in rest) + b"\n\n"
        return cls(pairs, lines(pairs), comment)


def lines(headers: Headers) -> bytes:
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


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


@dataclass(slots=True)
class ResponseHead:
    """An engine's head as it goes on to the client, without framing. `length` is None when the engine gave none."""

    headers: list[tuple[bytes, bytes]]
    length: int | None
    stream: bool


def response_head(engine: list[tuple[bytes, bytes]]) -> ResponseHead:
    """Read and filter an engine's response headers (names in lower case)."""
    length: int | None = None
    stream = False
    kept = []
    extra: frozenset[bytes] = frozenset()
    for pair in engine:
        name = pair[0]
        if name not in _NOT_DOWNSTREAM:
            if name == b"content-type":
                stream = pair[1][:17].lower() == b"text/event-stream"
            kept.append(pair)
        elif name == b"content-length":
            length = int(pair[1])
        elif name == b"connection" and pair[1].lower() not in _PLAIN_CONNECTION:
            extra |= _named_by(pair[1])
    if extra:
        kept = [pair for pair in kept if pair[0] not in extra]
    return ResponseHead(kept, length, stream)


def _named_by(connection: bytes) -> frozenset[bytes]:
    """The headers that a Connection header declares hop-by-hop (never the ones that carry the message)."""
    names = {token.strip().lower() for token in connection.split(b",")}
    return frozenset(names - {b"close", b"keep-alive", b"content-type", b"content-length", b""})

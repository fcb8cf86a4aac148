"""Who may call: the guard in front of every route, as plain ASGI.

Over TCP: the Host header must name this machine (a page that rebinds its DNS name
to 127.0.0.1 keeps its own name there) and a bearer token is needed for everything
but `/healthz`. Over the unix socket the file's mode decides who may connect.
On both: a request from a web page of another origin is refused, writes carry JSON,
and the path means what it says (no dot segments, nothing encoded that changes it).
Nothing ever answers a CORS preflight.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.control.problems import Problem, ProblemResponse, problem
from api.control.token import digest

OPEN_PATHS = frozenset({"/healthz"})
"""What a TCP client may ask without a token."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
GATEWAY = "/api/v1/gateway/"
SLASH = "%2F"
"""How a slash inside a path segment (an alias such as `org/model`) stays in `scope["path"]`."""
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]*)(?::([0-9]{1,5}))?")
_SINGLE = (b"host", b"authorization", b"origin", b"content-type", b"content-length", b"content-encoding")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FOREIGN_SITES = (b"cross-site", b"same-site")
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Guard:
    """ASGI middleware: lets a request pass, or answers it with a problem.

    `trusted` is the unix socket; otherwise `token_digest` (SHA-256 of the token) is
    compared in constant time. `gateway_uids` may have the routing table (by the peer's
    uid, which the kernel vouches for).
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        trusted: bool,
        token_digest: bytes | None,
        gateway_uids: Collection[int] = (),
    ) -> None:
        if not trusted and token_digest is None:
            raise ValueError("a TCP listener needs a token")
        self._app = app
        self._trusted = trusted
        self._digest = token_digest
        self._gateway_uids = frozenset(gateway_uids)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on with a normalised path; every answer gets the protective headers."""
        if scope["type"] != "http":
            return

        async def careful(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        found = self._check(scope)
        if isinstance(found, Problem):
            headers = {"www-authenticate": 'Bearer realm="outrider"'} if found.status == 401 else None
            await ProblemResponse(found, headers)(scope, receive, careful)
            return
        await self._app({**scope, "path": found}, receive, careful)

    def _check(self, scope: Scope) -> str | Problem:
        """The normalised path, or why not."""
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in _SINGLE and name in headers:
                return problem(
                    400, "duplicate_header", f"the header {name.decode('latin-1')} stands there more than once"
                )
            headers[name] = value
        if scope["http_version"] not in ("1.0", "1.1"):
            return problem(505, "http_version", "only HTTP/1.1 is spoken here")
        raw: bytes = scope["raw_path"]
        if not raw.startswith(b"/"):
            return problem(400, "bad_target", "the request target must be a path that starts with /")
        refusal = self._host(headers) or self._origin(headers)
        if refusal is not None:
            return refusal
        path = normal_path(raw)
        if not self._trusted and path not in OPEN_PATHS:
            refusal = self._token(headers, scope["query_string"])
            if refusal is not None:
                return refusal
        if path is None:
            return problem(
                400,
                "bad_path",
                "the path has dot segments, empty segments or characters that it must not have",
                hint="send the path as it stands in /openapi.json, with names percent-encoded once",
            )
        return self._gateway(scope, path) or _framing(scope["method"], headers) or path

    def _host(self, headers: dict[bytes, bytes]) -> Problem | None:
        """A rebinding page's requests carry its own name, which always has a dot in it."""
        value = headers.get(b"host", b"").decode("latin-1")
        match = _HOST.fullmatch(value)
        if match is not None:
            name = match[1].lower()
            if name in LOOPBACK_NAMES or (self._trusted and "." not in name and ":" not in name):
                return None
        return problem(
            421,
            "host_refused",
            "the Host header does not name this daemon",
            hint="call it by localhost, 127.0.0.1 or [::1]; from elsewhere through an SSH tunnel",
        )

    def _origin(self, headers: dict[bytes, bytes]) -> Problem | None:
        """Only a page that this daemon served itself may call it from a browser."""
        origin = headers.get(b"origin")
        host = headers.get(b"host", b"").lower()
        foreign = origin is not None and (not host or origin.lower() not in (b"http://" + host, b"https://" + host))
        if foreign or headers.get(b"sec-fetch-site", b"").lower() in _FOREIGN_SITES:
            return problem(403, "origin_refused", "requests from web pages of another origin are refused")
        return None

    def _token(self, headers: dict[bytes, bytes], query: bytes) -> Problem | None:
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        hint = "send `Authorization: Bearer TOKEN`; the token is in the file `token` of the daemon's state folder"
        if scheme.lower() != b"bearer" or not given.strip():
            elsewhere = b"token" in query.lower()
            detail = "a token in the URL is not accepted" if elsewhere else "this call needs a bearer token"
            return problem(401, "token_missing", detail, hint=hint)
        if self._digest is None or not hmac.compare_digest(digest(given.strip().decode("latin-1")), self._digest):
            return problem(401, "token_wrong", "the bearer token is not this daemon's", hint=hint)
        return None

    def _gateway(self, scope: Scope, path: str) -> Problem | None:
        """The routing table holds engines' keys: more than the socket's mode guards it."""
        if not self._trusted or not path.startswith(GATEWAY):
            return None  # over TCP these routes do not exist
        if scope.get("state", {}).get("peer_uid") in self._gateway_uids:
            return None
        return problem(
            403,
            "not_the_gateway",
            "only root, the daemon's user and the gateway's user may call this",
            hint="see /api/v1/engines for what runs",
        )


def _framing(method: str, headers: dict[bytes, bytes]) -> Problem | None:
    """How the body is sent: one length, no compression, and JSON for a write."""
    if b"content-length" in headers and b"transfer-encoding" in headers:
        return problem(400, "duplicate_header", "a request has a Content-Length or a Transfer-Encoding, not both")
    if method in _SAFE:
        return None
    if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        return problem(415, "unsupported_media_type", "compressed request bodies are not accepted")
    kind = headers.get(b"content-type")
    has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip() != b"0"
    if (kind is None and not has_body) or _is_json(kind):
        return None
    return problem(
        415,
        "unsupported_media_type",
        "a write needs a body of type application/json, or none",
        hint="send `Content-Type: application/json`",
    )


def _is_json(kind: bytes | None) -> bool:
    media, _, rest = (kind or b"").partition(b";")
    charset = rest.strip().lower().replace(b" ", b"").replace(b'"', b"")
    return media.strip().lower() == b"application/json" and charset in (b"", b"charset=utf-8")


def normal_path(raw: bytes) -> str | None:
    """The path with each segment decoded once, or None when it is not plain.

    A server that decodes before it routes sees `/a/%2e%2e/b` and `/a/x%2Fy` as other
    paths than a proxy in front of it did. So: no dot segments, no empty ones, no control
    characters, no backslash, no percent sign that survives decoding; and a slash within
    a segment stays encoded (`SLASH`), so that it never splits it.
    """
    if raw == b"/":
        return "/"
    segments: list[str] = []
    for part in raw[1:].split(b"/"):
        try:
            text = unquote_to_bytes(part).decode("utf-8")
        except UnicodeDecodeError:
            return None
        if text in ("", ".", "..") or "%" in text or "\\" in text or not text.isprintable():
            return None
        segments.append(text.replace("/", SLASH))
    return "/" + "/".join(segments)

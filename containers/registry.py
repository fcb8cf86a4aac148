"""What a registry says of an image before anything is pulled: its digest, size, architecture.

The API is version 2 of the distribution specification: one or two manifests, and a token where the
registry sends one to fetch it. No layer is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from containers import pull_errors
from containers.errors import AuthFailed, DigestMismatch, FetchError, NotOffered, RateLimited, SourceFailed
from containers.logins import Login
from containers.references import Reference
from containers.registries import Place

LIMIT = 20.0
"""Seconds for one answer."""
LARGEST_MANIFEST = 4 << 20
LARGEST_TOKEN = 1 << 16
LONGEST_WAIT = 24 * 3600.0
MOST_SHOWN = 12
_INDEX = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_SINGLE = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64", "amd64": "amd64"}
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_DIGEST = re.compile(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-f]{32,128}")
_TOKEN = re.compile(r"[!-~]+")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class Offer:
    """An image as a registry has it. Sizes are bytes; None is unknown.

    `digest` is what the name stands for: of the index, where there is one for several architectures.
    `compressed` is what would be transferred: the layers and the configuration of this machine's image.
    """

    digest: str
    compressed: int | None
    layers: tuple[tuple[str, int], ...]
    architectures: tuple[str, ...]
    """Those of an index; empty for a single image, whose architecture only its configuration has."""
    place: Place


def architecture(machine: str | None = None) -> str:
    """This machine's (or another's) architecture in the words of images: `amd64`, `arm64`."""
    name = machine or platform.machine()
    return _ARCHITECTURES.get(name, name)


async def look_up(
    reference: Reference, place: Place, login: Login | None = None, *, wants: str | None = None, limit: float = LIMIT
) -> Offer:
    """Ask one place. `wants` is the architecture, by default this machine's; `limit` is seconds an answer.

    Raises `AuthFailed`, `NotOffered` (also where an index has nothing for the architecture),
    `RateLimited` with `retry_after_s` where it is said, `DigestMismatch`, `SourceFailed`.
    """
    wanted = wants or architecture()
    async with _session(limit) as session:
        asking = _Asking(session, reference, place, login)
        body, digest = await asking.manifest(reference.manifest)
        data = _parsed(body, reference)
        architectures: tuple[str, ...] = ()
        if isinstance(data.get("manifests"), list):
            found, architectures = _for(data["manifests"], wanted, reference)
            if found is None:
                offered = [pull_errors.plain(name, 20) for name in architectures[:MOST_SHOWN]]
                error = pull_errors.not_offered(
                    f"{reference} has no image for {wanted}; it has {', '.join(offered) or 'none'}", reference
                )
                error.hint = "another tag may have one; an image for another architecture cannot run here"
                error.evidence |= {"architecture": wanted, "offered": offered}
                raise error
            body, _ = await asking.manifest(found)
            data = _parsed(body, reference)
    layers = _layers(data, reference)
    config = data.get("config")
    configured = _size(config["size"], reference) if isinstance(config, dict) and "size" in config else 0
    total = sum(size for _, size in layers) + configured
    return Offer(digest, total if layers else None, layers, architectures, place)


def _layers(data: Mapping[str, Any], reference: Reference) -> tuple[tuple[str, int], ...]:
    """Digest and size of each layer whose size is told."""
    entries = data.get("layers")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _no_manifest(reference)
    return tuple(
        (_digest(entry.get("digest"), reference), _size(entry["size"], reference))
        for entry in entries
        if "size" in entry
    )


def _for(manifests: list[Any], wanted: str, reference: Reference) -> tuple[str | None, tuple[str, ...]]:
    """The digest for an architecture, and all architectures that there are."""
    digest, seen = None, []
    for entry in manifests:
        where = (entry.get("platform") or {}) if isinstance(entry, dict) else None
        if not isinstance(where, dict):
            raise _no_manifest(reference)
        if where.get("os", "linux") != "linux" or where.get("architecture") in (None, "unknown"):
            continue
        seen.append(str(where["architecture"]))
        if where["architecture"] == wanted and digest is None:
            digest = _digest(entry.get("digest"), reference)
    return digest, tuple(dict.fromkeys(seen))


def _digest(value: object, reference: Reference) -> str:
    if not isinstance(value, str) or _DIGEST.fullmatch(value) is None:
        raise _no_manifest(reference)
    return value


def _size(value: object, reference: Reference) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise _no_manifest(reference)
    return value


@asynccontextmanager
async def _session(limit: float) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=limit, sock_connect=min(limit, 10.0))
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
        yield session


class _Asking:
    """One conversation with one place."""

    def __init__(self, session: aiohttp.ClientSession, reference: Reference, place: Place, login: Login | None) -> None:
        self._session = session
        self._reference = reference
        self._place = place
        self._login = login
        self._authorization: str | None = None

    async def manifest(self, what: str) -> tuple[bytes, str]:
        """A manifest's bytes and digest, by tag or digest."""
        url = f"{self._place.url}/manifests/{what}"
        headers = {"Accept": ", ".join((*_INDEX, *_SINGLE))}
        status, answered, body = await self._get(url, headers)
        if status == 401 and self._authorization is None:
            self._authorization = await self._authorize(answered.get("WWW-Authenticate", ""))
            if self._authorization is not None:
                status, answered, body = await self._get(url, headers)
        if status != 200:
            raise self._refused(status, answered, body)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        promised = what if what.startswith("sha256:") else answered.get("Docker-Content-Digest", digest)
        if promised.startswith("sha256:") and promised != digest:
            raise DigestMismatch(
                f"the manifest of {self._reference} from {self._place.host} is not the one that was promised",
                hint="a mirror or proxy that keeps a damaged copy is the usual cause",
                evidence={"image": str(self._reference), "promised": promised, "came": digest},
            )
        return body, digest

    async def _get(self, url: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        sent = dict(headers)
        if self._authorization is not None:
            sent["Authorization"] = self._authorization
        try:
            async with self._session.get(url, headers=sent) as answer:
                return answer.status, answer.headers, await _start_of(answer, LARGEST_MANIFEST)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise self._away(error) from error

    def _away(self, error: BaseException) -> SourceFailed:
        said = pull_errors.plain(str(error) or type(error).__name__, 200)
        if isinstance(error, ValueError):  # not in its words: a proxy's address holds a password
            said = "an address, of a proxy or of what it sends to, is none"
        return pull_errors.source_failed(
            f"{self._place.host} does not answer about {self._reference}: {said}", self._reference
        )

    async def _authorize(self, challenge: str) -> str | None:
        """The value of `Authorization` that a challenge asks for; None where there is nothing to show."""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            return None if self._login is None else self._login.basic
        values = dict(_CHALLENGE.findall(rest))
        realm = values.get("realm", "")
        if scheme.lower() != "bearer" or not realm:
            return None
        scope = values.get("scope") or f"repository:{self._place.repository}:pull"
        params = {k: v for k, v in {"service": values.get("service"), "scope": scope}.items() if v}
        try:
            where = urlsplit(realm)
            safe = where.scheme == "https" or where.hostname in ("127.0.0.1", "::1", "localhost")
            headers = {} if self._login is None or not safe else {"Authorization": self._login.basic}
            async with self._session.get(realm, params=params, headers=headers) as answer:
                body = await _start_of(answer, LARGEST_TOKEN)
                if answer.status != 200:
                    raise self._refused(answer.status, answer.headers, body)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise self._away(error) from error
        token = _token(body)
        if token is None:
            raise pull_errors.source_failed(
                f"the token server of {self._place.host} gives none for {self._reference}", self._reference
            )
        return f"Bearer {token}"

    def _refused(self, status: int, headers: Mapping[str, str], body: bytes) -> FetchError:
        what = f"{self._place.host} answers {status} about {self._reference}{_message(body)}"
        if status in (401, 403):
            return pull_errors.auth_failed(what, self._reference)
        if status == 404:
            return pull_errors.not_offered(what, self._reference)
        if status == 429:
            return pull_errors.rate_limited(what, self._reference, retry_after(headers.get("Retry-After")))
        return pull_errors.source_failed(what, self._reference)


def retry_after(text: str | None, now: float | None = None) -> float | None:
    """Seconds of a Retry-After header: a number, or a date next to `now` (Unix seconds); None for neither."""
    if text is None:
        return None
    if _SECONDS.fullmatch(text):
        return min(float(text), LONGEST_WAIT)
    with contextlib.suppress(ValueError, TypeError):
        if now is not None:
            return min(max(0.0, parsedate_to_datetime(text).timestamp() - now), LONGEST_WAIT)
    return None


async def _start_of(answer: aiohttp.ClientResponse, longest: int) -> bytes:
    """A body, or as much of it as is worth reading."""
    body = bytearray()
    while len(body) < longest and (piece := await answer.content.read(longest - len(body))):
        body += piece
    return bytes(body)


def _token(body: bytes) -> str | None:
    """What a token server gives; None where that is no token."""
    data = _json(body)
    token = (data.get("token") or data.get("access_token")) if isinstance(data, dict) else None
    return token if isinstance(token, str) and _TOKEN.fullmatch(token) else None


def _json(body: bytes) -> Any:
    """What it says; None for what is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _message(body: bytes) -> str:
    """The registry's own words, where it has some."""
    try:
        error = _json(body)["errors"][0]
        return f": {pull_errors.plain(str(error.get('message') or error.get('code')), 200)}"
    except (KeyError, IndexError, TypeError, AttributeError):
        return ""


def _parsed(body: bytes, reference: Reference) -> Mapping[str, Any]:
    data = _json(body)
    if not isinstance(data, dict) or not (
        isinstance(data.get("manifests"), list) or isinstance(data.get("layers"), list)
    ):
        raise _no_manifest(reference)
    return data


def _no_manifest(reference: Reference) -> SourceFailed:
    return pull_errors.source_failed(f"what came as the manifest of {reference} is none, or half of one", reference)


__all__ = ["AuthFailed", "NotOffered", "Offer", "RateLimited", "architecture", "look_up", "retry_after"]

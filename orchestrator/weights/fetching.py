"""Fetching one file: from the byte where it stopped, patiently, and never two files' bytes into one.

Bytes are fetched by us over plain HTTP, for the library begins each file anew in a new process. A hub
that keeps a file in xet serves it so as well, by a redirect. The token goes to the hub's own host only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from orchestrator.errors import FetchError, RateLimited, SourceFailed
from orchestrator.store_files import steadily
from orchestrator.timing import Timing
from orchestrator.weights.answers import refusal
from orchestrator.weights.hub import Hub
from orchestrator.weights.meter import Meter
from orchestrator.weights.partial import Partial
from orchestrator.weights.resuming import Target, judge

T = TypeVar("T")
MOST_REDIRECTS = 5
ATTEMPTS = 5
"""Attempts in a row that bring nearly nothing before it is given up."""
ENOUGH = 64 * 1024
"""Bytes that make an attempt worth another five."""
PIECE = 1 << 20
"""Bytes that are gathered before they are written."""
BUFFER = 1 << 18
"""Bytes that may have come and not been taken; they are lost, and fetched again, when the connection breaks."""
PATIENCE = 300.0
"""Seconds that a hub's Retry-After is waited for; a longer one is passed on to whoever asked."""
AGENT = "outrider"


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. `call` is the deadline of an answer's head, `stall` the longest silence within its body."""

    call: float
    stall: float
    retry: float
    retry_max: float

    @classmethod
    def of(cls, timing: Timing) -> Pace:
        """That of the daemon."""
        return cls(timing.hub_call, timing.hub_stall, timing.hub_retry, timing.hub_retry_max)

    def pause(self, failures: int) -> float:
        """Before the next attempt."""
        return float(min(self.retry * 2 ** max(0, failures - 1), self.retry_max))


async def patiently(work: Callable[[], Awaitable[T]], pace: Pace, meter: Meter) -> T:
    """`work`, again after what can pass: the hub's troubles, and its wish to be asked less often."""
    failures = 0
    while True:
        try:
            return await work()
        except (SourceFailed, RateLimited) as error:
            failures += 1
            await asyncio.sleep(_wait(error, failures, pace, meter))


def _wait(error: SourceFailed | RateLimited, failures: int, pace: Pace, meter: Meter) -> float:
    """Seconds until the next attempt, which the meter tells; raises the error when there is to be none."""
    asked = error.evidence.get("retry_after_s")
    wait = float(asked) if isinstance(asked, int | float) else pace.pause(failures)
    if failures >= ATTEMPTS or wait > PATIENCE:
        raise error
    meter.waiting(f"{error.detail}; next attempt in {wait:.0f} s")
    return wait


@asynccontextmanager
async def connections(pace: Pace) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for the files of one pull."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=pace.call, sock_read=None)
    async with aiohttp.ClientSession(
        timeout=timeout, auto_decompress=False, read_bufsize=BUFFER, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        yield session


class Fetcher:
    """Fetches files of one repository at one commit."""

    def __init__(self, hub: Hub, session: aiohttp.ClientSession, pace: Pace, meter: Meter, boot: str) -> None:
        self._hub = hub
        self._session = session
        self._pace = pace
        self._meter = meter
        self._boot = boot

    async def fetch(self, target: Target, to: Path) -> str:
        """Bring a file to `to`, whole and checked; its SHA-256. What came stays when it is cut off.

        Raises `AuthGated`, `AuthFailed`, `NotOffered`, `RateLimited`, `SourceFailed` (after some attempts),
        `DigestMismatch` (the data is removed), `DiskFull`, `DiskReadOnly`.
        """
        partial = Partial(to, target, self._boot)
        try:
            if await steadily(partial.open):
                self._meter.waiting("reading back what is here")
                while count := await steadily(partial.reread):
                    self._meter.add(count)
            await self._rest(partial)
            self._meter.waiting("checking")
            return await steadily(partial.finish)
        finally:
            await steadily(partial.close)

    async def _rest(self, partial: Partial) -> None:
        failures = 0
        while partial.length < partial.target.size:
            before = partial.length
            try:
                await self._attempt(partial)
            except (SourceFailed, RateLimited) as error:
                failures = 0 if partial.length - before >= ENOUGH else failures + 1
                await asyncio.sleep(_wait(error, max(1, failures), self._pace, self._meter))

    async def _attempt(self, partial: Partial) -> None:
        """One request: append what comes. Raises `SourceFailed` when it ends early."""
        target = partial.target
        self._meter.asking()
        try:
            async with self._answer(target, partial.length) as answer:
                verdict = judge(answer.status, answer.headers, partial.length, partial.etag, target)
                if verdict.action == "anew":
                    await steadily(partial.begin_at, 0, None)
                    self._meter.at(0)
                if verdict.action != "go":
                    raise SourceFailed(f"{target.path} of {target.repository}: {verdict.text}", hint=_AGAIN)
                await steadily(partial.begin_at, verdict.start, verdict.etag)
                self._meter.at(partial.length)
                await self._take(answer, partial)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            text = f"{target.path} of {target.repository} broke off at byte {partial.length}: {_said(error)}"
            raise SourceFailed(text, hint=_AGAIN) from error
        if partial.length < target.size:
            text = f"{target.path} of {target.repository} ended at byte {partial.length} of {target.size}"
            raise SourceFailed(text, hint=_AGAIN)

    async def _take(self, answer: aiohttp.ClientResponse, partial: Partial) -> None:
        """Write the body as it comes, in pieces; what came is on disk whatever ends it."""
        loop = asyncio.get_running_loop()
        waiting = bytearray()
        written = loop.time()
        try:
            while True:
                async with asyncio.timeout(self._pace.stall):
                    data = await answer.content.readany()
                if not data:
                    break
                waiting += data
                self._meter.came(len(data))
                self._meter.add(len(data))
                if len(waiting) >= PIECE or loop.time() - written >= WRITE_AFTER:
                    piece, waiting = bytes(waiting), bytearray()
                    await steadily(partial.write, piece)
                    written = loop.time()
        finally:
            if waiting:
                await steadily(partial.write, bytes(waiting))

    @asynccontextmanager
    async def _answer(self, target: Target, offset: int) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer that has the bytes, redirects followed."""
        home = await self._hub.endpoint()
        url = f"{home}/{target.repository}/resolve/{target.commit}/{quote(target.path)}"
        for _ in range(MOST_REDIRECTS + 1):
            headers = {"Accept-Encoding": "identity", "User-Agent": AGENT}
            if offset:
                headers["Range"] = f"bytes={offset}-"
            if self._hub.token is not None and origin(url) == origin(home):
                headers["Authorization"] = f"Bearer {self._hub.token.value}"
            async with asyncio.timeout(self._pace.call):
                answer = await self._session.get(url, headers=headers, allow_redirects=False, proxy=_proxy(url))
            try:
                if answer.status in (301, 302, 303, 307, 308):
                    url = redirected(url, answer.headers.get("Location"))
                    continue
                if answer.status >= 400 and answer.status != 416:
                    raise await self._refusal(answer, url, target)
                yield answer
                return
            finally:
                answer.close()
        raise SourceFailed(f"the hub sends {target.path} in circles", hint=_AGAIN)

    async def _refusal(self, answer: aiohttp.ClientResponse, url: str, target: Target) -> FetchError:
        home = await self._hub.endpoint()
        asked = await self._hub.asked(target.repository, target.commit, target.path)
        if origin(url) != origin(home) and answer.status not in (429, 500, 502, 503, 504):
            # a signed address that has run out, or the like: says nothing of the token
            host = urlsplit(url).hostname
            return SourceFailed(f"{host}, to which the hub sends, answered {answer.status}", hint=_AGAIN)
        return refusal(answer.status, answer.headers, asked)


_AGAIN = "pull again: it goes on where it stopped"
WRITE_AFTER = 0.5
"""Seconds after which a slow trickle is written."""


def _said(error: Exception) -> str:
    """What went wrong with a connection, without addresses: a proxy's holds its password, a CDN's is signed."""
    if isinstance(error, TimeoutError):
        return "no byte came in time"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {error.status}, {error.message[:100]}"
    if isinstance(error, aiohttp.InvalidURL):
        return "that of the proxy, or one that the hub sends to, is no address"
    return str(error)[:200] or type(error).__name__


def origin(url: str) -> tuple[str, str | None, int | None]:
    """What must be alike for two addresses to be the same host's: scheme, name, port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def redirected(url: str, location: str | None) -> str:
    """Where a redirect leads; never from TLS to plain text, never to something that is no HTTP.

    Raises `SourceFailed`."""
    try:
        onward = urljoin(url, location or "")
        parts = urlsplit(onward)
        scheme = parts.scheme if location and parts.hostname and parts.port != 0 else ""
    except ValueError:  # no port, no address
        onward = scheme = ""
    if scheme not in ("http", "https") or (url.startswith("https:") and scheme != "https"):
        raise SourceFailed(f"the hub sends to {scheme or 'nowhere'}, which is not followed", hint=_AGAIN)
    return onward


def _proxy(url: str) -> str | None:
    """The environment's proxy for an address, as the library's own calls use it."""
    parts = urlsplit(url)
    if parts.hostname is None or proxy_bypass(parts.hostname):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")

"""Pulling one image through Podman, with bytes as they move.

Podman's Docker-compatible endpoint says once a second how many bytes of each layer are here; its own
says so from 6.0 on only. Closing the connection cancels the pull: Podman lets the registry go and
removes what it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from containers import failures, pull_errors
from containers.errors import PodmanFailed
from containers.logins import Login, header
from containers.references import Reference

T = TypeVar("T")
BEAT = 1.0
"""Seconds between two reports, news or not."""
SILENCE = 120.0
"""Seconds without a word from Podman while bytes should move. It tries a registry that says 429 again for a minute."""
UNPACKING = 1800.0
"""The same once all bytes are here: a layer of many gigabytes is unpacked without a word."""
CONNECT_LIMIT = 10.0
_API = "http://podman/v1.41"
_HERE = ("Download complete", "Already exists", "Pull complete")


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far a pull is: bytes here of bytes in all, as far as sizes are known; layers here of all seen so far."""

    done: int
    total: int | None
    layers_done: int
    layers: int


class Tally:
    """Sums what Podman says of single layers. Pure.

    `sizes` are the layers' sizes by digest where a registry told them; Podman names layers by the
    digest's first twelve digits, and says a size only of a layer that takes longer than a second.
    """

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        self._sizes = {digest.removeprefix("sha256:")[:12]: size for digest, size in (sizes or {}).items()}
        self._layers = frozenset(self._sizes)
        self._current: dict[str, int] = {}
        self._here: set[str] = set()
        self._seen: dict[str, None] = {}

    def feed(self, line: Mapping[str, Any]) -> bool:
        """Take one line of the stream; whether it said anything new."""
        name = line.get("id")
        if not isinstance(name, str):
            return False
        before = self.progress()
        self._seen.setdefault(name)
        detail = line.get("progressDetail") or {}
        if isinstance(detail.get("total"), int) and detail["total"] > 0:
            self._sizes.setdefault(name, detail["total"])
        if isinstance(detail.get("current"), int):
            self._current[name] = max(self._current.get(name, 0), detail["current"])
        if line.get("status") in _HERE:
            self._here.add(name)
        return self.progress() != before

    def progress(self) -> PullProgress:
        """The sums."""
        done = sum(
            self._sizes.get(name, self._current.get(name, 0)) if name in self._here else self._current.get(name, 0)
            for name in self._seen
        )
        total = sum(self._sizes.values()) if self._sizes else None
        # Podman names the image's configuration like a layer: where the layers are known, it is none of them
        here = len(self._here & self._layers) if self._layers else len(self._here)
        return PullProgress(done if total is None else min(done, total), total, here, len(self._layers or self._seen))

    @property
    def moving(self) -> bool:
        """Whether bytes are still expected."""
        return not self._seen or len(self._here) < len(self._seen)


async def pull(
    socket: str,
    reference: Reference,
    *,
    logins: Mapping[str, Login] | None = None,
    sizes: Mapping[str, int] | None = None,
    report: Callable[[PullProgress], None] = lambda _: None,
    silence: float = SILENCE,
    unpacking: float = UNPACKING,
) -> None:
    """Pull one image; returns when Podman says that it is there. Cancelling ends the pull in Podman too.

    `logins` are by registry's host, `sizes` those of layers by digest. `report` is
    called at each change and at least every second. Raises `AuthFailed`, `NotOffered`,
    `RateLimited`, `SourceFailed`, `DigestMismatch`, `DiskFull`, `DiskReadOnly`, and Podman's own errors.
    """
    doing = f"pull {reference}"
    tally = Tally(sizes)

    def beat(quiet: float) -> None:
        report(tally.progress())
        if quiet >= (silence if tally.moving else unpacking):
            raise pull_errors.source_failed(
                f"nothing has come of {reference} for {quiet:.0f} s; the pull was called off", reference
            )

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=socket), timeout=timeout) as session:
            # from Podman 5 on its first word is also the first of the answer's header
            request = session.post(
                f"{_API}/images/create", params={"fromImage": reference.exact}, headers=header(logins or {})
            )
            async with await _beaten(request, beat) as answer:
                if answer.status >= 400:
                    raise pull_errors.classify(_message(await answer.text()), reference, answer.status)
                async for line in _lines(answer, beat):
                    error = line.get("error") or (line.get("errorDetail") or {}).get("message")
                    if error:
                        raise pull_errors.classify(str(error), reference)
                    if tally.feed(line):
                        report(tally.progress())
    except (aiohttp.ServerTimeoutError, TimeoutError) as error:
        raise failures.timed_out(doing, CONNECT_LIMIT) from error
    except (aiohttp.ClientError, OSError) as error:
        raise failures.unreachable(doing, socket, error) from error


async def _lines(answer: aiohttp.ClientResponse, beat: Callable[[float], None]) -> AsyncIterator[dict[str, Any]]:
    """The stream's lines; see `_beaten` for what happens in between."""
    rest = b""
    while chunk := await _beaten(answer.content.readany(), beat):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield _json(line)
    if rest.strip():
        yield _json(rest)


async def _beaten(awaited: Awaitable[T], beat: Callable[[float], None]) -> T:
    """What comes of `awaited`; until then `beat` is called each second with the seconds so far, and what it
    raises ends the wait."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    task = asyncio.ensure_future(awaited)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=BEAT)
            if not task.done():
                beat(loop.time() - since)
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError):
                await task


def _json(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise PodmanFailed(f"Podman said what nobody understands about a pull: {line[:200].decode(errors='replace')}")
    return data


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text

"""Asking the hub, through its own library: which commit a revision is, and what files that has.

The library's calls block and are not interrupted, so each has a thread of its own that is left
behind at the deadline. It is imported with the first question: it takes 25 MB and 0.2 s.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar
from urllib.parse import urlsplit

from orchestrator.errors import OutriderError, SourceFailed, UsageError
from orchestrator.weights.answers import Asked, refusal
from orchestrator.weights.shelf import PARTIAL
from orchestrator.weights.token import Token

T = TypeVar("T")
COMMIT = 40
"""Hexadecimal digits of a commit."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a commit. `sha256` is that of large files (LFS, xet), `git_sha1` the id of git's blob,
    which for a large file is that of its pointer and says nothing of its bytes."""

    path: str
    size: int
    sha256: str | None
    git_sha1: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A repository at one commit."""

    repository: str
    commit: str
    files: tuple[HubFile, ...]


class Hub:
    """One hub, as one token sees it. `endpoint` None is the library's own (HF_ENDPOINT, else the public one)."""

    def __init__(self, endpoint: str | None, token: Token | None, *, deadline: float) -> None:
        self._endpoint = None if endpoint is None else endpoint.rstrip("/")
        self.token = token
        self._deadline = deadline

    async def endpoint(self) -> str:
        """The hub's address."""
        if self._endpoint is None:
            found = await asyncio.to_thread(import_module, "huggingface_hub.constants")
            self._endpoint = str(found.ENDPOINT).rstrip("/")
        return self._endpoint

    async def asked(self, repository: str, revision: str, file: str | None = None) -> Asked:
        """What errors about this question speak of."""
        return Asked(
            await self.endpoint(), repository, revision, file, None if self.token is None else self.token.place
        )

    async def snapshot(self, repository: str, revision: str) -> Snapshot:
        """What `revision` (a branch, tag or commit) is now, with the files' sizes and digests.

        Raises `AuthGated`, `AuthFailed`, `NotOffered`, `RateLimited`, `SourceFailed`, `UsageError` for a
        name that no repository can have.
        """
        asked = await self.asked(repository, revision)

        def ask() -> Any:
            library = import_module("huggingface_hub")
            api = library.HfApi(
                endpoint=asked.endpoint,
                token=False if self.token is None else self.token.value,
                library_name="outrider",
            )
            return api.model_info(repository, revision=revision, files_metadata=True, timeout=self._deadline)

        try:
            # twice: the library's deadline is that of each step of the call, ours of all of it
            info = await in_thread(ask, 2 * self._deadline, f"the hub at {asked.endpoint}")
        except OutriderError:
            raise
        except Exception as error:
            raise _meaning(error, asked) from error
        return _snapshot(info, asked)


async def in_thread(work: Callable[[], T], deadline: float, who: str) -> T:
    """`work()` in a thread that is left behind after `deadline` seconds. Raises `SourceFailed` then."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type] # the result of `work`, whose type may have None
        else:
            done.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="outrider-hub", daemon=True).start()
    try:
        async with asyncio.timeout(deadline):
            return await done
    except TimeoutError as error:
        raise SourceFailed(
            f"{who} did not answer within {deadline:g} s", hint="check network and proxy, then pull again"
        ) from error


def _snapshot(info: Any, asked: Asked) -> Snapshot:
    commit = info.sha
    if not isinstance(commit, str) or len(commit) != COMMIT or not set(commit) <= set("0123456789abcdef"):
        raise SourceFailed(
            f"the hub does not say which commit {asked.revision} of {asked.repository} is",
            hint=f"is {asked.endpoint} a hub? see `[hub] endpoint`",
        )
    files = []
    for found in info.siblings or ():
        sized = isinstance(found.size, int) and not isinstance(found.size, bool) and 0 <= found.size < 2**63
        sha256 = None if found.lfs is None else _hex(_SHA256, found.lfs.sha256)
        git_sha1 = _hex(_SHA1, found.blob_id)
        known = git_sha1 if found.lfs is None else sha256
        if not sized or known is None or not _plain(found.rfilename):
            continue  # what has no size and digest cannot be checked, what has no plain name not be stored
        files.append(HubFile(found.rfilename, found.size, sha256, git_sha1))
    return Snapshot(asked.repository, commit, tuple(sorted(files, key=lambda f: f.path)))


def _hex(pattern: re.Pattern[str], value: object) -> str | None:
    text = value.lower() if isinstance(value, str) else ""
    return text if pattern.fullmatch(text) else None


def _plain(path: object) -> bool:
    """Whether a path of the hub's can be one below a folder of ours, and is none that we give to notes."""
    if not isinstance(path, str) or not 0 < len(path) <= 512 or not path.isprintable() or "\\" in path:
        return False
    if path.endswith((PARTIAL, f"{PARTIAL}.json")):
        return False
    return all(part and not part.startswith(".") and len(part.encode()) <= 200 for part in path.split("/"))


def _meaning(error: Exception, asked: Asked) -> OutriderError:
    """An exception of the library's as one of ours."""
    errors = import_module("huggingface_hub.errors")
    response = getattr(error, "response", None)
    if isinstance(error, errors.HFValidationError):
        return UsageError(f"{asked.repository} is no name of a repository", hint="such as ORG/REPO")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return SourceFailed(
            "HF_HUB_OFFLINE is set in the daemon's environment", hint="take it out of the daemon's unit, and restart it"
        )
    if response is not None:
        headers: Mapping[str, str] = response.headers
        return refusal(int(response.status_code), headers, asked)
    host = urlsplit(asked.endpoint).netloc
    said = " ".join(str(error).split())[:200] or type(error).__name__
    return SourceFailed(
        f"the hub at {host} cannot be asked: {said}",
        hint="check network, proxy and `[hub] endpoint`; then pull again",
        evidence={"error": type(error).__name__},
    )

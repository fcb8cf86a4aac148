"""A small hub on loopback: the API and the file addresses that `huggingface_hub` and we ask, with faults.

The shapes are those of the public hub as the library reads them (`hf_api`, `file_download`,
`utils/_http`): `/api/models/{repo}/revision/{rev}?blobs=true`, `/api/models/{repo}/tree/{rev}`, HEAD and
GET of `/{repo}/resolve/{rev}/{file}` with ETag, X-Repo-Commit, and for large files X-Linked-Size,
X-Linked-ETag and a redirect to another port, the "CDN", which serves ranges. It runs in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache

from aiohttp import web

from tests.waiting import until

LFS_FROM = 4096
"""Bytes from which a file is a large one here."""
STEP = 1 << 16


@dataclass
class Repo:
    """One repository at one commit."""

    name: str
    files: dict[str, bytes]
    gated: bool = False
    private: bool = False

    @property
    def commit(self) -> str:
        text = "".join(f"{name}{sha256(data)}" for name, data in sorted(self.files.items()))
        return hashlib.sha1(f"{self.name}{text}".encode()).hexdigest()


@dataclass(frozen=True)
class Served:
    """One request for bytes: who was asked (`hub`, `cdn`), the file, its Range, the status, the token sent."""

    host: str
    file: str
    range: str | None
    status: int
    token: str | None


class HubServer:
    """Change its attributes between calls to make it fail."""

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.heads: dict[str, str] = {}
        self.tokens: set[str] = set()
        self.served: list[Served] = []
        self.api: list[tuple[str, str | None]] = []
        self.bytes_sent = 0
        self.refuse: list[tuple[int, Mapping[str, str]]] = []
        """Answers that come first, for API calls: (status, headers), used up one by one."""
        self.refuse_bytes: list[tuple[int, Mapping[str, str]]] = []
        """The same, of the CDN."""
        self.cut_at: list[int] = []
        """After so many bytes of an answer the connection is broken; used up one by one."""
        self.no_range = False
        self.corrupt: set[str] = set()
        """Files that come with a wrong byte."""
        self.wrong_length: set[str] = set()
        self.claimed: dict[str, dict[str, object]] = {}
        """What is said of a file in place of the truth, key by key."""
        self.location: str | None = None
        """Where large files are said to be."""
        self.etag_salt = ""
        self.rate: float | None = None
        """Bytes a second; None is as fast as can be."""
        self.silent_after: int | None = None
        """Bytes of an answer after which nothing more comes, with the connection open."""
        self.pause: Callable[[int], None] | None = None
        """Called with the bytes sent so far over all answers."""
        self.endpoint = self.cdn = ""
        self._loop: asyncio.AbstractEventLoop | None = None

    # what is there

    def add(self, name: str, files: Mapping[str, bytes], *, gated: bool = False, private: bool = False) -> Repo:
        """Put a commit of a repository there; `main` is the last one."""
        repo = Repo(name, dict(files), gated, private)
        self.repos[name, repo.commit] = repo
        self.heads[name] = repo.commit
        return repo

    def _repo(self, name: str, revision: str) -> Repo | None:
        return self.repos.get((name, self.heads.get(name, "") if revision == "main" else revision))

    def ranges(self, file: str) -> list[str | None]:
        """The Range headers of all requests to the CDN for this file."""
        return [s.range for s in self.served if s.file == file and s.host == "cdn"]

    # serving

    def _refused(self, request: web.Request, name: str, revision: str, file: str | None = None) -> web.Response | None:
        """The public hub's refusals, with its headers."""
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ") or None
        if sent is not None and sent not in self.tokens:
            return _no(401, "", "Invalid credentials in Authorization header")
        if name not in self.heads or (self.repos[name, self.heads[name]].private and sent is None):
            return _no(
                404 if sent else 401,
                "RepoNotFound",
                "Repository not found" if sent else "Invalid username or password.",
            )
        repo = self._repo(name, revision)
        if repo is None:
            return _no(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if repo.gated and file is not None and (sent is None or sent.endswith("-nogate")):
            text = (
                f"Access to model {name} is restricted. You must have access to it and be authenticated to access it."
            )
            return _no(401 if sent is None else 403, "GatedRepo", text)
        if file is not None and file not in repo.files:
            return _no(404, "EntryNotFound", "Entry not found")
        return None

    async def _info(self, request: web.Request) -> web.StreamResponse:
        name, revision = (
            f"{request.match_info['org']}/{request.match_info['repo']}",
            request.match_info.get("rev", "main"),
        )
        self.api.append((request.path, request.headers.get("Authorization")))
        if self.refuse:
            status, headers = self.refuse.pop(0)
            return web.Response(status=status, headers=headers)
        refused = self._refused(request, name, revision)
        if refused is not None:
            return refused
        repo = self._repo(name, revision)
        assert repo is not None
        siblings = [_sibling(path, data) | self.claimed.get(path, {}) for path, data in sorted(repo.files.items())]
        if request.query.get("blobs") != "true":
            siblings = [{"rfilename": s["rfilename"]} for s in siblings]
        found = {
            "_id": "0" * 24,
            "id": name,
            "modelId": name,
            "author": request.match_info["org"],
            "sha": repo.commit,
            "lastModified": "2026-11-01T00:00:00.000Z",
            "createdAt": "2026-10-01T00:00:00.000Z",
            "private": repo.private,
            "gated": "manual" if repo.gated else False,
            "disabled": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": siblings,
        }
        return web.json_response(found)

    async def _tree(self, request: web.Request) -> web.StreamResponse:
        name, revision = f"{request.match_info['org']}/{request.match_info['repo']}", request.match_info["rev"]
        refused = self._refused(request, name, revision)
        if refused is not None:
            return refused
        repo = self._repo(name, revision)
        assert repo is not None
        found = []
        for path, data in sorted(repo.files.items()):
            entry = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
            if len(data) >= LFS_FROM:
                digest = sha256(data)
                entry |= {"lfs": {"oid": digest, "size": len(data), "pointerSize": 134}, "xetHash": digest}
            found.append(entry)
        return web.json_response(found)

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        name, revision = f"{request.match_info['org']}/{request.match_info['repo']}", request.match_info["rev"]
        file = request.match_info["file"]
        refused = self._refused(request, name, revision, file)
        status = 302 if refused is None else refused.status
        token = request.headers.get("Authorization")
        self.served.append(Served("hub", file, request.headers.get("Range"), status, token))
        if refused is not None:
            return refused
        repo = self._repo(name, revision)
        assert repo is not None
        data = repo.files[file]
        common = {"X-Repo-Commit": repo.commit, "Accept-Ranges": "bytes"}
        if len(data) < LFS_FROM:
            if file in self.corrupt:
                data = b"#" + data[1:]
            return web.Response(body=data, headers={**common, "ETag": f'"{git_sha1(data)}"'})
        digest = sha256(data)
        linked = {"X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{digest}"'}
        where = self.location or f"{self.cdn}/{name}/{repo.commit}/{file}?signature=abc"
        return web.Response(status=302, headers={**common, **linked, "Location": where})

    async def _bytes(self, request: web.Request) -> web.StreamResponse:
        name = f"{request.match_info['org']}/{request.match_info['repo']}"
        file, asked = request.match_info["file"], request.headers.get("Range")
        data = self.repos[name, request.match_info["rev"]].files[file]
        token = request.headers.get("Authorization")
        if self.refuse_bytes:
            status, headers = self.refuse_bytes.pop(0)
            self.served.append(Served("cdn", file, asked, status, token))
            return web.Response(status=status, headers=headers)
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked and not self.no_range else 0
        etag = f'"{self.etag_salt}{sha256(data)}"'
        if start >= len(data):
            self.served.append(Served("cdn", file, asked, 416, token))
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(data)}", "ETag": etag})
        status = 206 if asked and not self.no_range else 200
        self.served.append(Served("cdn", file, asked, status, token))
        body = data
        if file in self.corrupt:
            body = data[:-1] + bytes([data[-1] ^ 0xFF])
        if file in self.wrong_length:
            body = body[:-100]
        headers = {"ETag": etag, "Accept-Ranges": "bytes", "Content-Length": str(len(body) - start)}
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        answer = web.StreamResponse(status=status, headers=headers)
        await answer.prepare(request)
        with suppress(ConnectionResetError):  # whoever asked has gone
            await self._send(request, answer, memoryview(body)[start:])
        return answer

    async def _send(self, request: web.Request, answer: web.StreamResponse, body: memoryview) -> None:
        cut = self.cut_at.pop(0) if self.cut_at else None
        sent = 0
        while sent < len(body):
            limit = min(len(body) - sent, STEP if self.rate is None else max(1024, int(self.rate / 20)))
            if cut is not None:
                limit = min(limit, cut - sent)
            if self.silent_after is not None:
                limit = min(limit, self.silent_after - sent)
                if limit <= 0:
                    await until(lambda: request.transport is None or request.transport.is_closing(), 60)
                    return
            if limit <= 0:
                assert request.transport is not None
                request.transport.close()
                return
            await answer.write(bytes(body[sent : sent + limit]))
            sent += limit
            self.bytes_sent += limit
            if self.pause is not None:
                self.pause(self.bytes_sent)
            if self.rate is not None:
                await asyncio.sleep(limit / self.rate)

    async def start(self) -> list[web.AppRunner]:
        """Listen on two free ports."""
        hub, cdn = web.Application(), web.Application()
        hub.router.add_get("/api/models/{org}/{repo}", self._info)
        hub.router.add_get("/api/models/{org}/{repo}/revision/{rev:.+}", self._info)
        hub.router.add_get("/api/models/{org}/{repo}/tree/{rev:.+}", self._tree)
        hub.router.add_get("/{org}/{repo}/resolve/{rev}/{file:.+}", self._resolve)
        cdn.router.add_get("/{org}/{repo}/{rev}/{file:.+}", self._bytes)
        runners, addresses = [], []
        for app in (hub, cdn):
            runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            addresses.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
            runners.append(runner)
        self.endpoint, self.cdn = addresses
        return runners


@lru_cache(256)
def sha256(data: bytes) -> str:
    """Hex; remembered, for some files are large."""
    return hashlib.sha256(data).hexdigest()


@lru_cache(256)
def git_sha1(data: bytes) -> str:
    """The id that git gives a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _sibling(path: str, data: bytes) -> dict[str, object]:
    found: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": git_sha1(data)}
    if len(data) >= LFS_FROM:
        digest = sha256(data)
        found["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
    return found


def _no(status: int, code: str, message: str) -> web.Response:
    headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
    return web.json_response({"error": message}, status=status, headers=headers)


@contextmanager
def running() -> Iterator[HubServer]:
    """A hub in a thread of its own."""
    hub = HubServer()
    loop = asyncio.new_event_loop()
    runners: list[web.AppRunner] = []
    up = threading.Event()

    def serve() -> None:
        asyncio.set_event_loop(loop)
        runners.extend(loop.run_until_complete(hub.start()))
        up.set()
        loop.run_forever()

    thread = threading.Thread(target=serve, name="hub")
    thread.start()
    up.wait(10)

    async def end() -> None:
        for runner in runners:
            await runner.cleanup()
        left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    try:
        yield hub
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()

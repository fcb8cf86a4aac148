"""Debian's `docker-registry` on loopback, and a thin proxy before it that misbehaves when a test says so.

A Podman service of the test's own reaches both through the real names (`docker.io/...`,
`ghcr.io/...`), for its registries.conf says so. Storage and temporary folder are the test's own too,
so that what a pull leaves can be seen whole.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx
from aiohttp import web

from containers import trial
from tests.podman_fixture import run_apart
from tests.ports import free_ports
from tests.stack.stack import accepts
from tests.waiting import until_sync

LIMIT = 30.0
USER, PASSWORD = "outrider", "correct-horse"
HTPASSWD = "outrider:$2b$05$VJssVNj317cPGyqxcSzMfO20rfSFx21FVYJoJ2j4fa018Cw2tT5z6"
"""bcrypt, which is the only one that the registry takes."""
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
MANIFEST_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
_BLOB = 1 << 20


@contextmanager
def registry(folder: Path, *, login: bool = False) -> Iterator[str]:
    """A registry of its own; its `host:port`. With `login` it asks for `USER` and `PASSWORD`."""
    (port,) = free_ports(1)
    data = folder / "data"
    data.mkdir(parents=True)
    config: dict[str, Any] = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(data)}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    if login:
        (folder / "htpasswd").write_text(HTPASSWD + "\n")
        config["auth"] = {"htpasswd": {"realm": "outrider", "path": str(folder / "htpasswd")}}
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", folder / "config.yml"], stdout=log, stderr=log)
    try:
        where = f"127.0.0.1:{port}"
        until_sync(lambda: _answers(where, process), LIMIT, "the registry")
        yield where
    finally:
        process.kill()
        process.wait(LIMIT)


def _answers(where: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the registry ended at once"
    try:
        return httpx.get(f"http://{where}/v2/", timeout=5).status_code in (200, 401)
    except httpx.HTTPError:
        return False


@dataclass(frozen=True)
class Image:
    """An image in a registry."""

    repository: str
    tag: str
    digest: str
    config_digest: str
    layers: tuple[str, ...]
    layer_bytes: int
    compressed: int

    @property
    def id(self) -> str:
        return self.config_digest


def noise(size: int, seed: int) -> bytes:
    """Bytes that do not compress, the same every time."""
    return random.Random(seed).randbytes(size)


def layer(files: Mapping[str, bytes], *, level: int = 1) -> tuple[bytes, str]:
    """A gzipped tar of these files, and the digest of the tar in it."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
    raw = plain.getvalue()
    return gzip.compress(raw, level, mtime=0), digest_of(raw)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def publish(
    where: str,
    repository: str,
    tag: str,
    layers: Sequence[tuple[bytes, str]],
    *,
    architecture: str = "amd64",
    config: Mapping[str, object] | None = None,
) -> Image:
    """Put an image of these layers into a registry."""
    about = {
        "architecture": architecture,
        "os": "linux",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": [diff for _, diff in layers]},
    }
    with httpx.Client(base_url=f"http://{where}/v2/{repository}", auth=(USER, PASSWORD), timeout=60) as http:
        described = json.dumps(about).encode()
        config_blob = _blob(http, described)
        blobs = [_blob(http, data) for data, _ in layers]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": len(described),
                "digest": config_blob,
            },
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "size": len(data),
                    "digest": digest,
                }
                for (data, _), digest in zip(layers, blobs, strict=True)
            ],
        }
        digest = _manifest(http, tag, MANIFEST, json.dumps(manifest).encode())
    size = sum(len(data) for data, _ in layers)
    return Image(repository, tag, digest, config_blob, tuple(blobs), size, size + len(described))


def publish_index(where: str, repository: str, tag: str, images: Mapping[str, Image]) -> str:
    """An index of images by architecture under one tag; its digest."""
    with httpx.Client(base_url=f"http://{where}/v2/{repository}", auth=(USER, PASSWORD), timeout=60) as http:
        entries = []
        for architecture, image in images.items():
            found = http.get(f"/manifests/{image.digest}", headers={"accept": MANIFEST})
            entries.append(
                {
                    "mediaType": MANIFEST,
                    "size": len(found.content),
                    "digest": image.digest,
                    "platform": {"architecture": architecture, "os": "linux"},
                }
            )
        index = {"schemaVersion": 2, "mediaType": MANIFEST_LIST, "manifests": entries}
        return _manifest(http, tag, MANIFEST_LIST, json.dumps(index).encode())


def _blob(http: httpx.Client, data: bytes) -> str:
    digest = digest_of(data)
    begun = http.post("/blobs/uploads/")
    begun.raise_for_status()
    put = http.put(begun.headers["location"], params=_query(begun.headers["location"], digest), content=data)
    put.raise_for_status()
    return digest


def _query(location: str, digest: str) -> dict[str, str]:
    return {**dict(httpx.URL(location).params), "digest": digest}


def _manifest(http: httpx.Client, tag: str, kind: str, body: bytes) -> str:
    http.put(f"/manifests/{tag}", content=body, headers={"content-type": kind}).raise_for_status()
    return digest_of(body)


@dataclass
class Faults:
    """What the proxy does wrong. Counts what it was asked for."""

    status: int | None = None
    """Answer everything with this status."""
    retry_after: str | None = None
    refusals: int | None = None
    """Answer with `status` only so many times."""
    cut_after: int | None = None
    """Break a blob off after so many bytes."""
    corrupt: int | None = None
    """Change a byte of each blob that is at least so large."""
    half_manifest: bool = False
    pace: Callable[[int], Any] | None = None
    """Awaited with the bytes sent so far, before each piece of a blob."""
    pace_rate: float | None = None
    """Bytes a second of each blob."""
    asked: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    open: int = 0
    """Connections on which a blob is being sent."""


class Proxy:
    """A registry's front, in a thread of its own."""

    def __init__(self, behind: str) -> None:
        self.behind = behind
        self.faults = Faults()
        (self.port,) = free_ports(1)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run)

    @property
    def where(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(LIMIT)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._relay)
        # a client that leaves must be seen at once: what it left open is what tests count
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            self._ready.set()
            await self._stop.wait()
        await runner.cleanup()

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        faults = self.faults
        faults.asked.append(f"{request.method} {request.path_qs}")
        if "Authorization" in request.headers:
            faults.logins.append(request.headers["Authorization"])
        refused = self._refused(faults)
        if refused is not None:
            return refused
        headers = request.headers.copy()  # Accept comes several times
        for name in ("Host", "Connection"):
            headers.popall(name, None)
        async with self._session.request(
            request.method, f"http://{self.behind}{request.path_qs}", headers=headers, allow_redirects=False
        ) as answer:
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in ("connection", "transfer-encoding")}
            blob = "/blobs/" in request.path and request.method == "GET" and answer.status < 300
            if blob:
                return await self._send_blob(request, answer, kept)
            body = await answer.read()
            if faults.half_manifest and "/manifests/" in request.path and body:
                body = body[: len(body) // 2]
                kept["Content-Length"] = str(len(body))
                kept.pop("Docker-Content-Digest", None)
            return web.Response(status=answer.status, headers=kept, body=body)

    @staticmethod
    def _refused(faults: Faults) -> web.Response | None:
        if faults.status is None or faults.refusals == 0:
            return None
        if faults.refusals is not None:
            faults.refusals -= 1
        code = {401: "UNAUTHORIZED", 403: "DENIED", 404: "NAME_UNKNOWN", 429: "TOOMANYREQUESTS"}.get(
            faults.status, "UNKNOWN"
        )
        body = {"errors": [{"code": code, "message": "as the test says", "detail": None}]}
        headers = {} if faults.retry_after is None else {"Retry-After": faults.retry_after}
        return web.json_response(body, status=faults.status, headers=headers)

    async def _send_blob(
        self, request: web.Request, answer: aiohttp.ClientResponse, headers: Mapping[str, str]
    ) -> web.StreamResponse:
        faults = self.faults
        out = web.StreamResponse(status=answer.status, headers=headers)
        faults.open += 1
        try:
            await out.prepare(request)
            sent = 0
            async for piece in answer.content.iter_chunked(_BLOB if faults.pace is None else 1 << 16):
                data = piece
                large = (answer.content_length or 0) >= (faults.corrupt or 0)
                if faults.corrupt is not None and sent == 0 and large:
                    data = _flipped(piece)
                if faults.pace is not None:
                    await faults.pace(sent)
                if faults.pace_rate is not None:
                    await asyncio.sleep(len(data) / faults.pace_rate)
                if faults.cut_after is not None and sent + len(data) > faults.cut_after:
                    await out.write(data[: faults.cut_after - sent])
                    assert request.transport is not None
                    request.transport.abort()
                    return out
                await out.write(data)
                sent += len(data)
            return out
        finally:
            faults.open -= 1


def _flipped(piece: bytes) -> bytes:
    """Changed in the middle: the header of a gzip stays one."""
    middle = len(piece) // 2
    return piece[:middle] + bytes([piece[middle] ^ 0xFF]) + piece[middle + 1 :]


@asynccontextmanager
async def paced(proxy: Proxy, rate: float) -> AsyncIterator[None]:
    """Blobs at so many bytes a second for the length of a `with`."""

    async def wait(_sent: int) -> None:
        await asyncio.sleep((1 << 16) / rate)

    proxy.faults.pace = wait
    try:
        yield
    finally:
        proxy.faults.pace = None


def _registries(places: Mapping[str, str], also: Sequence[str]) -> str:
    lines = ["unqualified-search-registries = []"]
    for name, where in places.items():
        lines += ["[[registry]]", f'prefix = "{name}"', f'location = "{where}"', "insecure = true"]
    for where in {*places.values(), *also}:
        lines += ["[[registry]]", f'location = "{where}"', "insecure = true"]
    return "\n".join(lines) + "\n"


class PodmanOfMine:
    """A Podman service with storage, temporary folder and registries of its own."""

    def __init__(
        self,
        places: Mapping[str, str],
        *,
        also: Sequence[str] = (),
        root: Path | None = None,
        temporary: Path | None = None,
    ) -> None:
        """`places`: registry's real name to the `host:port` that stands for it; `also` speak no TLS either.

        `root` and `temporary` are where storage and what is pulled go. Podman reads its registries.conf once.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="or-im-"))
        self.root = root or self.folder / "root"
        self.temporary = temporary or self.folder / "big"
        self.socket = str(self.folder / "p.sock")
        self.registries = self.folder / "registries.conf"
        self.process: subprocess.Popen[bytes] | None = None
        for path in (self.root, self.temporary):
            path.mkdir(parents=True, exist_ok=True)
        self.registries.write_text(_registries(places, also))
        conf = run_apart(trial.settings(self.folder, limit=LIMIT))
        self._environ = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "CONTAINERS_REGISTRIES_CONF": str(self.registries),
            "REGISTRY_AUTH_FILE": str(self.folder / "no-auth.json"),
            "HOME": str(self.folder),
        }
        if conf is not None:
            self._environ["CONTAINERS_CONF"] = str(conf)

    def __enter__(self) -> PodmanOfMine:
        self.start()
        return self

    def start(self) -> None:
        with (self.folder / "podman.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    "podman",
                    f"--root={self.root}",
                    f"--runroot={self.folder / 'run'}",
                    f"--tmpdir={self.folder / 'tmp'}",
                    "system",
                    "service",
                    "--time=0",
                    f"unix://{self.socket}",
                ],
                env=self._environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until_sync(lambda: accepts(Path(self.socket)), LIMIT, "Podman")

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(LIMIT)
        Path(self.socket).unlink(missing_ok=True)

    def run(self, *words: str) -> str:
        """The podman command line against this service."""
        done = subprocess.run(
            ["podman", "--url", f"unix://{self.socket}", *words], capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def left_over(self) -> list[str]:
        """What lies in the temporary folder."""
        return sorted(os.listdir(self.temporary))

    def layers(self) -> list[str]:
        """Layers in the storage, of whole images or not."""
        listed = self.root / "overlay-layers" / "layers.json"
        return [] if not listed.exists() else [x["id"] for x in json.loads(listed.read_text() or "[]")]

    def empty(self) -> None:
        """Remove all images."""
        if self.layers():
            self.run("rmi", "--all", "--force")

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(LIMIT)
        mounted = self.root / "overlay"
        subprocess.run(["umount", "-l", str(mounted)], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

"""Podman, for asyncio: podman-py behind a bounded pool of threads, with a deadline for every call.

podman-py is synchronous, so each call runs in one of a few threads of our own: the
default pool is shared with whatever else uses it and would be starved by it. Streams
(logs) hold a connection for hours and do not come through here at all: see
`containers.streams`.

A call that runs into its deadline raises `PodmanTimeout`; Podman may carry it out all
the same. Names of containers are unique for each attempt, and `containers.sweep` finds
what such a call left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import urllib.parse
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import requests
from podman.api.client import APIResponse
from podman.domain.containers_manager import ContainersManager
from podman.domain.images_manager import ImagesManager

from containers import cdi, failures, orphans, payload, pull_errors, pulling, streams, transport
from containers.errors import ContainerMissing, DeviceUnavailable, GroupsUnmapped, ImageMissing, PodmanFailed
from containers.logins import Login
from containers.pulling import PullProgress
from containers.references import Reference
from containers.spec import ContainerSpec, ContainerState, ImageInfo, ImageUser, LogLine, Storage

T = TypeVar("T")

THREADS = 8
PULLED_TO = "/var/tmp"  # noqa: S108
"""Where Podman puts what it pulls, if it does not say."""
LOAD_LIMIT = 600.0
"""Seconds to load an image: some are tens of gigabytes."""
_LISTINGS = 5
_WRONG_STATE = "state improper"
_SLACK = 1.0
"""Seconds that a call may take in our own process on top of the socket's timeout."""


def _path(*parts: str) -> str:
    return "/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)


class Podman:
    """The Podman service on a unix socket.

    `call_timeout` is the deadline of one call in seconds, where a method does not name
    another. The service may be restarted at any time; the next call reaches the new one.
    Every method raises `PodmanUnreachable`, `PodmanTimeout` or `PodmanFailed`, and what its
    docstring names.
    """

    def __init__(self, socket_path: str | Path, *, call_timeout: float = 30.0) -> None:
        self.socket = str(socket_path)
        self.call_timeout = call_timeout
        self._api = transport.client(self.socket, call_timeout)
        self._containers = ContainersManager(client=self._api)
        self._images = ImagesManager(client=self._api)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="podman")
        self._version: str | None = None
        self._owner: tuple[bool, str] | None = None

    async def close(self) -> None:
        """Let go of threads and connections; calls under way end by their own timeouts."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._api.close)

    # -- the service -----------------------------------------------------------

    async def ping(self) -> bool:
        """Whether the service answers; True, or one of the errors above."""
        await self._call("ping", lambda t: self._checked(self._api.get("/_ping", timeout=t)))
        return True

    async def version(self) -> str:
        """The service's version, such as `4.3.1`; asked for once."""
        if self._version is None:
            # /version takes a third of a second, for it runs conmon and the runtime; the header is free.
            answer = await self._call("version", lambda t: self._checked(self._api.get("/_ping", timeout=t)))
            self._version = str(answer.headers["Libpod-Api-Version"])
        return self._version

    async def storage(self) -> Storage:
        """Where images and pulls lie. Ask once: the service runs conmon and the runtime to answer (0.4 s)."""
        info = await self._call(
            "ask where Podman's storage is", lambda t: self._json(self._api.get("/info", timeout=t))
        )
        store = info["store"]
        return Storage(str(store["graphRoot"]), str(store.get("imageCopyTmpDir") or PULLED_TO))

    async def _keeps_groups(self) -> bool:
        """Whether host groups must be kept rather than given: without root they have no number in a container.

        Raises `GroupsUnmapped` where the runtime cannot keep them. Asked for once (0.4 s).
        """
        if self._owner is None:
            info = await self._call("ask how Podman runs", lambda t: self._json(self._api.get("/info", timeout=t)))
            host = info["host"]
            self._owner = bool(host["security"]["rootless"]), str(host["ociRuntime"]["name"])
        rootless, runtime = self._owner
        if rootless and runtime != "crun":
            raise GroupsUnmapped(
                f"a container of a user's own Podman with {runtime} gets none of the groups that own the GPU's nodes",
                hint="install crun (apt-get install crun), or run Outrider as a system service: `outrider install`",
            )
        return rootless

    # -- images ----------------------------------------------------------------

    async def image(self, ref: str) -> ImageInfo | None:
        """The local image with this id, name or digest; None when there is none."""

        def get(t: float) -> ImageInfo:
            return payload.image_info(self._json(self._api.get(_path("images", ref, "json"), timeout=t)))

        try:
            return await self._call(f"look for the image {ref}", get)
        except ImageMissing:
            return None

    async def images(self, label: str | None = None) -> tuple[ImageInfo, ...]:
        """The local images, of one label (`key` or `key=value`) if given."""
        filters = {} if label is None else {"label": label}

        def get(_t: float) -> tuple[ImageInfo, ...]:
            return tuple(payload.image_info(image.attrs) for image in self._images.list(filters=filters))

        return await self._call("list images", get)

    async def load_image(self, archive: Path, *, limit: float = LOAD_LIMIT) -> ImageInfo:
        """Load a docker or OCI archive, streamed from the file.

        Raises `PodmanFailed` for a file that is no image, and OSError for one that cannot be read.
        """

        def load(t: float) -> ImageInfo:
            with archive.open("rb") as file:
                answer = self._json(
                    self._api.post("/images/load", data=file, headers={"Content-Type": "application/x-tar"}, timeout=t)
                )
            names = answer.get("Names") or ()
            if not names:
                raise PodmanFailed(f"load {archive}: Podman named no image")
            return payload.image_info(self._json(self._api.get(_path("images", names[0], "json"), timeout=t)))

        archive.stat()  # noqa: ASYNC240 - so that a missing file is not mistaken for a missing service
        return await self._call(f"load the image {archive}", load, limit)

    async def tag(self, ref: str, repository: str, tag: str) -> None:
        """Give an image one more name; a name that another image has moves to it."""

        def name(t: float) -> None:
            self._checked(
                self._api.post(_path("images", ref, "tag"), params={"repo": repository, "tag": tag}, timeout=t)
            )

        await self._call(f"tag the image {ref}", name)

    async def remove_image(self, ref: str, *, force: bool = False) -> bool:
        """Remove an image; False when it was not there. `PodmanFailed` while a container uses it."""

        def remove(t: float) -> None:
            self._checked(self._api.delete(_path("images", ref), params={"force": str(force).lower()}, timeout=t))

        try:
            await self._call(f"remove the image {ref}", remove)
        except ImageMissing:
            return False
        return True

    async def pull(
        self,
        reference: Reference,
        *,
        logins: Mapping[str, Login] | None = None,
        sizes: Mapping[str, int] | None = None,
        report: Callable[[PullProgress], None] = lambda _: None,
    ) -> ImageInfo:
        """Pull an image: see `containers.pulling.pull`. What is there then.

        Raises `SourceFailed` when Podman ended without an error and without the image.
        """
        await pulling.pull(self.socket, reference, logins=logins, sizes=sizes, report=report)
        found = await self.image(reference.exact)
        if found is None:
            raise pull_errors.source_failed(f"{reference} is not here after its pull", reference)
        return found

    # -- containers ------------------------------------------------------------

    async def create(self, spec: ContainerSpec) -> str:
        """Create a container and return its id. The spec must have passed `containers.validator`.

        Raises `NameInUse`, `ImageMissing`, `DeviceUnavailable` (a device node that is missing;
        a CDI name is looked up only at the start), `SpecRefused` (an unknown profile), `GroupsUnmapped`.
        """
        words = payload.create_keywords(spec, keep_groups=bool(spec.groups) and await self._keeps_groups())
        return await self._call(
            f"create the container {spec.name}", lambda _t: str(self._containers.create(**words).id)
        )

    async def start(self, container: str) -> None:
        """Start a container; one that runs already is fine. Raises `ContainerMissing`, `DeviceUnavailable`."""
        try:
            await self._post(f"start the container {container}", container, "start")
        except DeviceUnavailable as error:
            if "CDI" in error.detail:
                error.hint = cdi.hint(await self.version())
            raise

    async def stop(self, container: str, timeout: float, *, limit: float | None = None) -> None:
        """Ask the workload to end and kill it after `timeout` seconds; one that ended already is fine.

        `limit` is the call's deadline in seconds, by default that of any call and the `timeout`.
        """
        grace = math.ceil(timeout)
        await self._post(
            f"stop the container {container}",
            container,
            "stop",
            {"timeout": str(grace)},
            self.call_timeout + grace if limit is None else limit,
        )

    async def kill(self, container: str, signal: str = "SIGKILL") -> bool:
        """Send a signal to the workload; False when there is nothing running to send it to."""
        try:
            await self._post(f"send {signal} to {container}", container, "kill", {"signal": signal})
        except PodmanFailed as error:
            # 409 from 4.6 on, before that 500 with this text.
            if error.evidence.get("status") == requests.codes.conflict or _WRONG_STATE in error.detail:
                return False
            raise
        return True

    async def remove(self, container: str, *, force: bool = True, timeout: float = 0) -> bool:
        """Remove a container; False when there was none.

        With `force` a running workload is killed after `timeout` seconds, and one that Podman never
        heard had begun is ended too. podman-py cannot say that timeout and would wait for the
        container's own, so this is the raw call.
        """
        grace = math.ceil(timeout)
        params = {"force": str(force).lower(), "timeout": str(grace), "v": "true"} if force else {"v": "true"}

        def remove(t: float) -> None:
            answer = self._checked(self._api.delete(_path("containers", container), params=params, timeout=t))
            reports = json.loads(answer.text) if answer.text.startswith("[") else []
            for report in reports:
                if report.get("Err"):
                    raise failures.refused(500, str(report["Err"]), f"remove the container {container}")

        doing, limit = f"remove the container {container}", self.call_timeout + grace
        try:
            await self._call(doing, remove, limit)
        except ContainerMissing:
            return False
        except PodmanFailed:
            if not force:
                raise
            # It had the container as running and found nobody to kill, and has put its books right by
            # now; or it removed all and complains about a mount that it did not know of.
            with contextlib.suppress(ContainerMissing):
                runtime = await self._call(doing, lambda t: self._runtime(container, t))
                await self._call(doing, remove, limit)
                await self._call(doing, lambda t: orphans.forget(runtime, container, t))
        if force:
            await self._call(doing, lambda t: self._end_orphans(container, t), limit)
        return True

    async def inspect(self, container: str) -> ContainerState | None:
        """What Podman and `/proc` say about a container; None when there is none."""
        try:
            return await self._call(f"inspect the container {container}", lambda t: self._state(container, t))
        except ContainerMissing:
            return None

    async def containers(self, labels: Mapping[str, str]) -> tuple[ContainerState, ...]:
        """All containers, running or not, that carry every one of these labels.

        One that vanishes meanwhile, or whose removal was cut off so that Podman lists it and
        does not know it, is left out.
        """
        found = await self.listed(labels)
        states = await asyncio.gather(*(self.inspect(container) for container in found))
        return tuple(state for state in states if state is not None)

    async def listed(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Container id to Podman's word for its state, of all with these labels.

        Unlike `containers` it takes one call, and has those that Podman lists and no longer knows.
        """
        # podman-py turns a list *inside* a dict of filters into its text, which matches nothing and
        # says nothing: a daemon would find no engine after its restart, and start each a second time.
        filters = [f"label={key}={value}" for key, value in labels.items()]

        def listing(_t: float) -> dict[str, str]:
            found = self._containers.list(all=True, filters=filters)
            return {str(c.id): str(c.attrs["State"]).lower() for c in found}

        return await self._call("list containers", listing)

    async def ghosts(self, prefix: str) -> tuple[str, ...]:
        """Names, beginning with `prefix`, that a create which was cut off left in the storage.

        Podman does not count such a one as a container, yet its name is taken; a create that is
        under way looks the same for some milliseconds. `remove` takes its name.
        """

        def listing(t: float) -> tuple[str, ...]:
            params = {"all": "true", "external": "true"}
            found = self._json(self._api.get("/containers/json", params=params, timeout=t))
            names = [n for c in found or () if str(c["State"]).lower() == "storage" for n in c.get("Names") or ()]
            return tuple(sorted(name for name in names if name.startswith(prefix)))

        for _ in range(_LISTINGS - 1):
            # Podman gives the whole list up when one of its entries, of whomever, goes meanwhile.
            with contextlib.suppress(ContainerMissing):
                return await self._call("list what is left in the storage", listing)
        return await self._call("list what is left in the storage", listing)

    async def image_users(self) -> tuple[ImageUser, ...]:
        """Everything in Podman's storage that holds an image, whoever made it: its containers, and other programs'."""

        def listing(t: float) -> tuple[ImageUser, ...]:
            params = {"all": "true", "external": "true"}
            found = self._json(self._api.get("/containers/json", params=params, timeout=t))
            return tuple(payload.image_user(entry) for entry in found or ())

        for _ in range(_LISTINGS - 1):
            with contextlib.suppress(ContainerMissing):  # as in `ghosts`
                return await self._call("list what holds images", listing)
        return await self._call("list what holds images", listing)

    # -- volumes ---------------------------------------------------------------

    async def volumes(self, prefix: str) -> dict[str, str]:
        """The volumes whose names begin with `prefix`: name to folder on the host."""
        answer = await self._call("list volumes", lambda t: self._json(self._api.get("/volumes/json", timeout=t)))
        found = {str(v["Name"]): str(v["Mountpoint"]) for v in answer or ()}
        return {name: found[name] for name in sorted(found) if name.startswith(prefix)}

    async def remove_volume(self, name: str) -> bool:
        """Remove a volume and what is in it; False when there was none. `PodmanFailed` while a container has it."""

        def remove(t: float) -> bool:
            answer = self._api.delete(_path("volumes", name), timeout=t)
            if answer.status_code == requests.codes.not_found:
                return False
            self._checked(answer)
            return True

        return await self._call(f"remove the volume {name}", remove)

    # -- streams ---------------------------------------------------------------

    def logs(
        self, container: str, *, tail: int | None = None, follow: bool = False, since: float | None = None
    ) -> AsyncGenerator[LogLine, None]:
        """The log of a container: see `containers.streams.logs`."""
        return streams.logs(self.socket, container, tail=tail, follow=follow, since=since, limit=self.call_timeout)

    # -- underneath ------------------------------------------------------------

    def _state(self, container: str, timeout: float) -> ContainerState:
        return payload.container_state(
            self._json(self._api.get(_path("containers", container, "json"), timeout=timeout))
        )

    async def _post(
        self,
        doing: str,
        container: str,
        verb: str,
        params: Mapping[str, str] | None = None,
        limit: float | None = None,
    ) -> None:
        def post(t: float) -> None:
            # 304 means "it is so already" and has no body, which podman-py's own methods try to decode.
            self._checked(self._api.post(_path("containers", container, verb), params=params, timeout=t))

        await self._call(doing, post, limit)

    def _runtime(self, container: str, timeout: float) -> str:
        answer = self._api.get(_path("containers", container, "json"), timeout=timeout)
        return str(self._json(answer)["OCIRuntime"])

    @staticmethod
    def _end_orphans(container: str, limit: float) -> None:
        """A container that was removed is gone, also when Podman did not know that it had begun."""
        for orphan in orphans.find(container=container):
            if orphan.workload is not None and not orphans.end(orphan, limit):
                raise PodmanFailed(
                    f"the container {container} is removed and its process {orphan.workload} is not",
                    evidence={"pid": orphan.workload, "conmon": orphan.conmon},
                )

    @staticmethod
    def _checked(answer: APIResponse) -> APIResponse:
        answer.raise_for_status()
        return answer

    def _json(self, answer: APIResponse) -> Any:
        return self._checked(answer).json()

    async def _call(self, doing: str, work: Callable[[float], T], limit: float | None = None) -> T:
        """Run `work(timeout)` in a thread; its exceptions become ours; it is left alone at the deadline."""
        deadline = self.call_timeout if limit is None else limit
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(deadline + _SLACK):
                return await loop.run_in_executor(self._pool, work, deadline)
        except TimeoutError as error:
            raise failures.timed_out(doing, deadline) from error
        except OSError as error:
            raise failures.translate(error, doing, self.socket, deadline) from error

"""One engine: a container started from one plan. Its generation number and plan never change.

Owned by its deployment's task; nobody else changes it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from containers.exit_watch import ExitWatch
from containers.memory_kills import MemoryKills
from orchestrator.careful import make_open_folder, read_small
from orchestrator.errors import EngineFailed
from orchestrator.lifecycle import CONTAINED, EngineFacts, allowed
from orchestrator.paths import Paths
from orchestrator.plan import Plan
from orchestrator.views import EngineMemory, EngineView, State, VerdictView, Why

SOCKET_NAME = "engine.sock"
KEY_BITS = 256


def new_id() -> str:
    """16 hex characters: an engine's folder name."""
    return secrets.token_hex(8)


def new_key() -> str:
    """An engine's own random key."""
    return secrets.token_urlsafe(KEY_BITS // 8)


def socket_folder(paths: Paths, engine: str) -> Path:
    return paths.engines / engine


def key_file(paths: Paths, engine: str) -> Path:
    return paths.engines / f"{engine}.key"


@dataclass(slots=True)
class Engine:
    """One engine's record. `since` is wall time, `ready_at` monotonic seconds."""

    id: str
    deployment: str
    generation: int
    plan: Plan
    key: str = field(repr=False)
    socket: str | None
    port: int | None
    since: float
    state: State = State.PULLING
    container_id: str | None = None
    pid: int | None = None
    ready_at: float | None = None
    load_s: float | None = None
    """Seconds from its creation until it was ready; None for one that a former daemon started."""
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    watch: ExitWatch | None = None
    on_exit: Callable[[], None] | None = None
    admit: bool = True
    verdict: EngineFailed | None = None
    """Why we ended its process ourselves; None when we did not."""
    adopted: bool = False
    """A former daemon started it: it may be answering requests although this one has not proven it yet."""
    leaving: asyncio.Task[None] | None = None
    """Its take-down, once that has begun: it goes on to its end, whoever waits for it."""
    again_at: float | None = None
    """When the removal of a wedged one is tried again (monotonic seconds)."""
    tries: int = 0
    """How often it was found wedged."""
    unready: Why | None = None
    """Why it gets no requests although it serves; the watch over its health sets it."""
    verdicts: Mapping[str, VerdictView] = field(default_factory=dict)
    """What that watch makes of it, by verdict."""
    failed: bool = False
    """Whether it ever failed: what it took then says nothing of what it takes."""
    observed: int | None = None
    """Bytes that it was seen to take at most, as `orchestrator.measuring` counts them, which alone sets this."""
    printed: Mapping[str, int] = field(default_factory=dict)
    """Sizes that it printed while it started; from there as well."""
    kills: MemoryKills | None = None
    """What the kernel had killed in its container for want of memory when its process ended; None: not known."""
    reported: Sequence[Mapping[str, object]] = ()
    """What a GPU reported about its processes (an XID), newest last; `at` is monotonic."""

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.deployment}-{self.generation}"

    def move(self, state: State) -> None:
        """Go to another state; a transition that the table does not have is a bug."""
        if not allowed(self.state, state):
            raise RuntimeError(f"{self.name}: {self.state} -> {state} is no transition")
        if state in CONTAINED and self.container_id is None:
            raise RuntimeError(f"{self.name}: {state} without a container")
        self.failed = self.failed or state is State.FAILED
        self.state = state

    def follow(self, pid: int) -> None:
        """Watch the engine's process: `exited` is set the moment it ends."""
        self.unfollow()
        self.pid = pid
        self.watch = ExitWatch(pid, self._ended)

    def _ended(self) -> None:
        self.kills = None if self.watch is None else self.watch.kills
        self.exited.set()
        self.again_at = None  # what nobody could end has ended: the rest of it is removed now
        if self.on_exit is not None:
            self.on_exit()

    def unfollow(self) -> None:
        if self.watch is not None:
            self.watch.close()
            self.watch = None

    def facts(self, now: float) -> EngineFacts:
        again_in = None if self.again_at is None else max(0.0, self.again_at - now)
        return EngineFacts(self.generation, self.state, self.plan.digest, again_in)

    def view(self, in_flight: int) -> EngineView:
        return EngineView(
            id=self.id,
            deployment=self.deployment,
            generation=self.generation,
            state=self.state,
            container_id=self.container_id,
            pid=self.pid,
            plan=self.plan.digest,
            runtime=self.plan.runtime,
            image=self.plan.image,
            method=self.plan.method.value,
            draft_tokens=self.plan.draft_tokens,
            context=self.plan.context,
            parallel=self.plan.parallel,
            socket=self.socket,
            port=self.port,
            since=self.since,
            in_flight=in_flight,
            verdicts=dict(self.verdicts),
            memory=EngineMemory(
                expected=self.plan.expected_memory,
                observed=self.observed,
                printed=dict(self.printed),
            ),
        )


def write_key(paths: Paths, engine: str, key: str) -> None:
    """Keep the key beside the socket folder, 0600, for the daemon that adopts the engine."""
    file = key_file(paths, engine)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as out:
        out.write(key)


def read_key(paths: Paths, engine: str) -> str | None:
    """The key of an engine that is to be adopted; None when it is lost."""
    found = read_small(key_file(paths, engine))
    if found is None or found.uid != os.geteuid():
        return None  # not what a daemon wrote
    return found.data.decode("ascii", "replace").strip() or None


def make_socket_folder(paths: Paths, engine: str) -> Path:
    """The folder that is mounted into the container: 0777, because the engine may run as any uid;
    `engines/` above it is 0700, so only root and the gateway's user get this far."""
    folder = socket_folder(paths, engine)
    make_open_folder(folder, 0o777)
    return folder


def remove_files(paths: Paths, engine: str) -> None:
    """Remove the socket folder and the key of an engine that is gone."""
    folder = socket_folder(paths, engine)
    if folder.is_dir() and not folder.is_symlink():
        with suppress(FileNotFoundError):  # somebody else removes it at the same time
            shutil.rmtree(folder)  # never follows links; an engine may have made anything in it
    key_file(paths, engine).unlink(missing_ok=True)

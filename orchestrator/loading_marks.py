"""Loading marks: what was on its way into the system's own memory, should the host go down under it.

A host whose engines share the system's memory does not refuse a load that is too large: it freezes,
and a person resets it. The model that froze it would be the first thing to be loaded again. So each
such load leaves a durable mark before it begins, which goes when the engine is ready or gone. A mark
of another boot means that the host went down meanwhile: nothing but `outrider start --force` starts
that model again. A mark of this boot means only that the daemon died.

A daemon that is told to end takes its marks along: a reboot that somebody asked for is no crash.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from hosts.reading import read_bytes
from orchestrator.clock import Clock
from orchestrator.engine import Engine
from orchestrator.errors import DiskError, DiskFull, DiskReadOnly, SuspectedHostCrash
from orchestrator.issues import HOST, Issues
from orchestrator.memory_fit import gibibytes
from orchestrator.store_files import steadily
from orchestrator.views import Why

log = structlog.get_logger("marks")
CODE = SuspectedHostCrash.code
LEFT = "loading_mark_left"
UNREADABLE = "loading_marks_unreadable"
_LIMIT = 64 * 1024
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Mark:
    """What was being loaded: `plan` is the plan's digest, `at` Unix time."""

    deployment: str
    generation: int
    boot_id: str
    plan: str
    image: str
    expected_bytes: int
    at: float


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The host went down while this deployment was being loaded, or its mark cannot be read (`mark` None)."""

    deployment: str
    file: str
    mark: Mark | None
    boot_id: str
    """The present boot."""

    @property
    def text(self) -> str:
        if self.mark is None:
            return (
                f"{self.deployment}'s loading mark {self.file} cannot be read, so the host may have gone down"
                " while it was loading"
            )
        return (
            f"the host went down while {self.deployment} was being loaded"
            f" ({gibibytes(self.mark.expected_bytes)} expected): not started by itself"
        )

    @property
    def hint(self) -> str:
        return (
            f"give it less context or another variant if memory was short, then `outrider start --force"
            f" {self.deployment}`; a power cut looks the same"
        )

    @property
    def why(self) -> Why:
        return Why(CODE, self.text, self.hint)

    @property
    def evidence(self) -> dict[str, object]:
        mark = {} if self.mark is None else {f"mark_{k}": v for k, v in asdict(self.mark).items() if k != "deployment"}
        return {"boot_id": self.boot_id, "file": self.file, **mark}

    def refusal(self) -> SuspectedHostCrash:
        """For who asks to start it all the same, without saying so."""
        return SuspectedHostCrash(self.text, hint=self.hint, evidence=self.evidence)


class LoadingMarks:
    """The marks of one state folder. `inherit` first; then placing and lifting, which wait for the disk."""

    def __init__(self, folder: Path, boot_id: str, clock: Clock, issues: Issues) -> None:
        self._folder = folder
        self._boot_id = boot_id
        self._clock = clock
        self._issues = issues
        self._placed: dict[str, int] = {}
        """Deployment to the generation that its mark of this boot is about."""
        self._suspicions: dict[str, Suspicion] = {}

    # what a former daemon left

    def inherit(self) -> None:
        """Read what is there. Blocking; nothing in the folder makes it fail."""
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return
        except OSError as error:
            self._issues.open(
                UNREADABLE,
                HOST,
                f"the loading marks in {self._folder} cannot be read: {error.strerror}",
                hint=f"make {self._folder} a folder again, or remove it; until then nothing is loaded",
            )
            return
        for name in names:
            deployment = name.removesuffix(".json")
            if name.startswith("."):
                with suppress(OSError):
                    (self._folder / name).unlink()  # a write that was cut off before it counted
            elif name.endswith(".json") and _NAME.fullmatch(deployment):
                self._take(deployment, self._file(deployment))
            else:
                log.warning("no_loading_mark", file=str(self._folder / name))

    def _take(self, deployment: str, file: Path) -> None:
        mark = read(file, deployment)
        if mark is not None and mark.boot_id == self._boot_id:
            self._placed[deployment] = mark.generation
        else:
            self._suspicions[deployment] = Suspicion(deployment, str(file), mark, self._boot_id)

    def suspicion(self, deployment: str) -> Suspicion | None:
        """Why this deployment may not start by itself. The issue stands from the first time this is asked."""
        found = self._suspicions.get(deployment)
        if found is not None:
            self._issues.open(
                CODE, deployment, found.text, hint=found.hint, evidence=found.evidence, deployment=deployment
            )
        return found

    async def settle(self, loading: Collection[str]) -> None:
        """Adoption is done, and only these deployments are still being loaded: other marks of this boot go."""
        for deployment, generation in list(self._placed.items()):
            if deployment not in loading:
                await self.lift(deployment, generation)

    # a load

    async def place(self, engine: Engine) -> None:
        """Durably mark the load that begins now. Raises `DiskFull`, `DiskReadOnly`, `DiskError`: a load that
        cannot be marked must not begin."""
        mark = Mark(
            deployment=engine.deployment,
            generation=engine.generation,
            boot_id=self._boot_id,
            plan=engine.plan.digest,
            image=engine.plan.image,
            expected_bytes=engine.plan.expected_memory.total,
            at=self._clock.wall(),
        )
        file = self._file(engine.deployment)
        try:
            await steadily(_write, file, json.dumps(asdict(mark), indent=1) + "\n")
        except OSError as error:
            raise _disk_error(error, file, f"{engine.name} is not loaded: its loading mark") from error
        self._placed[engine.deployment] = engine.generation

    async def lift(self, deployment: str, generation: int) -> None:
        """The load is over: the engine is ready, or gone. A mark that cannot be removed is an issue, for after
        the next boot it would count as a crash."""
        if self._placed.get(deployment) != generation:
            return
        file = self._file(deployment)
        try:
            await steadily(_remove, file)
        except OSError as error:
            self._issues.open(
                LEFT,
                deployment,
                f"the loading mark {file} cannot be removed: {error.strerror}",
                hint=f"mend the state folder's disk, then `rm {file}`; else {deployment} waits for"
                f" `outrider start --force {deployment}` after the next boot",
                deployment=deployment,
            )
            return
        self._placed.pop(deployment, None)
        self._issues.close(LEFT, deployment, deployment=deployment)

    async def forget(self, deployment: str, text: str) -> None:
        """A person knows of the crash, or the model is gone: mark and issue go. Raises as `place` does."""
        file = self._file(deployment)
        try:
            await steadily(_remove, file)
        except OSError as error:
            raise _disk_error(error, file, "the loading mark") from error
        self._placed.pop(deployment, None)
        self._suspicions.pop(deployment, None)
        self._issues.close(CODE, deployment, text, deployment=deployment)
        self._issues.close(LEFT, deployment, deployment=deployment)

    async def withdraw(self) -> None:
        """The daemon was told to end. What still loads is marked again by the next daemon, in the same boot."""
        await self.settle(())

    def _file(self, deployment: str) -> Path:
        return self._folder / f"{deployment}.json"


def read(file: Path, deployment: str) -> Mark | None:
    """A mark, or None when the file does not say what it must. Blocking; never waits for a writer."""
    raw = read_bytes(file, _LIMIT)
    if raw is None:
        return None
    try:
        data = json.loads(raw)
        mark = Mark(
            deployment=str(data["deployment"]),
            generation=int(data["generation"]),
            boot_id=str(data["boot_id"]),
            plan=str(data["plan"]),
            image=str(data["image"]),
            expected_bytes=int(data["expected_bytes"]),
            at=float(data["at"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return mark if mark.deployment == deployment else None


def _write(file: Path, text: str) -> None:
    """Replace the file whole and durably, 0600 in a 0700 folder."""
    folder = file.parent
    if not folder.is_dir():
        folder.mkdir(mode=0o700)
        _sync(folder.parent)
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)  # nobody but us has business here, and a rename does not replace a folder
    temporary = folder / f".{file.name}.new"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
    _sync(folder)


def _remove(file: Path) -> None:
    try:
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink()
    except FileNotFoundError:
        return
    _sync(file.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _disk_error(error: OSError, file: Path, what: str) -> DiskError:
    text = f"{what} ({file}) cannot be written: {error.strerror}"
    evidence = {"file": str(file), "errno": error.errno}
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = f"`outrider prune --dry-run` shows what can go; `df {file.parent.parent}`"
        return DiskFull(text, hint=hint, evidence=evidence)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        hint = f"`findmnt -T {file.parent.parent}` and `dmesg` say why; `mount -o remount,rw` it"
        return DiskReadOnly(text, hint=hint, evidence=evidence)
    failed = DiskError(text, hint=f"look at {file.parent}, and at `dmesg`", evidence=evidence)
    failed.retryable = True
    return failed

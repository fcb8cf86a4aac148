"""`outrider prune`: what could go, and having it go, one thing at a time.

What uses a thing is looked up anew right before its removal, since a start or a pull may have begun
meanwhile. One that cannot be removed is named, and the rest goes on.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from containers import pull_leftovers
from containers.errors import ContainerError
from containers.podman import Podman
from containers.spec import ImageInfo, ImageUser
from orchestrator.context import Context
from orchestrator.errors import DatabaseFailed, NotFound, OutriderError, Refused
from orchestrator.housekeeping import caches_here, images_here, weights_here
from orchestrator.housekeeping.claims import Claims, Named
from orchestrator.housekeeping.unused import TEXTS, Fate, Kind, Thing, Wish, decide, freed
from orchestrator.telling.amounts import count
from orchestrator.views import PrunedThing, PruneResult, Why
from orchestrator.weights import removal, shelf
from orchestrator.weights.shelf import HUB

_OCTAL = re.compile(r"\\([0-7]{3})")
"""How the kernel writes a space and its like in a mount point."""
log = structlog.get_logger("housekeeping")


class Pruning:
    """One prune at a time. `claims` is asked for anew whenever something is about to go."""

    def __init__(self, context: Context, podman: Podman, claims: Callable[[], Awaitable[Claims]]) -> None:
        self._c = context
        self._podman = podman
        self._claims = claims
        self._one = asyncio.Lock()
        self._temporary: Path | None = None

    async def reclaimable(self) -> int | None:
        """Bytes that a prune of everything superfluous would free; None when it cannot be known now."""
        with suppress(OutriderError):
            things, unknown = await self._things(await self._claims())
            return None if unknown else freed(things, Wish())
        return None

    async def prune(self, wish: Wish, *, dry_run: bool, only: Collection[str] | None = None) -> PruneResult:
        """What goes and what stays, and why. Without `dry_run` it goes; with `only`, nothing but these ids does.

        Raises what keeps anything from being looked at; what keeps one kind from it is among `problems`.
        """
        async with self._one:
            claims = await self._claims()
            things, problems = await self._things(claims)
            if only is not None and (missing := set(only) - {thing.id for thing in things}):
                log.info("prune_gone_already", things=sorted(missing))
            rows = []
            for thing in sorted(things, key=lambda thing: (list(Kind).index(thing.kind), thing.name)):
                chosen = only is None or thing.id in only
                rows.append(await self._row(thing, wish, dry_run=dry_run or not chosen))
            done = [row for row in rows if row.outcome == "removed"]
            if not dry_run:
                failed = [row.name for row in rows if row.outcome == "failed"]
                self._c.journal.emit(
                    "housekeeping",
                    "pruned",
                    f"{count(len(done), 'thing is', 'things are')} removed"
                    + (f", {len(failed)} could not be" if failed else ""),
                    evidence={"freed_bytes": sum(row.bytes or 0 for row in done), "failed": failed[:20]},
                )
            return PruneResult(
                dry_run=dry_run,
                reclaimable_bytes=sum(row.bytes or 0 for row in rows if row.action == Fate.GO.value),
                freed_bytes=sum(row.bytes or 0 for row in done),
                things=tuple(rows),
                problems=tuple(problems),
            )

    async def _row(self, thing: Thing, wish: Wish, *, dry_run: bool) -> PrunedThing:
        decision = decide(thing, wish)
        used = decision.evidence.get("used_by")
        row = PrunedThing(
            id=thing.id,
            kind=thing.kind.value,
            name=thing.name,
            bytes=thing.size,
            action=decision.action.value,
            reason=decision.reason,
            text=TEXTS[decision.reason],
            used_by=tuple(str(by) for by in used) if isinstance(used, list) else (),
            outcome=None,
            error=None,
        )
        if dry_run or decision.action is Fate.STAY:
            return row
        return await self._remove(thing, wish, row)

    async def _remove(self, thing: Thing, wish: Wish, row: PrunedThing) -> PrunedThing:
        """Look again, then remove; what went wrong is in the row and the journal, and raises nothing."""
        error: Why | None = None
        try:
            things, _ = await self._things(await self._claims(), frozenset({thing.kind}))
            now = next((other for other in things if other.id == thing.id), None)
            if now is None:
                return row.ended("gone")
            again = decide(now, wish)
            if again.action is Fate.STAY:
                raise Refused(f"{thing.name} is used since: {TEXTS[again.reason]}", evidence=again.evidence)
            await self._take_away(thing)
        except OutriderError as refusal:
            error = Why(refusal.code, refusal.detail, refusal.hint)
        except OSError as refusal:
            error = Why("os_error", f"{thing.name} cannot be removed: {refusal.strerror}")
        self._c.journal.emit(
            "housekeeping",
            "removed" if error is None else "not_removed",
            f"{thing.kind} {thing.name} is removed: {row.text}" if error is None else error.text,
            evidence={"kind": thing.kind.value, "key": thing.key, "bytes": thing.size, "reason": row.reason},
        )
        return row.ended("removed" if error is None else "failed", error)

    async def _take_away(self, thing: Thing) -> None:
        match thing.kind:
            case Kind.IMAGE:
                await self._take_image(thing.key)
            case Kind.CACHE if not thing.key.startswith("/"):
                await self._podman.remove_volume(thing.key)
            case Kind.LEFTOVER:
                path = Path(thing.key)
                await asyncio.to_thread(pull_leftovers.sweep, path.parent, now=self._c.clock.wall(), names={path.name})
                if await asyncio.to_thread(os.path.lexists, path):
                    raise Refused(f"{path} is used again, or cannot be removed")
            case Kind.WEIGHTS | Kind.PARTIAL:
                await asyncio.to_thread(take_weights, self._c.paths.store, Path(thing.key))
            case _:
                await asyncio.to_thread(take_path, Path(thing.key))

    async def _take_image(self, image: str) -> None:
        """Name by name, never by force: Podman itself refuses the last one while a container has the image."""
        found = await self._podman.image(image)
        for name in () if found is None else found.names:
            await self._podman.remove_image(name)
        if found is not None and not found.names:
            await self._podman.remove_image(image)
        with suppress(DatabaseFailed):
            await self._c.store.forget_pulled(image)

    # looking

    async def _things(self, claims: Claims, kinds: frozenset[Kind] = frozenset(Kind)) -> tuple[list[Thing], list[Why]]:
        """Everything of these kinds, and what kept some of it from being looked at."""
        now = self._c.clock.wall()
        paths = self._c.paths
        things: list[Thing] = []
        problems: list[Why] = []
        try:
            if Kind.LEFTOVER in kinds:
                things += await self._leftovers(now)
            if kinds & {Kind.IMAGE, Kind.CACHE}:
                images, users = await self._in_podman()
                if Kind.IMAGE in kinds:
                    things += images_here.things(images, users, claims, await self._c.store.pulled())
                if Kind.CACHE in kinds:
                    folders = await self._podman.volumes(caches_here.VOLUMES)
                    used: Sequence[Named] = (claims.used_volumes, images_here.volumes_of(users))
                    things += await asyncio.to_thread(caches_here.volumes, folders, images, used, now)
        except ContainerError as error:
            problems.append(Why(error.code, f"images and compile caches are not looked at: {error.detail}", error.hint))
        if kinds & {Kind.WEIGHTS, Kind.PARTIAL}:
            things += await asyncio.to_thread(weights_here.things, paths.store, claims, now)
        if Kind.CACHE in kinds:
            things += await asyncio.to_thread(caches_here.state_cache, paths.cache, now)
        if Kind.LOG in kinds:
            things += await asyncio.to_thread(caches_here.old_logs, (paths.logs, paths.run_dir), now)
        return [thing for thing in things if thing.kind in kinds], problems

    async def _in_podman(self) -> tuple[Sequence[ImageInfo], Sequence[ImageUser]]:
        # images first: one that a container takes after that is in the second list
        images = await self._podman.images()
        return images, await self._podman.image_users()

    async def _leftovers(self, now: float) -> list[Thing]:
        """What a Podman service that was killed left in its temporary folder."""
        if self._temporary is None:
            self._temporary = Path((await self._podman.storage()).temporary)
        found = await asyncio.to_thread(pull_leftovers.find, self._temporary, now=now)
        return [
            Thing(
                Kind.LEFTOVER, str(one.path), str(one.path), "left_over", one.size, now - weights_here.newest(one.path)
            )
            for one in found
        ]


def take_path(path: Path) -> None:
    """Remove a file with what is recorded beside it, or a folder; links are not followed. Blocking; raises OSError."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError as error:
        raise NotFound(f"{path} is gone already") from error
    if stat.S_ISDIR(mode):
        if mounted := mounts_below(path):
            raise Refused(
                f"{path} is not removed: another file system is mounted at {mounted[0]}",
                hint=f"`umount {mounted[0]}` first, if that is what you mean",
            )
        shutil.rmtree(path)
    else:
        path.unlink()
    with suppress(FileNotFoundError):
        os.unlink(f"{path}.json")


def take_weights(store: Path, path: Path) -> None:
    """`take_path` for something in the store; the record of a hub's commit then says what is still there."""
    take_path(path)
    hub = store / HUB
    if hub in path.parents:
        folder = hub / path.relative_to(hub).parts[0]
        for known in shelf.records(folder):
            removal.forget(store, known.repository, known.commit)


def mounts_below(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> list[str]:
    """What is mounted at a folder or in it, as the kernel has it: a bind mount does not show in `stat`."""
    own = str(folder.resolve())
    points = [line.split()[4] for line in mountinfo.read_text(errors="replace").splitlines()]
    plain = [_OCTAL.sub(lambda match: chr(int(match[1], 8)), point) for point in points]
    return [point for point in plain if point == own or point.startswith(f"{own}/")]

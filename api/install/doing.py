"""Steps that can be repeated: each looks first, records what it is about to make, and says what it did.

In a dry run they look, and say what they would do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from api.install import layout, system
from api.install.errors import InstallFailed
from api.install.manifest import FILE, FOLDER, LINK, OFFERED, Manifest


@dataclass(frozen=True, slots=True)
class Step:
    """One thing. `state`: made, changed, unchanged, removed, or left (there, and none of ours to touch)."""

    state: str
    what: str
    subject: str
    detail: str = ""

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(slots=True)
class Doing:
    """One run. `prefix`: a root to install into; then nothing is given to users, who may not exist here."""

    manifest: Manifest
    prefix: Path | None
    dry: bool
    tell: Callable[[Step], None]
    steps: list[Step] = field(default_factory=list)

    def say(self, state: str, what: str, subject: str, detail: str = "") -> None:
        """Note and tell one step."""
        step = Step(state, what, subject, detail)
        self.steps.append(step)
        self.tell(step)

    @property
    def changed(self) -> bool:
        return any(step.state in {"made", "changed", "removed"} for step in self.steps)

    def at(self, path: str) -> Path:
        """Where a path of the machine is: below the prefix, if there is one."""
        return layout.under(self.prefix, path)

    # making

    def folder(self, path: str, mode: int, user: str = "root", group: str = "root") -> None:
        """A folder with this mode and owner. A link in its place is somebody's way to another disk, and stays."""
        real = self.at(path)
        detail = f"{mode:04o} {user}:{group}"
        if real.is_symlink():
            self.say("left", "folder", path, f"a link to {real.readlink()}")
            return
        there = real.is_dir()
        if there and stat.S_IMODE(real.stat().st_mode) == mode and self._is_owned(real, user, group):
            self.say("unchanged", "folder", path, detail)
            return
        if not self.dry:
            if not there:
                self.manifest.note(FOLDER, path)
                self.parents(path)
                with _named(path):
                    real.mkdir(mode=0o700)
            with _named(path):
                real.chmod(mode)
                self._own(real, user, group)
        self.say("changed" if there else "made", "folder", path, detail)

    def parents(self, path: str) -> None:
        """The folders above, recorded, so that they go again when they are empty."""
        for above in reversed([str(p) for p in Path(path).parents]):
            real = self.at(above)
            if not real.is_dir():
                self.manifest.note(FOLDER, above)
                with _named(above):
                    real.mkdir(mode=0o755, parents=self.prefix is not None)
                    real.chmod(0o755)

    def file(self, path: str, data: bytes, mode: int = 0o644, group: str = "root", *, what: str = "file") -> None:
        """A file with these contents, in place of what had the name."""
        real = self.at(path)
        digest = hashlib.sha256(data).hexdigest()
        there = real.is_file()
        if there and real.read_bytes() == data and self._has(real, mode, group):
            self.say("unchanged", what, path)
            return
        if not self.dry:
            self.manifest.note(FILE, path, digest)
            self.parents(path)
            self._put(real, path, data, mode, group)
        self.say("changed" if there else "made", what, path)

    def settings(self, path: str, data: bytes, mode: int, group: str) -> None:
        """A configuration file: an existing one is its owner's, so a new default is put beside it, once."""
        real, beside = self.at(path), self.at(f"{path}.new")
        digest = hashlib.sha256(data).hexdigest()
        offered = self.manifest.made.get((OFFERED, path)) == digest
        if not real.exists():
            if not self.dry:
                self.manifest.note(OFFERED, path, digest)
                self.parents(path)
                self._put(real, path, data, mode, group)
            self.say("made", "settings", path)
        elif offered or real.read_bytes() == data:
            if not self.dry:
                self.manifest.note(OFFERED, path, digest)
            self.say("unchanged", "settings", path)
        else:
            if not self.dry:
                self.manifest.note(OFFERED, path, digest)
                self._put(beside, f"{path}.new", data, mode, group)
            self.say("left", "settings", path, f"it is yours; the new default is {path}.new")

    def link(self, path: str, target: str, *, what: str = "link") -> None:
        """A symbolic link to `target`."""
        real = self.at(path)
        there = real.is_symlink()
        if there and str(real.readlink()) == target:
            self.say("unchanged", what, path, target)
            return
        if real.exists() and not there:
            raise InstallFailed(f"{path} is there and is no link", hint=f"look at it, then move {path} away")
        if not self.dry:
            self.manifest.note(LINK, path, target)
            self.parents(path)
            new = real.with_name(f".{real.name}.new")
            with _named(path):
                new.unlink(missing_ok=True)
                new.symlink_to(target)
                new.replace(real)
        self.say("changed" if there else "made", what, path, target)

    # removing

    def remove(self, path: str, *, what: str = "file", kind: str = FILE) -> None:
        """A file or link that was made here."""
        real = self.at(path)
        if real.is_symlink() or real.exists():
            if not self.dry:
                with _named(path):
                    real.unlink()
            self.say("removed", what, path)
        if not self.dry:
            self.manifest.forget(kind, path)

    def remove_tree(self, path: str, *, what: str = "folder") -> bool:
        """A folder with all that is in it, but for what is mounted there; whether all of it went."""
        real = self.at(path)
        if real.is_symlink():
            self.remove(path, what=what)
            return True
        if not real.is_dir():
            return True
        if mounts := [folder for folder, _, _ in os.walk(real) if os.path.ismount(folder)]:
            self.say("left", what, path, f"mounted there: {', '.join(mounts)}")
            return False
        if not self.dry:
            with _named(path):
                shutil.rmtree(real)
        self.say("removed", what, path)
        return True

    def remove_empty(self, path: str) -> None:
        """A folder that was made for something else of ours, if nobody else uses it."""
        with contextlib.suppress(OSError):
            if not self.dry:
                self.at(path).rmdir()
                self.say("removed", "folder", path)
        if not self.dry and not self.at(path).exists():
            self.manifest.forget(FOLDER, path)

    # what they share

    def _put(self, real: Path, shown: str, data: bytes, mode: int, group: str) -> None:
        new = real.with_name(f".{real.name}.outrider-new")
        with _named(shown):
            new.unlink(missing_ok=True)
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    os.fchmod(file.fileno(), mode)
                    file.flush()
                    os.fsync(file.fileno())
                self._own(new, "root", group)
                new.replace(real)
            except OSError:
                new.unlink(missing_ok=True)
                raise

    def _has(self, real: Path, mode: int, group: str) -> bool:
        return stat.S_IMODE(real.stat().st_mode) == mode and self._is_owned(real, "root", group)

    def _is_owned(self, real: Path, user: str, group: str) -> bool:
        if self.prefix is not None:
            return True
        info = real.stat()
        return (info.st_uid, info.st_gid) == (system.uid(user), system.gid(group))

    def _own(self, real: Path, user: str, group: str) -> None:
        if self.prefix is not None:
            return
        uid, gid = system.uid(user), system.gid(group)
        if uid is None or gid is None:
            raise InstallFailed(f"there is no user {user} or no group {group}", hint="`outrider install` makes them")
        os.chown(real, uid, gid, follow_symlinks=False)


class _named(contextlib.AbstractContextManager[None]):  # noqa: N801 - used as a function
    """An error of the system's, with the path that was meant."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise InstallFailed(
                f"{self._path}: {error.strerror or error}",
                hint="once that is mended, the same command goes on from here; "
                "`outrider uninstall` takes away what was made",
                evidence={"path": self._path},
            ) from error

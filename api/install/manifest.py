"""The record of what an installation made, written before each thing is made.

It lies in the state folder, is what `uninstall` goes by, and lets a run that was cut off be
finished or undone by the next.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from api.install.errors import InstallFailed

SCHEMA = 1
FILE, LINK, FOLDER, TREE, USER, GROUP, UNIT, OFFERED = (
    "file",
    "link",
    "folder",
    "tree",
    "user",
    "group",
    "unit",
    "offered",
)


@dataclass(slots=True)
class Manifest:
    """`made` maps (kind, subject) to a note: a file's digest, a link's target, else nothing."""

    path: Path
    dry: bool = False
    finished: bool = False
    version: str = ""
    made: dict[tuple[str, str], str] = field(default_factory=dict)
    there: bool = False
    """Whether there is a record at all."""
    _written: str = ""

    @classmethod
    def read(cls, path: Path, *, dry: bool = False) -> Manifest:
        """The record at `path`, or an empty one. Raises `InstallFailed` when it is unreadable."""
        try:
            text = path.read_text()
            data = json.loads(text)
            made = {(e["kind"], e["subject"]): e["note"] for e in data["made"]}
            return cls(path, dry, bool(data["finished"]), str(data["version"]), made, there=True, _written=text)
        except FileNotFoundError:
            return cls(path, dry)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InstallFailed(
                f"{path}, the record of what was installed, cannot be read: {error}",
                hint="mend it, or move it away: a new `outrider install` writes another",
            ) from error

    def note(self, kind: str, subject: str, note: str = "") -> None:
        """Something is about to be made."""
        if self.made.get((kind, subject)) != note:
            self.made[kind, subject] = note
            self.save()

    def forget(self, kind: str, subject: str) -> None:
        """It is gone."""
        if self.made.pop((kind, subject), None) is not None:
            self.save()

    def of(self, kind: str) -> list[str]:
        """All subjects of a kind, in the order in which they were made."""
        return [subject for k, subject in self.made if k == kind]

    def has(self, kind: str, subject: str) -> bool:
        """Whether this was made by an installation."""
        return (kind, subject) in self.made

    def save(self) -> None:
        """Whole or not at all; nothing in a dry run."""
        if self.dry:
            return
        self.there = True
        document = {
            "schema": SCHEMA,
            "version": self.version,
            "finished": self.finished,
            "made": [{"kind": k, "subject": s, "note": n} for (k, s), n in self.made.items()],
        }
        text = json.dumps(document, indent=1) + "\n"
        if text == self._written:
            return
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        new = self.path.with_name(f".{self.path.name}.new")
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)
        self._written = text

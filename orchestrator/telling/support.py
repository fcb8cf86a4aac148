"""What goes into a support bundle, and what must not: no secret, no prompt, nothing that names a person or a machine.

Three sieves, one after the other: what an engine printed goes unless it is one of the failures that its runtime is
known for (a log may hold prompts); names, addresses and whatever looks like a secret go
(`orchestrator.doctor.redact`); the secrets that this machine really has are looked for by their value.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.doctor.redact import REMOVED, Redactor
from orchestrator.importing.secrets import is_secret
from orchestrator.runtimes import ADAPTERS

WORDS = "(an engine's words)"
"""Stands for what an engine printed."""
SHORTEST_SECRET = 8
SHORTEST_LINE = 4
_CUTS = (300, 200)
"""Characters at which lines of a log are cut where they are quoted."""

README = """This is a support bundle of Outrider: what an owner attaches to a bug report.

journal.json      every decision that is kept, with its evidence
why/              the story of each deployment, as `outrider why` tells it
daemon.json       health, host, deployments, issues, pauses, jobs, models, images, what was measured
metrics.txt       what Prometheus would see
config/           the configuration, as data: comments are left out
machine.json      facts, versions, the doctor's findings, kernel lines (as in `outrider probe --report`)

Names, addresses, serial numbers and secrets were taken out, and what engines printed, for a log may hold prompts.
Look at it yourself before you send it.
"""


class Support:
    """Makes the files of one bundle. `secrets` are values that must not stand in it whatever surrounds them."""

    def __init__(self, redactor: Redactor, secrets: Collection[str] = ()) -> None:
        self._redactor = redactor
        self._secrets = sorted({s for s in secrets if len(s) >= SHORTEST_SECRET}, key=len, reverse=True)
        self._words: dict[str, None] = {}

    def listen(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Learn from the journal what engines printed, so that it goes wherever it is quoted; before any file is
        made."""
        for event in events:
            said = event.get("evidence", {}).get("log") or ()
            for line in said if isinstance(said, list | tuple) else (said,):
                text = str(line).strip()
                if len(text) >= SHORTEST_LINE and not known_failure(text):
                    for cut in (len(text), *_CUTS):
                        self._words[text[:cut].strip()] = None

    def data(self, value: Any) -> str:
        """A file of JSON."""
        document = self._redactor.document(self._without_words(value))
        return self._sieved(json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n")

    def text(self, text: str) -> str:
        """A file of text."""
        return self._sieved(self._redactor.text(self._quiet(text)))

    def configuration(self, text: str) -> str:
        """A TOML file as JSON; one that cannot be read says only that, for its text may hold anything."""
        try:
            return self.data(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            return self.data({"error": "this file is not TOML", "where": str(error).rpartition("(")[2].rstrip(")")})

    def _without_words(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._without_words(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._without_words(item) for item in value]
        return self._quiet(value) if isinstance(value, str) else value

    def _quiet(self, text: str) -> str:
        for line in sorted(self._words, key=len, reverse=True):
            if line in text:
                text = text.replace(line, WORDS)
        return text

    def _sieved(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REMOVED)
        return text


def known_failure(line: str) -> bool:
    """Whether a line is one that a runtime is known to fail with. One that speaks of a prompt is not believed."""
    if "prompt" in line.lower():
        return False
    return any(sign.pattern.search(line) for adapter in ADAPTERS.values() for sign in adapter.failures)


def write(files: Mapping[str, str], path: Path, *, at: float) -> int:
    """The bundle as a tar, compressed, 0600, whole or not at all; its bytes. `at` (Unix seconds) is the time that all
    files in it have. Raises OSError."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for name, text in files.items():
                archive.addfile(*_member(f"outrider-support/{name}", text, at))
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return path.stat().st_size


def _member(name: str, text: str, at: float) -> tuple[tarfile.TarInfo, io.BytesIO]:
    data = text.encode(errors="replace")
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = len(data), int(at), 0o600
    return member, io.BytesIO(data)


def secrets_of(files: Collection[Path], environ: Mapping[str, str]) -> Iterator[str]:
    """The secrets that this machine has: what these files hold, and what the environment's variables of secrets are."""
    for file in files:
        try:
            yield from file.read_text(errors="replace").split()
        except OSError:
            continue  # not there, or not ours to read: then it cannot have got into anything we read either
    for name, value in environ.items():
        if is_secret(name):
            yield value

"""What systemd says of a unit, and telling it to stop, start and disable one. Every call has a deadline."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import NotFound, OutriderError, Refused

ASK = 10.0
"""Seconds for a question."""
ACT = 150.0
"""Seconds for a stop or a start: systemd itself gives a stop 90 (DefaultTimeoutStopSec) before it kills."""
MOST = 256 << 10
_ASKED = ("Id", "LoadState", "ActiveState", "UnitFileState", "SourcePath", "MemoryCurrent")
_ENABLED = ("enabled", "enabled-runtime", "linked", "linked-runtime")
_RUNS = ("active", "activating", "reloading")


class SystemctlFailed(OutriderError):
    """systemd did not do what it was told, or did not answer."""

    code = "systemctl_failed"
    retryable = True


class TakeoverFailed(OutriderError):
    """Ours did not come up; the unit was started again, if it ran."""

    code = "takeover_failed"


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit as it is now. `memory` is what its processes take of the system's, bytes; None where unknown."""

    name: str
    active: bool
    enabled: bool
    generated: bool
    """It is made from another file (a Quadlet's), and cannot be disabled."""
    source: str | None
    memory: int | None


def parsed(text: str) -> dict[str, str]:
    """`systemctl show`: one KEY=VALUE a line."""
    return {key: value for key, equals, value in (line.partition("=") for line in text.splitlines()) if equals}


class Systemctl:
    """The system's manager for root, a user's own for anybody else. Blocks."""

    def __init__(self) -> None:
        found = shutil.which("systemctl")
        if found is None:
            raise Refused("there is no systemctl on this machine", hint="`outrider import FILE` reads a unit's file")
        self._command = (found,) if os.geteuid() == 0 else (found, "--user")

    def unit(self, name: str) -> Unit:
        """The unit. Raises `NotFound` where there is none of the name."""
        said = parsed(self._ask("show", f"--property={','.join(_ASKED)}", "--", name))
        if said.get("LoadState") != "loaded":
            words = " ".join(("systemctl", *self._command[1:], "list-units"))
            raise NotFound(
                f"systemd has no unit {name} ({said.get('LoadState', 'unknown')})",
                hint=f"`{words}` names those there are",
            )
        memory = said.get("MemoryCurrent", "")
        return Unit(
            name=said.get("Id") or name,
            active=said.get("ActiveState") in _RUNS,
            enabled=said.get("UnitFileState") in _ENABLED,
            generated=said.get("UnitFileState") == "generated",
            source=said.get("SourcePath") or None,
            memory=int(memory) if memory.isascii() and memory.isdigit() and int(memory) < 1 << 60 else None,
        )

    def text(self, unit: Unit) -> str:
        """What the unit is written as: the Quadlet that it is made from, else its file with all drop-ins."""
        if unit.source is not None and unit.source.endswith(".container"):
            try:
                with Path(unit.source).open("rb") as file:
                    return file.read(MOST).decode("utf-8", "replace")
            except OSError as error:
                raise NotFound(f"{unit.source}: {error.strerror}", hint="say which unit file it is") from error
        return self._ask("cat", "--", unit.name)[:MOST]

    def stop(self, name: str) -> None:
        self._act("stop", name)

    def start(self, name: str) -> None:
        self._act("start", name)

    def disable(self, name: str) -> None:
        self._act("disable", name)

    def _ask(self, verb: str, *words: str) -> str:
        return self._run(verb, *words, limit=ASK)

    def _act(self, verb: str, name: str) -> None:
        self._run(verb, "--", name, limit=ACT)

    def _run(self, verb: str, *words: str, limit: float) -> str:
        line = (*self._command, verb, *words)
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=limit, check=False, errors="replace")
        except (subprocess.TimeoutExpired, OSError) as error:
            raise SystemctlFailed(f"`{' '.join(line)}` failed: {error}") from error
        if done.returncode != 0 and verb != "show":
            said = done.stderr.strip().splitlines()
            raise SystemctlFailed(
                f"`{' '.join(line)}` failed ({done.returncode}): {said[-1][:300] if said else 'it says nothing'}",
                hint=f"`systemctl status {words[-1]}` says more",
            )
        return done.stdout

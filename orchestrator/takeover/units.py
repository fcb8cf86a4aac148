"""What systemd says of a unit, and telling it to stop, start and disable one. Every call has a deadline."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import NotFound, OutriderError, Refused
from orchestrator.takeover.specifiers import expanded

ASK = 10.0
"""Seconds for a question."""
ACT = 150.0
"""Seconds for a stop or a start: systemd itself gives a stop 90 (DefaultTimeoutStopSec) before it kills."""
MOST = 256 << 10
_STOPPED_WITH = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")
"""What systemd stops when it stops the unit."""
_ASKED = (
    *("Id", "LoadState", "ActiveState", "UnitFileState", "SourcePath", "MemoryCurrent", "NeedDaemonReload"),
    *("TriggeredBy", *_STOPPED_WITH),
)
_ENABLED = ("enabled", "enabled-runtime", "linked", "linked-runtime")
_RUNS = ("active", "activating", "reloading", "refreshing")
_NO_BUS = ("Failed to connect to bus", "not been booted with systemd")
_PATTERN = re.compile(r"[*?\[\s]")


class SystemctlFailed(OutriderError):
    """systemd did not do what it was told, or did not answer."""

    code = "systemctl_failed"
    retryable = True


class TakeoverFailed(OutriderError):
    """Ours did not come up; the unit was started again, if it ran."""

    code = "takeover_failed"


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit as it is now. `memory` is what its processes take of the system's, bytes; None where unknown.

    `triggers` run, and would start it again by themselves (a socket, a timer, a path); `needing` run, and are stopped
    with it. `stale`: its file is another one than systemd has read.
    """

    name: str
    active: bool
    enabled: bool
    generated: bool
    """It is made from another file (a Quadlet's), and cannot be disabled."""
    source: str | None
    memory: int | None
    triggers: tuple[str, ...] = ()
    needing: tuple[str, ...] = ()
    stale: bool = False


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
        """The unit. Raises `NotFound` where there is none of the name, `Refused` for one that could be stopped and
        not be started again, `SystemctlFailed` where systemd does not answer."""
        if _PATTERN.search(name):
            raise Refused(f"{name!r} is no name of one unit", hint="name the unit itself")
        if re.search(r"@(?:\.\w+)?$", name):
            raise Refused(f"{name} is a template", hint="name the instance that runs: `systemctl list-units` has it")
        said = parsed(self._ask("show", f"--property={','.join(_ASKED)}", "--", name))
        if said.get("LoadState") != "loaded":
            raise self._not_loaded(name, said.get("LoadState", "unknown"))
        if said.get("ActiveState") == "deactivating":
            raise Refused(f"{name} is being stopped just now", hint="ask again when it is")
        memory = said.get("MemoryCurrent", "")
        return Unit(
            triggers=self._running(said.get("TriggeredBy", "").split()),
            needing=self._running([name for key in _STOPPED_WITH for name in said.get(key, "").split()]),
            stale=said.get("NeedDaemonReload") == "yes",
            name=said.get("Id") or name,
            active=said.get("ActiveState") in _RUNS,
            enabled=said.get("UnitFileState") in _ENABLED,
            generated=said.get("UnitFileState") == "generated",
            source=said.get("SourcePath") or None,
            memory=int(memory) if memory.isascii() and memory.isdigit() and int(memory) < 1 << 60 else None,
        )

    def _not_loaded(self, name: str, state: str) -> OutriderError:
        words = " ".join(("systemctl", *self._command[1:]))
        if state == "masked":
            return Refused(f"{name} is masked: it could not be started again", hint=f"`{words} unmask {name}` first")
        if state in ("bad-setting", "error"):
            return Refused(
                f"systemd cannot read the file of {name}: it could not be started again",
                hint=f"`{words} status {name}` says what is wrong with it",
            )
        if self._command[1:] and self._loaded_by_the_system(name):
            return Refused(f"{name} is a unit of the system, not of this user", hint="run the command as root")
        whose = "this user" if self._command[1:] else "the system"
        hint = f"`{words} list-units` names those there are"
        return NotFound(
            f"systemd has no unit {name} of {whose} ({state})",
            hint=hint if self._command[1:] else f"{hint}; a user's own are taken over by that user",
        )

    def _loaded_by_the_system(self, name: str) -> bool:
        try:
            line = (self._command[0], "show", "--property=LoadState", "--", name)
            done = subprocess.run(line, capture_output=True, text=True, timeout=ASK, check=False, errors="replace")
        except (subprocess.TimeoutExpired, OSError):
            return False
        return parsed(done.stdout).get("LoadState") == "loaded"

    def _running(self, names: list[str]) -> tuple[str, ...]:
        """Those of these units that run now."""
        if not names:
            return ()
        said = self._ask("show", "--property=Id,ActiveState", "--", *dict.fromkeys(names))
        return tuple(one["Id"] for one in _blocks(said) if one.get("ActiveState") in _RUNS and "Id" in one)

    def runs(self, name: str) -> bool:
        """Whether it runs, or is on its way."""
        return parsed(self._ask("show", "--property=ActiveState", "--", name)).get("ActiveState") in _RUNS

    def text(self, unit: Unit) -> str:
        """What the unit is written as: the Quadlet that it is made from, else its file; with all drop-ins, and with
        its name in the place of `%i` and the like."""
        if unit.source is None or not unit.source.endswith(".container"):
            return expanded(self._ask("cat", "--", unit.name)[:MOST], unit.name)
        source = Path(unit.source)
        try:
            texts = [_read(source)]
            folder = source.with_name(f"{source.name}.d")
            texts += [_read(file) for file in sorted(folder.glob("*.conf"))]
        except OSError as error:
            raise NotFound(f"{unit.source}: {error.strerror}", hint="say which unit file it is") from error
        return expanded("\n".join(texts)[:MOST], unit.name)

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
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            raise SystemctlFailed(
                f"`{' '.join(line)}` failed ({done.returncode}): {said[-1][:300] if said else 'it says nothing'}",
                hint="this machine is not run by systemd, or its bus is down; `systemctl is-system-running` says which"
                if any(words_of in done.stderr for words_of in _NO_BUS)
                else f"`systemctl status {words[-1]}` says more",
            )
        return done.stdout


def _blocks(text: str) -> Iterator[Mapping[str, str]]:
    """`systemctl show` of several units: an empty line between two."""
    for block in text.split("\n\n"):
        if found := parsed(block):
            yield found


def _read(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(MOST).decode("utf-8", "replace")

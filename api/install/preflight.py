"""What has to be so before anything is touched. Each objection says what to type."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path

from api.cli import processes
from api.install import layout, system
from api.install.manifest import FILE, USER, Manifest
from orchestrator.config import Config, load
from orchestrator.errors import Conflict, Refused


def installable(manifest: Manifest) -> None:
    """Raise `Refused`, `Conflict` or `ConfigProblems` when this machine cannot take an installation now."""
    root("install")
    if shutil.which("systemctl") is None:
        raise Refused(
            "there is no systemd here, and units are what an installation is",
            hint="apt-get install systemd; or `outrider up` without one; or see deploy/container for containers",
        )
    if shutil.which("podman") is None:
        raise Refused(
            "Podman is not installed, and engines are its containers",
            hint="apt-get install --no-install-recommends podman runc netavark",
        )
    _somebody_elses(manifest)
    config = load(layout.paths())
    if not any(system.is_active(unit) for unit in layout.UNITS):
        nobody_runs("install")
        check_ports(config)


def root(command: str) -> None:
    """Raise `Refused` unless this is root."""
    if not system.is_root():
        raise Refused(
            f"`outrider {command}` changes the machine, so it has to be root's",
            hint=f"sudo {Path(sys.argv[0]).absolute()} {command}; or `outrider up` as the user you are",
        )


def nobody_runs(command: str) -> None:
    """Raise `Conflict` when daemon or gateway run on the system's folders without being units."""
    paths = layout.paths()
    for kind in (processes.daemon_of(paths), processes.gateway_of(paths)):
        pid = kind.pid()
        if pid is not None:
            raise Conflict(
                f"an Outrider that is no service runs on {layout.STATE} (its {kind.command} is process {pid})",
                hint=f"`outrider down`, then `outrider {command}` again; models that were wanted are started again",
            )


def check_ports(config: Config) -> None:
    """Raise `Conflict` when an address that the service will listen on is taken."""
    wanted = [
        ("[gateway] listen", config.gateway.listen),
        ("[gateway] ops_listen", config.gateway.ops_listen),
    ]
    if config.api.enabled:
        wanted.append(("[api] listen", config.api.listen))
    processes.check_free(wanted, Path(layout.SETTINGS))


def _somebody_elses(manifest: Manifest) -> None:
    """Another installation: a distribution's package, Quadlets, units of somebody's own."""
    found = [Path(folder) / unit for folder in layout.OTHER_UNIT_FOLDERS for unit in layout.UNITS]
    found += [Path(layout.QUADLETS) / f"{Path(unit).stem}.container" for unit in layout.UNITS]
    found += [
        path
        for path in (Path(layout.UNIT_FOLDER) / unit for unit in layout.UNITS)
        if not manifest.has(FILE, str(path)) and path.exists()
    ]
    there = [str(path) for path in found if path.exists()]
    if there:
        raise Conflict(
            f"another installation of Outrider is here: {', '.join(dict.fromkeys(there))}",
            hint="remove it the way it came (a package, Quadlets), or move these files away",
            evidence={"files": there},
        )
    number = system.uid(layout.USER)
    if number is not None and number >= system.SYSTEM_UIDS and not manifest.has(USER, layout.USER):
        raise Conflict(
            f"the user {layout.USER} (uid {number}) is a person's account",
            hint="rename that account: the gateway runs as a user of this name",
        )


def sizes(*folders: str) -> int:
    """Bytes below these folders, for a person who is asked whether they may go."""
    total = 0
    for folder in folders:
        for path in Path(folder).rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file() and not path.is_symlink():
                    total += path.stat().st_size
    return total

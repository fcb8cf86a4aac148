"""`outrider install`: the steps, in an order in which each finds what it needs."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from typer._completion_shared import get_completion_script

from api.cli.completion import VARIABLE
from api.control.token import load_or_create
from api.install import layout, preflight, system
from api.install.application import Application
from api.install.doing import Doing
from api.install.manifest import FOLDER, GROUP, TREE, UNIT, USER


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be done beyond the files: `start` the units, where systemd runs."""

    start: bool


def install(doing: Doing, application: Application, wish: Wish) -> list[str]:
    """Do what is missing; what is left to type. Raises `OutriderError`; what was done until then is recorded."""
    staged = doing.prefix is not None
    if not staged:
        preflight.installable(doing.manifest)
    doing.manifest.version = application.version
    doing.manifest.finished = False  # on disk with the first thing that is made
    _begin(doing)
    doing.file(layout.SYSUSERS, layout.shipped("outrider.sysusers.conf"))
    if not staged:
        _user(doing)
    doing.file(layout.TMPFILES, layout.shipped("outrider.tmpfiles.conf"))
    _folders(doing)
    _application(doing, application)
    for shell, path in layout.COMPLETIONS.items():
        doing.file(path, _completion(shell), what="completion")
    doing.settings(layout.SETTINGS, layout.shipped("outrider.toml"), 0o640, layout.USER)
    doing.file(layout.SCHEMA, layout.shipped("outrider.schema.json"))
    if not staged:
        _token(doing)
    for unit in layout.UNITS:
        doing.file(f"{layout.UNIT_FOLDER}/{unit}", layout.shipped(unit), what="unit")
    left = _next_for_packagers() if staged else _units(doing, wish)
    doing.manifest.finished = True
    doing.manifest.save()
    return left


def _begin(doing: Doing) -> None:
    """The record comes first, and with it the folders that it makes for itself."""
    for folder in reversed(Path(layout.MANIFEST).parents):
        if not doing.at(str(folder)).is_dir():
            doing.manifest.made[FOLDER, str(folder)] = ""


def _user(doing: Doing) -> None:
    if system.uid(layout.USER) is not None and system.gid(layout.USER) is not None:
        doing.say("unchanged", "user", layout.USER)
        return
    if not doing.dry:
        if system.gid(layout.USER) is None:
            doing.manifest.note(GROUP, layout.USER)
        if system.uid(layout.USER) is None:
            doing.manifest.note(USER, layout.USER)
        system.make_user()
    doing.say("made", "user", layout.USER, "for the gateway; who is in its group may use `outrider` without root")


def _folders(doing: Doing) -> None:
    for entry in layout.entries():
        if doing.prefix is not None and entry.path.startswith("/run/"):
            continue  # it is made anew at each boot
        if entry.target is not None:
            doing.link(entry.path, entry.target)
        elif doing.dry and doing.prefix is None and system.uid(layout.USER) is None and not Path(entry.path).exists():
            doing.say("made", "folder", entry.path, f"{entry.mode:04o} {entry.user}:{entry.group}")
        else:
            doing.folder(entry.path, entry.mode, entry.user, entry.group)


def _application(doing: Doing, application: Application) -> None:
    there = doing.at(application.folder).is_dir()
    if not doing.dry:
        doing.manifest.note(TREE, layout.APPLICATION)
        doing.parents(layout.APPLICATION)
    if there:
        doing.say("unchanged", "application", application.folder)
    else:
        if not doing.dry:
            application.copy(doing.prefix)
        doing.say("made", "application", application.folder, f"runs on {application.python}")
    doing.link(layout.CURRENT, f"releases/{application.name}")
    doing.link(layout.COMMAND, f"{layout.CURRENT}/bin/outrider", what="command")


def _completion(shell: str) -> bytes:
    return (get_completion_script(prog_name="outrider", complete_var=VARIABLE, shell=shell) + "\n").encode()


def _token(doing: Doing) -> None:
    """Each machine's own, so a package has none."""
    paths = layout.paths()
    if paths.token_file.exists():
        doing.say("unchanged", "token", layout.TOKEN)
        return
    if not doing.dry:
        load_or_create(paths)
    doing.say("made", "token", layout.TOKEN, "for the API on 127.0.0.1; 0600")


def _units(doing: Doing, wish: Wish) -> list[str]:
    """Enable, and start or restart what changed. What could not be done here is returned as what to type."""
    renewed = any(s.state in {"made", "changed"} and s.what in {"unit", "application", "link"} for s in doing.steps)
    for unit in (layout.SOCKET, *layout.UNITS):
        if system.is_enabled(unit):
            doing.say("unchanged", "enabled", unit)
            continue
        if not doing.dry:
            doing.manifest.note(UNIT, unit)
            system.run("systemctl", "--quiet", "enable", unit)
        doing.say("made", "enabled", unit, "starts with the machine")
    if not wish.start or not system.systemd_runs():
        _tidy(doing, keep_old=True)
        why = "systemd does not run here; on the machine itself" if not system.systemd_runs() else "to start it"
        return [f"# {why}:", f"systemctl daemon-reload && systemctl start {layout.SOCKET} {' '.join(layout.UNITS)}"]
    if not doing.dry:
        system.run("systemctl", "daemon-reload")
        if not system.is_active(layout.SOCKET):
            system.run("systemctl", "start", layout.SOCKET)
    for unit in layout.UNITS:
        active = system.is_active(unit)
        if active and not renewed:
            doing.say("unchanged", "running", unit)
            continue
        if not doing.dry:
            system.run("systemctl", "restart" if active else "start", unit)
        doing.say("changed" if active else "made", "running", unit, "started again" if active else "ready")
    _tidy(doing, keep_old=False)
    return ["outrider ps", "outrider model add NAME --path FILE, then outrider start NAME"]


def _tidy(doing: Doing, *, keep_old: bool) -> None:
    """Releases that nothing runs from any more."""
    releases = doing.at(f"{layout.APPLICATION}/releases")
    current = doing.at(layout.CURRENT)
    if keep_old or not releases.is_dir() or not current.is_symlink():
        return
    for folder in sorted(releases.iterdir()):
        if folder.name != current.readlink().name:
            if not doing.dry:
                shutil.rmtree(folder)
            doing.say("removed", "application", f"{layout.APPLICATION}/releases/{folder.name}", "an earlier one")


def _next_for_packagers() -> list[str]:
    return [
        "# the machine that gets these files makes the user, the folders and the token itself:",
        "systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload",
        f"systemctl enable --now {layout.SOCKET} {' '.join(layout.UNITS)}",
    ]


def folders_made(doing: Doing) -> list[str]:
    """The folders that the record names, the deepest first."""
    return sorted(doing.manifest.of(FOLDER), key=lambda path: path.count("/"), reverse=True)

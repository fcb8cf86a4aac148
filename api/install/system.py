"""The machine's own means: systemd, and the accounts of users and groups."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from api.install import layout
from api.install.errors import InstallFailed

LIMIT = 300.0
"""Seconds for one command: `systemctl start` waits until the unit is ready."""
RUNNING = Path("/run/systemd/system")
SYSTEM_UIDS = 1000
"""People's accounts begin here."""


def systemd_runs() -> bool:
    """Whether systemd is what runs this machine (sd_booted)."""
    return RUNNING.is_dir()


def run(*words: str | Path) -> str:
    """A command's standard output. Raises `InstallFailed` with what it said when it fails or takes too long."""
    shown = " ".join(str(word) for word in words)
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=LIMIT, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallFailed(f"`{shown}`: {error}", hint=_AGAIN) from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-600:]
        raise InstallFailed(f"`{shown}` failed: {said}", hint=_AGAIN)
    return done.stdout


_AGAIN = (
    "once that is mended, the same command goes on from here; `outrider uninstall` takes away what was made; "
    "`journalctl -u outrider -n 50` may say more"
)


def asks(*words: str) -> bool:
    """Whether a command that asks something says yes."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(words, capture_output=True, timeout=30, check=False, stdin=subprocess.DEVNULL)
        return done.returncode == 0
    return False


def is_active(unit: str) -> bool:
    """Whether systemd runs this unit now."""
    return systemd_runs() and asks("systemctl", "is-active", "--quiet", unit)


def is_enabled(unit: str) -> bool:
    """Whether systemd starts this unit with the machine."""
    return asks("systemctl", "is-enabled", "--quiet", unit)


def uid(name: str) -> int | None:
    """A user's number; None when there is no such user."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(name).pw_uid
    return None


def gid(name: str) -> int | None:
    """The group's number; None when there is none of this name."""
    with contextlib.suppress(KeyError):
        return grp.getgrnam(name).gr_gid
    return None


def make_user() -> None:
    """The gateway's user and group, by sysusers.d where that is there, else by the account tools."""
    if shutil.which("systemd-sysusers") is not None:
        run("systemd-sysusers", layout.SYSUSERS)
        return
    if gid(layout.USER) is None:
        run("groupadd", "--system", layout.USER)
    words: Sequence[str] = ("--system", "--gid", layout.USER, "--home-dir", layout.STATE, "--no-create-home")
    run("useradd", *words, "--shell", "/usr/sbin/nologin", "--comment", "Outrider's gateway", layout.USER)


def remove_user() -> None:
    """The user, and its group if that is left."""
    if uid(layout.USER) is not None:
        run("userdel", layout.USER)
    if gid(layout.USER) is not None:
        run("groupdel", layout.USER)


def is_root() -> bool:
    """Whether this process may do what root may."""
    return os.geteuid() == 0

"""What is installed where, from the files that `deploy/` holds and packages carry along.

Folders, owners and modes are not said here a second time: they are read from `tmpfiles.d`'s file,
which makes the same at each boot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from orchestrator.paths import Paths, find

USER = "outrider"
UNITS = ("outrider.service", "outrider-gateway.service")
SOCKET = "podman.socket"
UNIT_FOLDER = "/etc/systemd/system"
OTHER_UNIT_FOLDERS = ("/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
QUADLETS = "/etc/containers/systemd"
SYSUSERS = "/etc/sysusers.d/outrider.conf"
TMPFILES = "/etc/tmpfiles.d/outrider.conf"
APPLICATION = "/opt/outrider"
CURRENT = "/opt/outrider/current"
COMMAND = "/usr/local/bin/outrider"
CONFIG = "/etc/outrider"
STATE = "/var/lib/outrider"
RUN = "/run/outrider"
SETTINGS = "/etc/outrider/outrider.toml"
SCHEMA = "/etc/outrider/outrider.schema.json"
TOKEN = "/var/lib/outrider/token"  # noqa: S105 - a path
MANIFEST = "/var/lib/outrider/install.json"
COMPLETIONS = {
    "bash": "/usr/local/share/bash-completion/completions/outrider",
    "zsh": "/usr/local/share/zsh/site-functions/_outrider",
    "fish": "/usr/local/share/fish/vendor_completions.d/outrider.fish",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder (`target` None) or link that tmpfiles.d makes."""

    path: str
    mode: int
    user: str
    group: str
    target: str | None = None


def shipped(name: str) -> bytes:
    """A file of `deploy/`, as it came with this program."""
    return (files("api.install") / "data" / name).read_bytes()


def entries() -> Iterator[Entry]:
    """What the folders are: tmpfiles.d's lines, in order."""
    for line in shipped("outrider.tmpfiles.conf").decode().splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        kind, path, mode, user, group = words[:5]
        if kind == "L":
            yield Entry(path, 0o777, "root", "root", words[6])
        else:
            yield Entry(path, int(mode, 8), user, group)


def paths() -> Paths:
    """The system's folders, whatever this process's environment says."""
    return find(environ={"HOME": "/root"}, uid=0)


def under(prefix: Path | None, path: str) -> Path:
    """The path below a prefix: where a packager stages what will be at `path`."""
    return Path(path) if prefix is None else prefix / path.lstrip("/")

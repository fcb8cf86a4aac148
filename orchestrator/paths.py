"""Where things live (contract): root's folders, a user's XDG folders, or one state folder.

With `--state-dir DIR` everything of the run folder is `DIR/run`; where a socket
path would pass 100 bytes (a unix socket's address ends at 107), the sockets lie
in a private short folder under the temporary folder and `DIR/run` links to it.

What the gateway makes lies in `gateway/` of the run folder, which is the gateway's user's;
`gateway.pid` and `gateway.sock` beside it are links into it. So the run folder itself can be
root's where the daemon is root and the gateway is not. A packager's `DIR/run` may be a link
to a folder elsewhere, as `/var/lib/outrider/run` is: then `--state-dir /var/lib/outrider`
names the system's own Outrider, whoever asks.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Conflict

SYSTEM_STATE = Path("/var/lib/outrider")
"""Root's state folder. Where Outrider is installed, `run` in it is a link to the run folder."""
LONGEST_SOCKET = 100
"""Bytes. The kernel's limit is 107 (`sun_path`); the rest is for names not yet thought of."""
LONGEST_NAME = len("engines/0123456789abcdef/engine.sock")


@dataclass(frozen=True, slots=True)
class Paths:
    """The folders of one Outrider on one host."""

    config_dir: Path
    state_dir: Path
    run_dir: Path

    @property
    def config_file(self) -> Path:
        return self.config_dir / "outrider.toml"

    @property
    def models_d(self) -> Path:
        return self.config_dir / "models.d"

    @property
    def catalog_d(self) -> Path:
        """What its owner adds to the catalogue."""
        return self.config_dir / "catalog.d"

    @property
    def store(self) -> Path:
        """The weights: real files of our own."""
        return self.state_dir / "models"

    @property
    def database(self) -> Path:
        return self.state_dir / "outrider.db"

    @property
    def measurements(self) -> Path:
        """What this host has learned from running."""
        return self.state_dir / "measured.db"

    @property
    def token_file(self) -> Path:
        return self.state_dir / "token"

    @property
    def cache(self) -> Path:
        return self.state_dir / "cache"

    @property
    def logs(self) -> Path:
        return self.state_dir / "logs"

    @property
    def loading(self) -> Path:
        """Marks of what is being loaded, for after a crash of the host."""
        return self.state_dir / "loading"

    @property
    def engines(self) -> Path:
        """Engines' socket folders: 0700, owned by the gateway's user."""
        return self.run_dir / "engines"

    @property
    def engine_ports(self) -> Path:
        """Which loopback ports engines have, and since when the others rest."""
        return self.run_dir / "ports.json"

    @property
    def control_socket(self) -> Path:
        return self.run_dir / "control.sock"

    @property
    def gateway_dir(self) -> Path:
        """What the gateway makes in the run folder; whoever owns it is the gateway's user."""
        return self.run_dir / "gateway"

    @property
    def gateway_socket(self) -> Path:
        """Where the gateway listens for the daemon's drain requests."""
        return self.gateway_dir / "gateway.sock"

    @property
    def gateway_pid(self) -> Path:
        """The gateway's pid, and its lock."""
        return self.gateway_dir / "gateway.pid"

    @property
    def podman_socket(self) -> Path:
        """The socket of a Podman service of our own, when none runs."""
        return self.run_dir / "podman.sock"

    @property
    def routing_table(self) -> Path:
        """The gateway's last routing table, 0600."""
        return self.state_dir / "gateway" / "table.json"

    @property
    def owner(self) -> str:
        """The id of this state folder: the value of the containers' owner label."""
        return hashlib.sha256(os.fsencode(self.state_dir.resolve())).hexdigest()[:16]


def find(
    config: Path | None = None,
    state_dir: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    uid: int | None = None,
) -> Paths:
    """The folders for these options, the environment and this user; creates nothing.

    `config` is a configuration file or folder (`--config`, `OUTRIDER_CONFIG`);
    `state_dir` is `--state-dir` or `OUTRIDER_STATE_DIR`. With a state folder and no
    configuration named, the configuration is looked for in `DIR/config`.
    """
    env = os.environ if environ is None else environ
    root = (os.getuid() if uid is None else uid) == 0
    home = Path(env.get("HOME", "~")).expanduser()
    if config is None and env.get("OUTRIDER_CONFIG"):
        config = Path(env["OUTRIDER_CONFIG"])
    if state_dir is None and env.get("OUTRIDER_STATE_DIR"):
        state_dir = Path(env["OUTRIDER_STATE_DIR"])

    if config is not None:
        config_dir = config.parent if config.suffix == ".toml" else config
    elif state_dir is not None:
        config_dir = state_dir / "config"
    elif root:
        config_dir = Path("/etc/outrider")
    else:
        config_dir = Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "outrider"

    if state_dir is not None:
        state = state_dir.absolute()
        run = state / "run"
    elif root:
        state, run = SYSTEM_STATE, Path("/run/outrider")
    else:
        state = Path(env.get("XDG_STATE_HOME") or home / ".local/state") / "outrider"
        runtime = env.get("XDG_RUNTIME_DIR")
        run = Path(runtime) / "outrider" if runtime else state / "run"
    return Paths(config_dir.absolute(), state, run)


def prepare(paths: Paths, *, only_gateway: bool = False) -> Paths:
    """Create the state and run folders with their modes; returns the paths to use.

    What a packager made stays as it is: a folder that is there is narrowed when it is ours and open
    to more than it may be, and never opened, nor given to anybody. `only_gateway` leaves out what
    the gateway does not need, for its user may not make it. The run folder of the answer is the
    real one: `DIR/run` when short enough, else the short folder that `DIR/run` links to. Raises
    `Conflict` when a folder is somebody else's.
    """
    for folder in () if only_gateway else (paths.state_dir, paths.store, paths.cache, paths.logs):
        folder.mkdir(parents=True, exist_ok=True)
    _folder(paths.routing_table.parent, 0o700)
    run = paths.run_dir
    elsewhere = run.readlink() if run.is_symlink() else None
    if elsewhere is not None and elsewhere.is_absolute() and elsewhere != _short_name(paths):
        run = elsewhere  # a packager's
    if len(os.fsencode(run)) + 1 + LONGEST_NAME > LONGEST_SOCKET:
        run = _short_run_folder(paths)
    else:
        # The short folder may be named itself: who prepares what was prepared must not open it up.
        _folder(run, 0o750 if os.getuid() == 0 and run != _short_name(paths) else 0o700)
    ready = Paths(paths.config_dir, paths.state_dir, run)
    _folder(ready.engines, 0o700)
    _folder(ready.gateway_dir, 0o750)
    if run.stat().st_uid == os.getuid():
        for file in (ready.gateway_pid, ready.gateway_socket):
            _link(run / file.name, file.relative_to(run))
    return ready


def _folder(path: Path, most: int) -> None:
    """Make a folder of this mode, or see that one of ours is open to no more."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        info = path.stat()
        mode = stat.S_IMODE(info.st_mode)
        if not stat.S_ISDIR(info.st_mode):
            raise Conflict(f"{path} is there and is no folder", hint=f"move {path} away") from None
        if info.st_uid == os.getuid() and mode & 0o777 & ~most:
            path.chmod(mode & ~(0o777 & ~most))
    else:
        path.chmod(most)


def _link(path: Path, target: Path) -> None:
    """A link of this name to this target, in place of whatever file had the name."""
    with contextlib.suppress(FileExistsError):  # the other process made it
        if path.is_symlink() and path.readlink() == target:
            return
        path.unlink(missing_ok=True)
        path.symlink_to(target)


def _short_name(paths: Paths) -> Path:
    return Path(tempfile.gettempdir()) / f"outrider-{paths.owner}"


def _short_run_folder(paths: Paths) -> Path:
    """A private folder under the temporary folder, the same for the same state folder."""
    short = _short_name(paths)
    short.mkdir(mode=0o700, exist_ok=True)
    info = short.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise Conflict(
            f"{short} is not a private folder of this user",
            hint="remove it, or set TMPDIR to a folder of your own",
        )
    link = paths.run_dir
    if link.is_symlink() or link.exists():
        if link.is_symlink() and link.readlink() == short:
            return short
        if link.is_dir() and not link.is_symlink():
            raise Conflict(f"{link} is a folder, and its path is too long for sockets", hint=f"remove {link}")
        link.unlink()
    link.symlink_to(short)
    return short

"""Where things live (contract): root's folders, a user's XDG folders, or one state folder.

With `--state-dir DIR` everything of the run folder is `DIR/run`; where a socket
path would pass 100 bytes (a unix socket's address ends at 107), the sockets lie
in a private short folder under the temporary folder and `DIR/run` links to it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Conflict

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
    def store(self) -> Path:
        """The weights: real files of our own."""
        return self.state_dir / "models"

    @property
    def database(self) -> Path:
        return self.state_dir / "outrider.db"

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
    def control_socket(self) -> Path:
        return self.run_dir / "control.sock"

    @property
    def gateway_socket(self) -> Path:
        """Where the gateway listens for the daemon's drain requests."""
        return self.run_dir / "gateway.sock"

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
        state, run = Path("/var/lib/outrider"), Path("/run/outrider")
    else:
        state = Path(env.get("XDG_STATE_HOME") or home / ".local/state") / "outrider"
        runtime = env.get("XDG_RUNTIME_DIR")
        run = Path(runtime) / "outrider" if runtime else state / "run"
    return Paths(config_dir.absolute(), state, run)


def prepare(paths: Paths) -> Paths:
    """Create the state and run folders with their modes; returns the paths to use.

    The run folder of the answer is the real one: `DIR/run` when short enough, else
    the short folder that `DIR/run` links to. Raises `Conflict` when a folder is
    somebody else's.
    """
    for folder in (paths.state_dir, paths.store, paths.cache, paths.logs, paths.routing_table.parent):
        folder.mkdir(parents=True, exist_ok=True)
    paths.routing_table.parent.chmod(0o700)
    run = paths.run_dir
    if len(os.fsencode(run)) + 1 + LONGEST_NAME > LONGEST_SOCKET:
        run = _short_run_folder(paths)
    else:
        run.mkdir(parents=True, exist_ok=True)
        if run.stat().st_uid == os.getuid():
            # The short folder may be named itself: who prepares what was prepared must not open it up.
            run.chmod(0o750 if os.getuid() == 0 and run != _short_name(paths) else 0o700)
    ready = Paths(paths.config_dir, paths.state_dir, run)
    ready.engines.mkdir(exist_ok=True)
    if ready.engines.stat().st_uid == os.getuid():
        ready.engines.chmod(0o700)
    return ready


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

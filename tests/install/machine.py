"""Whole machines for tests of the installation: a Debian with its own systemd as process 1, in a container.

Root file systems are made once (debootstrap; a minute each) and kept in $OUTRIDER_TEST_ROOTS, by
default /var/cache/outrider-tests; a test's machine has one below a layer of its own. The container
is privileged, has no network, and its own Podman has a folder of the real disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.waiting import until_sync

CHECKOUT = Path(__file__).parents[2]
ROOTS = Path(os.environ.get("OUTRIDER_TEST_ROOTS", "/var/cache/outrider-tests"))
PACKAGES = (
    "ca-certificates,dbus,iproute2,libgomp1,netavark,podman,procps,python3,python3-venv,runc,systemd,systemd-sysv"
)
UNSEEN = (
    "dev",
    "proc",
    "run",
    "srv",
    "sys",
    "tmp",
    "var/cache",
    "var/lib/containers",
    "var/lib/systemd",
    "var/log",
    "var/tmp",
    "var/backups",  # dpkg's own timer, once a day
)
"""What changes while a machine runs, whoever is installed on it."""
BACKUPS = ("group-", "gshadow-", "passwd-", "shadow-", "subgid-", "subuid-")
"""The account tools' own: what was before their last change."""
LIMIT = 120.0


def command(*words: str | Path, **options: Any) -> str:
    """Run it; its output. Fails with what it said."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False, **options)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
    return str(done.stdout)


def root(suite: str) -> Path:
    """The root file system of a Debian, made if need be, with a virtual environment for this checkout's locks."""
    ROOTS.mkdir(parents=True, exist_ok=True)
    base = ROOTS / f"install-{suite}"
    with (ROOTS / f"install-{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = base / "etc/outrider-tests-stamp"
        if not stamp.exists() or stamp.read_text() != PACKAGES:
            shutil.rmtree(base, ignore_errors=True)
            _debootstrap(suite, base)
            stamp.write_text(PACKAGES)
        _environment(base)
    return base


def _debootstrap(suite: str, base: Path) -> None:
    targets = command("apt-get", "indextargets", "--format", "$(SITE) $(LABEL)", "Created-By: Packages").splitlines()
    mirror = next(line.split()[0] for line in targets if line.split()[1:] == ["Debian"])
    proxy = command("apt-config", "shell", "proxy", "Acquire::http::Proxy").strip().partition("=")[2].strip("'")
    environ = {**os.environ, **({"http_proxy": proxy} if proxy else {})}
    if shutil.which("debootstrap") is None:
        command("apt-get", "install", "-y", "--no-install-recommends", "debootstrap")
    words = ["unshare", "--mount", "--propagation", "private", "debootstrap", "--variant=minbase"]
    command(*words, f"--include={PACKAGES}", suite, base, mirror, env=environ)


def _environment(base: Path) -> None:
    """What `make setup` makes, inside the Debian and for its Python."""
    digest = hashlib.sha256((CHECKOUT / "requirements.lock").read_bytes()).hexdigest()
    stamp = base / "opt/venv/stamp"
    if stamp.exists() and stamp.read_text() == digest:
        return
    environ = {k: v for k, v in os.environ.items() if k.startswith("PIP_")}
    # where pip finds packages, and whom it trusts, as on this machine
    files = ["/etc/pip.conf", os.path.expanduser("~/.config/pip/pip.conf"), "/etc/ssl/certs/ca-certificates.crt"]
    files += [word for value in environ.values() for word in value.split() if word.startswith("/")]
    mounts = [
        f"{CHECKOUT}:/opt/checkout",
        *(f"{path}:{path}:ro" for path in dict.fromkeys(files) if os.path.exists(path)),
    ]
    script = (
        "set -e; rm -rf /opt/venv; python3 -m venv /opt/venv; pip='/opt/venv/bin/python -m pip --quiet'; "
        "$pip install --require-hashes -r /opt/checkout/requirements.lock; "
        "$pip install --no-index --no-deps --no-build-isolation --editable /opt/checkout"
    )
    words = ["podman", "run", "--rm", *limits(), "--network=host", *(f"--env={k}={v}" for k, v in environ.items())]
    command(*words, *(f"--volume={mount}" for mount in mounts), "--rootfs", base, "sh", "-c", script)
    stamp.write_text(digest)


def limits() -> list[str]:
    """Limits that Podman may set where this process's own are lower than its defaults."""
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = int(Path("/proc/sys/kernel/pid_max").read_text())
    return [f"--ulimit=nofile={open_files}:{open_files}", f"--ulimit=nproc={processes}:{processes}"]


class Machine:
    """A Debian that runs, or (without `systemd`) only a place to run commands in."""

    def __init__(self, suite: str, *, systemd: bool = True) -> None:
        self._base = root(suite)
        self._systemd = systemd
        self.name = f"outrider-machine-{secrets.token_hex(4)}"
        self.folder = Path(tempfile.mkdtemp(prefix="or-machine-", dir="/var/tmp"))
        for part in ("upper", "work", "root", "containers", "data"):
            (self.folder / part).mkdir()
        self.data = self.folder / "data"
        """At /srv/data of the machine."""

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def start(self) -> None:
        layers = f"lowerdir={self._base},upperdir={self.folder / 'upper'},workdir={self.folder / 'work'}"
        command("mount", "-t", "overlay", "overlay", "-o", layers, self.root)
        volumes = [
            f"--volume={self.folder / 'containers'}:/var/lib/containers",
            f"--volume={CHECKOUT}:/opt/checkout:ro",
            f"--volume={self.data}:/srv/data",
        ]
        words = [
            "podman",
            "run",
            "--detach",
            "--name",
            self.name,
            *limits(),
            "--network=none",
            "--privileged",
            *volumes,
        ]
        # systemd of Debian 13 wants to be told aloud where it finds control groups of the first version
        legacy = ["SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1", "systemd.unified_cgroup_hierarchy=0"]
        init = ["/sbin/init", *legacy] if self._systemd else ["sleep", "infinity"]
        command(*words, *volumes, f"--systemd={'always' if self._systemd else 'false'}", "--rootfs", self.root, *init)
        self.wait_up()

    def wait_up(self) -> None:
        if self._systemd:
            until_sync(
                lambda: self.call("systemctl", "is-system-running")[1].strip() in {"running", "degraded"},
                LIMIT,
                "the machine's start",
            )

    def reboot(self) -> None:
        """Everything ends and begins anew; what is below /run is gone."""
        command("podman", "restart", "--time", "20", self.name)
        self.wait_up()

    def call(self, *words: str, text: str | None = None) -> tuple[int, str, str]:
        """Exit code, output, errors of a command in the machine."""
        done = subprocess.run(
            ["podman", "exec", *(["-i"] if text is not None else []), self.name, *words],
            capture_output=True,
            text=True,
            input=text,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def run(self, *words: str, text: str | None = None) -> str:
        code, out, err = self.call(*words, text=text)
        assert code == 0, f"{' '.join(words)}: {code}\n{out[-3000:]}\n{err[-3000:]}\n{self.journal()}"
        return out

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words))

    def journal(self) -> str:
        """The last words of the units, for a failure."""
        return self.call("journalctl", "--no-pager", "-n", "40", "-u", "outrider", "-u", "outrider-gateway")[1][-6000:]

    def tree(self) -> dict[str, tuple[int, int, int, str]]:
        """Every path that an installation might leave, with mode, owner and contents."""
        found = {}
        for folder, folders, files in os.walk(self.root):
            folders[:] = [f for f in folders if os.path.relpath(os.path.join(folder, f), self.root) not in UNSEEN]
            for name in [*folders, *files]:
                path = Path(folder, name)
                if name.endswith(".pyc") or name == "__pycache__" or (name in BACKUPS and Path(folder).name == "etc"):
                    continue  # the system's Python keeps what it compiled
                info = path.lstat()
                what = str(path.readlink()) if path.is_symlink() else ""
                below = os.path.relpath(path, self.root)
                if path.is_file() and not path.is_symlink() and below.startswith("etc/"):
                    what = path.read_bytes().hex()
                found[below] = (info.st_mode, info.st_uid, info.st_gid, what)
        return found

    def close(self) -> None:
        subprocess.run(["podman", "rm", "-f", "-t", "2", self.name], capture_output=True, timeout=120, check=False)
        subprocess.run(["umount", self.root], capture_output=True, check=False)
        for mount in sorted(_mounts(self.folder), key=len, reverse=True):
            subprocess.run(["umount", "-l", mount], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def _mounts(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if line.split()[1].startswith(f"{folder}/")]


@contextlib.contextmanager
def machine(suite: str, *, systemd: bool = True) -> Iterator[Machine]:
    """A machine for the length of a `with`."""
    made = Machine(suite, systemd=systemd)
    try:
        made.start()
        yield made
    finally:
        made.close()

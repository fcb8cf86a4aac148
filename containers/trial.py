"""Whether Podman can start a container on this host, and with which settings: tried, not guessed.

A container runtime may be installed and useless: crun on a host with mixed control
groups, limits that an unprivileged root may not set. A trial container answers in
0.2 s. It needs no image and no network: its root is a folder that holds one program
of 129 bytes, which ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import resource
import shutil
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from containers.errors import PodmanFailed, PodmanTimeout, PodmanUnreachable

INSTALL_HINT = "apt-get install podman (or your system's package manager)"
CACHE_FILE = "podman-trial.json"
CONF_FILE = "containers.conf"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_MAX = Path("/proc/sys/kernel/pid_max")

# exit(0) as machine code, by machine: (ELF machine number, code).
_PROGRAMS: Mapping[str, tuple[int, bytes]] = {
    "x86_64": (62, bytes.fromhex("31ff b83c000000 0f05")),  # xor edi,edi; mov eax,60; syscall
    "aarch64": (183, bytes.fromhex("000080d2 a80b80d2 010000d4")),  # mov x0,#0; mov x8,#93; svc #0
}


@dataclass(frozen=True, slots=True)
class Settings:
    """A containers.conf of ours. The value without any of them is the host's own configuration, untouched."""

    runtime: str | None = None
    limits: Mapping[str, int] | None = None
    plain: bool = False
    """Control groups and events through files, for a host whose systemd does not answer."""

    @property
    def untouched(self) -> bool:
        return self == Settings()

    def text(self) -> str:
        """The file's contents."""
        lines = []
        if self.limits:
            ulimits = ", ".join(f'"{name}={value}:{value}"' for name, value in sorted(self.limits.items()))
            lines += ["[containers]", f"default_ulimits = [{ulimits}]"]
        lines.append("[engine]")
        if self.runtime is not None:
            lines.append(f'runtime = "{self.runtime}"')
        if self.plain:
            lines += ['cgroup_manager = "cgroupfs"', 'events_logger = "file"']
        return "\n".join(lines) + "\n"


async def settings(run_dir: Path, *, limit: float) -> Path | None:
    """The containers.conf that makes Podman work here; None when the host's own does.

    The answer is kept in the run folder and holds for this boot, this Podman, these
    runtimes, these limits and this configuration. Raises `PodmanUnreachable` when Podman
    is not installed, `PodmanFailed` with Podman's words when nothing works.
    """
    podman = shutil.which("podman")
    if podman is None:
        raise PodmanUnreachable("Podman is not installed", hint=INSTALL_HINT)
    key = await asyncio.to_thread(_key, podman)
    conf = run_dir / CONF_FILE
    cache = run_dir / CACHE_FILE
    text = await asyncio.to_thread(_cached, cache, key)
    if text is None:
        found = await _find(podman, limit)
        text = "" if found.untouched else found.text()
        await asyncio.to_thread(_write, cache, json.dumps({"key": key, "conf": text}))
    if not text:
        return None
    await asyncio.to_thread(_write, conf, text)
    return conf


def candidates() -> tuple[Settings, ...]:
    """What to try, the least of our own first."""
    low = _present_limits()
    found = [Settings(), Settings(limits=low), Settings(limits=low, plain=True)]
    found += [
        Settings(runtime=name, limits=low, plain=True) for name in ("crun", "runc") if shutil.which(name) is not None
    ]
    return tuple(found)


def program(machine: str | None = None) -> bytes:
    """A static ELF program that ends at once with 0. Raises `PodmanFailed` for a machine it is not known for."""
    name = platform.machine() if machine is None else machine
    if name not in _PROGRAMS:
        raise PodmanFailed(f"no trial program for the machine {name}", hint="start a Podman service of your own")
    number, code = _PROGRAMS[name]
    base, head = 0x400000, 64 + 56
    size = head + len(code)
    elf = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    elf += struct.pack("<HHIQQQIHHHHHH", 2, number, 1, base + head, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    elf += struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    return elf + code


async def _find(podman: str, limit: float) -> Settings:
    complaints = []
    for candidate in candidates():
        complaint = await _complaint(podman, candidate, limit)
        if complaint is None:
            return candidate
        complaints.append(complaint)
    raise PodmanFailed(
        f"Podman cannot start a container here: {complaints[-1]}",
        hint="try `podman run` by hand, and start a Podman service of your own once it works",
        evidence={"complaints": list(dict.fromkeys(complaints))},
    )


async def _complaint(podman: str, settings: Settings, limit: float) -> str | None:
    """Run the trial container; None when it ran, else what Podman said."""
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="outrider-trial-"))
    try:
        return await _tried(podman, *await asyncio.to_thread(_laid_out, folder, settings), limit=limit)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _tried(podman: str, root: Path, conf: Path | None, *, limit: float) -> str | None:
    command = ["run", "--rm", "--network", "none", "--log-driver", "none", "--rootfs", str(root), "/end"]
    try:
        process = await asyncio.create_subprocess_exec(
            podman,
            *command,
            env=dict(os.environ) if conf is None else {**os.environ, "CONTAINERS_CONF": str(conf)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise PodmanUnreachable(f"cannot run {podman}: {error}", hint=INSTALL_HINT) from error
    try:
        async with asyncio.timeout(limit):
            _, said = await process.communicate()
    except TimeoutError as error:
        raise PodmanTimeout(
            f"a trial container took longer than {limit:g} s", hint="try `podman run` by hand"
        ) from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == 0:
        return None
    return said.decode(errors="replace").strip()[-500:] or f"exit code {process.returncode}"


def _laid_out(folder: Path, settings: Settings) -> tuple[Path, Path | None]:
    """The trial container's files, and its containers.conf where there is one."""
    root = folder / "root"
    root.mkdir()
    (root / "end").write_bytes(program())
    (root / "end").chmod(0o755)
    if settings.untouched:
        return root, None
    conf = folder / CONF_FILE
    conf.write_text(settings.text())
    return root, conf


def _present_limits() -> dict[str, int]:
    """Limits that need no privilege to set: what this process has, and no more than is sensible.

    Podman lowers its own limit of processes to the kernel's largest pid before it starts
    anything, so that bounds what its containers can have as well.
    """
    wanted = {
        "nofile": (resource.RLIMIT_NOFILE, 1 << 20),
        "nproc": (resource.RLIMIT_NPROC, int(_PID_MAX.read_text())),
    }
    present = {}
    for name, (which, most) in wanted.items():
        hard = resource.getrlimit(which)[1]
        present[name] = most if hard == resource.RLIM_INFINITY else min(hard, most)
    return present


def _key(podman: str) -> str:
    """A digest of what the verdict depends on; a package's update shows in its file's time and size."""
    parts = [_BOOT_ID.read_text().strip(), str(os.getuid()), json.dumps(_present_limits(), sort_keys=True)]
    for program_path in (podman, *(shutil.which(name) for name in ("crun", "runc", "conmon"))):
        if program_path is not None:
            info = os.stat(program_path)
            parts.append(f"{os.path.realpath(program_path)} {info.st_size} {info.st_mtime_ns}")
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    for folder in ("/usr/share/containers", "/etc/containers", f"{home}/containers"):
        with contextlib.suppress(OSError):
            parts.append((Path(folder) / CONF_FILE).read_text())
    parts.append(os.environ.get("CONTAINERS_CONF", ""))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _cached(cache: Path, key: str) -> str | None:
    """The contents of our containers.conf, empty when none is needed; None when nothing is known."""
    try:
        data = json.loads(cache.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or data.get("key") != key:
        return None
    conf = data.get("conf")
    return conf if isinstance(conf, str) else None


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text)
    new.replace(path)

"""Where a host's files are looked for: the real places, or a copied tree in a test."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "OUTRIDER_HOST_ROOT"

_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib64/nvidia",
    "/usr/lib/wsl/lib",  # WSL2 keeps the driver's libraries here and nowhere else
    "/usr/local/nvidia/lib64",
    "/run/opengl-driver/lib",  # NixOS
    "/opt/rocm/lib",
)


@dataclass(frozen=True, slots=True)
class Roots:
    """Roots of the file systems that the probes read. Only reads, never a write."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    etc: Path = Path("/etc")
    dev: Path = Path("/dev")
    run: Path = Path("/run")
    usr: Path = Path("/usr")
    opt: Path = Path("/opt")
    var: Path = Path("/var")
    libraries: tuple[Path, ...] = tuple(Path(folder) for folder in _LIBRARY_FOLDERS)

    @classmethod
    def under(cls, base: Path) -> Roots:
        """The roots of a copied tree: `base`/proc, `base`/sys, ... and no library folders but `base`/lib."""
        return cls(
            proc=base / "proc",
            sys=base / "sys",
            etc=base / "etc",
            dev=base / "dev",
            run=base / "run",
            usr=base / "usr",
            opt=base / "opt",
            var=base / "var",
            libraries=(base / "lib",),
        )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Roots:
        """The real places, or those below OUTRIDER_HOST_ROOT: for a daemon in a container that has the host's
        folders mounted there. Libraries are the process's own either way."""
        base = (os.environ if environ is None else environ).get(VARIABLE)
        return cls() if not base else dataclasses.replace(cls.under(Path(base)), libraries=cls().libraries)

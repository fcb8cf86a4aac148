"""A host of the test's own making: a root with a boot id, memory and pressure that the test writes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.roots import VARIABLE

__all__ = ["FakeHost", "host"]

GIB = 2**30


class FakeHost:
    """The root that OUTRIDER_HOST_ROOT names. What it does not fake is the machine's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._proc = folder / "proc"
        (self._proc / "sys/kernel/random").mkdir(parents=True)
        (self._proc / "pressure").mkdir()
        (self._proc / "cpuinfo").symlink_to("/proc/cpuinfo")
        (self._proc / "sys/kernel/hostname").symlink_to("/proc/sys/kernel/hostname")
        self.boot(1)
        self.memory(available=8 * GIB)
        self.pressure(0.0)

    @property
    def environ(self) -> dict[str, str]:
        return {VARIABLE: str(self.folder)}

    def boot(self, number: int) -> str:
        """The host was started again; its boot id."""
        boot = f"00000000-0000-4000-8000-{number:012d}"
        self._write("sys/kernel/random/boot_id", f"{boot}\n")
        return boot

    def memory(self, *, available: int, total: int = 16 * GIB, free: int | None = None) -> None:
        lines = {"MemTotal": total, "MemFree": available if free is None else free, "MemAvailable": available}
        self._write("meminfo", "".join(f"{name}: {size // 1024} kB\n" for name, size in lines.items()))

    def pressure(self, full: float, stalled_us: int = 0) -> None:
        line = "avg60=0.00 avg300=0.00"
        self._write(
            "pressure/memory",
            f"some avg10={full:.2f} {line} total={stalled_us}\nfull avg10={full:.2f} {line} total={stalled_us}\n",
        )

    def _write(self, name: str, text: str) -> None:
        file = self._proc / name
        temporary = file.with_name(f"{file.name}.new")
        temporary.write_text(text)
        temporary.replace(file)


@pytest.fixture
def host() -> Iterator[FakeHost]:
    folder = Path(tempfile.mkdtemp(prefix="or-host-"))
    yield FakeHost(folder)
    shutil.rmtree(folder)

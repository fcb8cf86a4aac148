"""The clocks of a process that runs, for a test to set: see `clock.c`."""

from __future__ import annotations

import mmap
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")


class Clocks:
    """Offsets on the clocks of each process that has `environ`."""

    def __init__(self, folder: Path) -> None:
        self._library = folder / "clock.so"
        command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(self._library), str(_SOURCE)]
        subprocess.run(command, check=True, timeout=60)
        self._file = folder / "offsets"
        self._file.write_bytes(bytes(16))

    @property
    def environ(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "CLOCK_OFFSETS": str(self._file)}

    def set(self, *, wall: float = 0.0, since_boot: float = 0.0) -> None:
        """From now on the wall's clock and the one since boot are so many seconds from the true ones."""
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 16) as mapped:
            mapped[:] = struct.pack("=qq", int(wall * 1e9), int(since_boot * 1e9))

    def sleep(self, seconds: float) -> None:
        """The host slept: the wall and the time since boot went on, the monotonic clock did not."""
        self.set(wall=seconds, since_boot=seconds)

"""How short of memory the system is: what kernels write, and what they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.pressure import MemoryPressure, read_pressure
from hosts.roots import VARIABLE, Roots

MEMINFO = b"MemTotal:       127098456 kB\nMemFree:         1000 kB\nMemAvailable:    8388608 kB\nBuffers: 1 kB\n"
PSI = b"some avg10=30.12 avg60=9.00 avg300=2.10 total=123456\nfull avg10=21.37 avg60=7.00 avg300=1.10 total=98765\n"


def tree(folder: Path, meminfo: bytes | None, psi: bytes | None) -> Roots:
    for name, content in (("meminfo", meminfo), ("pressure/memory", psi)):
        if content is not None:
            (folder / "proc" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "proc" / name).write_bytes(content)
    return Roots.under(folder)


@pytest.mark.parametrize(
    ("meminfo", "psi", "found"),
    [
        (MEMINFO, PSI, MemoryPressure(8388608 * 1024, 21.37, 98765)),
        (MEMINFO, None, MemoryPressure(8388608 * 1024, None, None)),
        (None, PSI, MemoryPressure(None, 21.37, 98765)),
        (None, None, MemoryPressure(None, None, None)),
        (b"", b"", MemoryPressure(None, None, None)),
        (b"MemTotal: 5 kB\n", b"some avg10=99.00 total=1\n", MemoryPressure(None, None, None)),
        (b"MemAvailable: -5 kB\n", b"full avg10=nan total=x\n", MemoryPressure(None, None, None)),
        (b"MemAvailable: much\n", b"full avg10= avg60=1 total=\n", MemoryPressure(None, None, None)),
        (b"\xff\xfe\0" * 9, b"full \xff=\xfe avg10=1e9\n", MemoryPressure(None, None, None)),
    ],
)
def test_a_reading(tmp_path: Path, meminfo: bytes | None, psi: bytes | None, found: MemoryPressure) -> None:
    assert read_pressure(tree(tmp_path, meminfo, psi)) == found


def test_this_machine_answers() -> None:
    found = read_pressure(Roots())
    assert found.available is not None
    assert found.available > 0


def test_another_root_is_taken_from_the_environment(tmp_path: Path) -> None:
    tree(tmp_path, MEMINFO, PSI)
    roots = Roots.from_environ({VARIABLE: str(tmp_path)})
    assert read_pressure(roots).full_avg10 == 21.37
    assert roots.libraries == Roots().libraries, "libraries are those of the process"
    assert Roots.from_environ({}) == Roots.from_environ({VARIABLE: ""}) == Roots()

"""Compiles the fake vendor libraries. Each variant is compiled once a session and loaded only by child processes."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

_HERE = Path(__file__).parent
_SYMBOL = re.compile(r"_libraries\['libamd_smi\.so'\]\.(\w+)")
_WRITTEN = re.compile(r"^(?:int|void) (amdsmi_\w+)\(", re.MULTILINE)


def nvml(folder: Path, *, old_driver: bool = False) -> Path:
    """`libnvidia-ml.so.1` in `folder`; the folder (for LD_LIBRARY_PATH)."""
    options = ["-DOLD_DRIVER"] if old_driver else []
    _compile(_HERE / "nvml.c", folder / "libnvidia-ml.so.1", [*options, "-Wl,-soname,libnvidia-ml.so.1"])
    return folder


def amdsmi(folder: Path, *, without: frozenset[str] = frozenset()) -> Path:
    """`libamd_smi.so` in `folder`, lacking some symbols of the real one; the folder."""
    written = set(_WRITTEN.findall((_HERE / "amdsmi.c").read_text()))
    stubs = sorted(amdsmi_symbols() - written - without)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stubs.inc").write_text("".join(f"int {name}(void) {{ return NOT_SUPPORTED; }}\n" for name in stubs))
    _compile(_HERE / "amdsmi.c", folder / "libamd_smi.so", [f"-I{folder}"])
    return folder


def amdsmi_symbols() -> set[str]:
    """What the installed Python binding looks up when it is imported."""
    spec = importlib.util.find_spec("amdsmi")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    wrapper = Path(next(iter(spec.submodule_search_locations))) / "amdsmi_wrapper.py"
    return set(_SYMBOL.findall(wrapper.read_text()))


def _compile(source: Path, target: Path, options: list[str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-O0", "-Wall", "-Werror", *options, "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr

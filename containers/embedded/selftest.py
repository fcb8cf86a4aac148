"""Whether this CPU can run the embedded engine at all.

The wheel's code uses AVX2, FMA, F16C and BMI2 without asking the CPU first; where one of them
is missing the process dies of SIGILL in the middle of its first computation (seen with emulated
Ivy Bridge, Sandy Bridge, Westmere and Opteron G5; Haswell and Skylake run). The kernel lists
what the CPU has, so this can be said in words instead.

This file is part of the image: it imports nothing but the standard library.
"""

from __future__ import annotations

from pathlib import Path

CPU_FEATURES = ("avx2", "fma", "f16c", "bmi2")
"""Names in the `flags` line of /proc/cpuinfo."""

CPUINFO = Path("/proc/cpuinfo")


def missing_features(cpuinfo: str) -> tuple[str, ...]:
    """Those of `CPU_FEATURES` that some processor in this text of /proc/cpuinfo does not have."""
    lines = [line.partition(":")[2].split() for line in cpuinfo.splitlines() if line.startswith("flags")]
    return tuple(name for name in CPU_FEATURES if not lines or any(name not in line for line in lines))


def complaint(cpuinfo: str | None = None) -> str | None:
    """What is wrong with this machine's CPU for the embedded engine, or None when it is good."""
    missing = missing_features(CPUINFO.read_text(encoding="ascii", errors="replace") if cpuinfo is None else cpuinfo)
    if not missing:
        return None
    return (
        f"the embedded engine needs a CPU with {', '.join(CPU_FEATURES)}; this one lacks {', '.join(missing)} "
        "(x86-64-v3, Haswell or later, has them all)"
    )

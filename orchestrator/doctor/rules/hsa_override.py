"""A variable that makes ROCm run another chip's code."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Fault, Severity
from orchestrator.doctor.machine import Machine, Setting

CODE = "hsa_override"
SEVERITY = Severity.WARNING
NEEDS = ("environment", "facts")
SOURCE = "ROCm 7 knows gfx1151 itself; 11.0.0 runs gfx1100 code on it (LocalAI#9229, 1bit-MONSTER#251)"


def check(machine: Machine) -> Iterator[Fault]:
    gpus = machine.gpus("amd")
    for setting in machine.environment:
        if setting.name != "HSA_OVERRIDE_GFX_VERSION" or not gpus:
            continue
        archs = sorted({gpu.arch for gpu in gpus if gpu.arch})
        other = bool(archs) and _arch(setting.value) not in archs
        yield Fault(
            f"HSA_OVERRIDE_GFX_VERSION={setting.value} is set in {setting.place}",
            {"place": setting.place, "value": setting.value, "gpus": archs},
            (_command(setting),),
            Severity.PROBLEM if other and setting.place != "this shell" else None,
        )


def _arch(value: str) -> str:
    """`11.5.1` as gfx1151."""
    parts = value.split(".")
    numbers = [int(part) for part in parts if part.isdigit()]
    return f"gfx{numbers[0]}{numbers[1]:x}{numbers[2]:x}" if len(numbers) == 3 == len(parts) else ""


def _command(setting: Setting) -> str:
    if setting.place.startswith("image "):
        return f"podman image inspect --format '{{{{.Config.Env}}}}' {setting.place.removeprefix('image ')}"
    if setting.place == "this shell":
        return f"unset {setting.name}"
    if setting.place.startswith("/"):
        return f"sed -i '/{setting.name}/d' {setting.place}"
    return f"systemctl edit {setting.place}"

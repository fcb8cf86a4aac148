"""What a host *is*: frozen values, from a probe or from a facts file.

Unknown is `None`, never 0, -1 or "N/A". Sizes are bytes. The JSON form is the
contract of `outrider probe --json` and of the shipped profiles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA = 1
QUARANTINED = "quarantined"
"""The detail of an accelerator that is left alone for now; its value says why."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something the probe could not find out, or found to be wrong. `device` is the GPU's key, if it is about one."""

    code: str
    vendor: str | None
    detail: str
    hint: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Cpu:
    """The host's processor. `threads` are what the scheduler offers this process."""

    model: str | None
    arch: str
    threads: int
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """System memory in bytes (MemTotal, MemAvailable)."""

    total: int
    available: int


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One GPU. `arch` is `sm_86`, `gfx1151`, ...; `pci` is its stable key on this host.

    With `unified` memory, `memory_total` is the pool that engines may draw on
    (not a firmware carve-out) and `memory_free` what is left of it.
    `cuda` is the newest CUDA the driver speaks, such as `13.0`.
    `devices` are what a container needs: CDI names or device nodes; `groups` the
    numeric gids that own those nodes.
    """

    vendor: str
    name: str | None
    arch: str | None
    pci: str
    uuid: str | None
    memory_total: int | None
    memory_free: int | None
    unified: bool
    index: int = 0
    driver: str | None = None
    cuda: str | None = None
    compute_units: int | None = None
    utilisation: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    devices: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    details: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Platform:
    """Versions and boot settings that decide whether a GPU works. Serial numbers are none of them.

    `kernel_parameters` are those of the kernel's command line that are about GPUs. The memory
    ceiling of an AMD APU is `ttm_pages_limit` (4 KiB pages, as the running module `ttm_module` has
    it) and was asked for by `ttm_pages_limit_boot`. `amdgpu_version` is known only of an
    out-of-tree driver; `rocm` only where the host has ROCm, which no image needs.
    """

    product: str | None = None
    bios_vendor: str | None = None
    bios_version: str | None = None
    bios_date: str | None = None
    kernel_parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ttm_module: str | None = None
    ttm_pages_limit: int | None = None
    ttm_page_pool_size: int | None = None
    ttm_pages_limit_boot: int | None = None
    amdgpu_version: str | None = None
    rocm: str | None = None
    rocm_path: str | None = None
    linux_firmware: str | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Everything the planner may know about a host. Facts files of older versions have no `platform`."""

    host: str
    os: str | None
    kernel: str | None
    cpu: Cpu
    memory: Memory
    accelerators: tuple[Accelerator, ...] = ()
    problems: tuple[Problem, ...] = ()
    platform: Platform = Platform()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form (see `from_dict`)."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HostFacts:
        """Read the JSON form; raises `FactsError` naming the key that is wrong."""
        try:
            return cls(
                host=_typed(data, "host", str),
                os=data.get("os"),
                kernel=data.get("kernel"),
                cpu=Cpu(**{**_section(data, "cpu"), "flags": tuple(data["cpu"].get("flags", ()))}),
                memory=Memory(**_section(data, "memory")),
                accelerators=tuple(_accelerator(i, a) for i, a in enumerate(data.get("accelerators", ()))),
                problems=tuple(Problem(**p) for p in data.get("problems", ())),
                platform=Platform(**_section(data, "platform")) if data.get("platform") else Platform(),
            )
        except FactsError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FactsError(f"facts are not readable: {error}") from error


class FactsError(ValueError):
    """A facts file that does not say what it must."""


def _typed(data: Mapping[str, Any], key: str, kind: type) -> Any:
    value = data.get(key)
    if not isinstance(value, kind):
        raise FactsError(f"{key}: expected {kind.__name__}, found {value!r}")
    return value


def _section(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    return dict(_typed(data, key, Mapping))


def _accelerator(position: int, data: Mapping[str, Any]) -> Accelerator:
    try:
        fields = {**data, "devices": tuple(data.get("devices", ())), "groups": tuple(data.get("groups", ()))}
        return Accelerator(**fields)
    except TypeError as error:
        raise FactsError(f"accelerators[{position}]: {error}") from error

"""CDI specifications: which names a container engine resolves to a GPU's nodes and libraries.

Specs are JSON or YAML. Of the YAML only what `nvidia-ctk cdi generate` and `amd-ctk`
write is understood, in block style: the top-level `kind` and `cdiVersion`, and the
`name` of each item of the top-level list `devices`. That needs no YAML library.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from hosts.reading import children, read_text
from hosts.roots import Roots

NVIDIA_KIND = "nvidia.com/gpu"
Signature = tuple[tuple[str, int, int, int], ...]
_LIMIT = 4 * 1024 * 1024
_TOP = re.compile(r"""(kind|cdiVersion|devices):\s*(?:["']?([^"'#]*?)["']?)\s*$""")
_NAME = re.compile(r"""name:\s*["']?([^"'\s]+)["']?\s*$""")


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """One spec file: its kind (`nvidia.com/gpu`), version and the names of its devices."""

    path: str
    kind: str
    version: str | None
    names: tuple[str, ...]


def read_specs(roots: Roots) -> tuple[CdiSpec, ...]:
    """Every readable spec. The one in the run folder comes first, for it wins over /etc/cdi."""
    paths = [path for folder in _folders(roots) for path in children(folder)]
    specs = (_read(path) for path in paths if path.suffix in {".json", ".yaml", ".yml"})
    return tuple(spec for spec in specs if spec is not None)


def signature(roots: Roots) -> Signature:
    """Which files there are, and their state: differs when one came, went or was written anew. Reads none."""
    found = []
    for folder in _folders(roots):
        for path in children(folder):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((str(path), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _folders(roots: Roots) -> tuple[Path, Path]:
    return roots.run / "cdi", roots.etc / "cdi"


def device_name(specs: tuple[CdiSpec, ...], kind: str, names: tuple[str, ...]) -> tuple[str, CdiSpec] | None:
    """The first of `names` that a spec of this kind has, as `kind=name`, and that spec."""
    for name in names:
        for spec in specs:
            if spec.kind == kind and name in spec.names:
                return f"{kind}={name}", spec
    return None


def _read(path: Path) -> CdiSpec | None:
    text = read_text(path, _LIMIT)
    if text is None:
        return None
    kind, version, names = _from_json(text) if path.suffix == ".json" else _from_yaml(text)
    return CdiSpec(str(path), kind, version, names) if kind else None


def _from_json(text: str) -> tuple[str | None, str | None, tuple[str, ...]]:
    try:
        data = json.loads(text)
        kind, version, devices = data["kind"], data.get("cdiVersion"), data["devices"]
        names = tuple(str(device["name"]) for device in devices)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, None, ()
    return str(kind), None if version is None else str(version), names


def _from_yaml(text: str) -> tuple[str | None, str | None, tuple[str, ...]]:
    top: dict[str, str] = {}
    names: list[str] = []
    in_devices = False
    dash: int | None = None
    for line in text.splitlines():
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip(" "))
        if indent == 0 and not bare.startswith("- "):
            match = _TOP.match(bare)
            in_devices, dash = match is not None and match.group(1) == "devices", None
            if match is not None:
                top.setdefault(match.group(1), match.group(2) or "")
            continue
        if not in_devices:
            continue
        if dash is None and bare.startswith("- "):
            dash = indent
        key = bare[2:] if indent == dash and bare.startswith("- ") else bare if indent - 2 == dash else ""
        if name := _NAME.match(key.strip()):
            names.append(name.group(1))
    return top.get("kind") or None, top.get("cdiVersion") or None, tuple(names)

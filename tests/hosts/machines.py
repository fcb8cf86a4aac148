"""Real machines as data (`machines/*.json`): `given` is what the fixture says, `added` what a whole tree needs besides,
and `why` says where the additions are from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.hosts.trees import Drm, Kfd, Tree, write

FOLDER = Path(__file__).with_name("machines")


def load(name: str) -> dict[str, Any]:
    """Given and added, as one."""
    data = json.loads((FOLDER / f"{name}.json").read_text())
    assert data["about"]
    assert data["why"]
    return _merged(data["given"], data["added"])


def _merged(given: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Both; a value that is given is never overruled."""
    found = dict(given)
    for key, value in added.items():
        if isinstance(value, dict) and isinstance(found.get(key), dict):
            found[key] = _merged(found[key], value)
        else:
            assert key not in found, key
            found[key] = value
    return found


def build(tree: Tree, name: str) -> Tree:
    """The machine's tree, with its device nodes."""
    spec = load(name)
    tree.machine(**spec.get("machine", {}))
    kfd = dict(spec["kfd"])
    kfd["used"] = {int(pid): size for pid, size in kfd.get("used", {}).items()}
    card = Drm(**spec["drm"])
    tree.pci(card.slot or "", 0x1002, int(card.device, 16), kind=0x038000, driver="amdgpu")
    tree.kfd(Kfd(**kfd)).drm(card).nodes(card.render_minor)
    if "pages_limit" in spec:
        write(tree.base / "sys/module/ttm/parameters/pages_limit", f"{spec['pages_limit']}\n")
        write(tree.base / "proc/cmdline", f"quiet ttm.pages_limit={spec['pages_limit']}\n")
    if "cmdline" in spec:
        write(tree.base / "proc/cmdline", f"quiet {spec['cmdline']}\n")
    if "vbios" in spec:
        write(tree.base / f"sys/class/drm/{card.card}/device/vbios_version", f"{spec['vbios']}\n")
    if "rocm" in spec:
        write(tree.base / "opt/rocm/.info/version", f"{spec['rocm']}-1\n")
    return tree


def amd_smi(folder: Path, name: str, *, wrapped: bool = False, noise: str = "") -> Path:
    """A command `amd-smi` that answers as the machine's did; `wrapped` as newer releases do. Its folder."""
    spec = load(name)["amd_smi"]
    script = ["#!/bin/sh"]
    for words in ("static", "list"):
        answer = [spec[words]] if words in spec else []
        text = json.dumps({"gpu_data": answer} if wrapped else answer)
        write(folder / f"{words}.json", f"{noise}{text}\n")
        script.append(f'[ "$1 $2" = "{words} --json" ] && exec cat "{folder}/{words}.json"')
    script.append("exit 1")
    write(folder / "amd-smi", "\n".join(script) + "\n")
    (folder / "amd-smi").chmod(0o755)
    return folder

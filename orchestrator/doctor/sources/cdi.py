"""CDI folders, with the files that no container engine can use among them: those explain most."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hosts.reading import children, read_text
from orchestrator.doctor.machine import Cdi, CdiFile
from orchestrator.doctor.sources.look import Look

FOLDERS = ("/etc/cdi", "/var/run/cdi")
_LIMIT = 4 * 1024 * 1024
_MOST_FILES = 200
_CONF_FILES = ("/usr/share/containers/containers.conf", "/etc/containers/containers.conf")
_SPEC_DIRS = re.compile(r"^\s*cdi_spec_dirs\s*=\s*\[([^\]]*)\]", re.MULTILINE)
_TOP = re.compile(r"""^(kind|cdiVersion):\s*["']?([^"'#\s]+)["']?\s*$""")
_PATH = re.compile(r"""^(?:- )?(hostPath|path):\s*["']?(/[^"'#]*?)["']?\s*$""")
_NAME = re.compile(r"""^(?:- )?name:\s*["']?([^"'\s]+)["']?\s*$""")


def cdi(look: Look) -> Cdi:
    """Every file of the folders that Podman reads."""
    configured = _configured(look)
    files = [
        _file(look, folder, path)
        for folder in dict.fromkeys((*FOLDERS, *(configured or ())))
        for path in list(children(look.at(folder)))[:_MOST_FILES]
        if path.suffix in {".json", ".yaml", ".yml"}
    ]
    return Cdi(tuple(files), configured)


def _configured(look: Look) -> tuple[str, ...] | None:
    found = None
    files = [*_CONF_FILES, *(f"/etc/containers/containers.conf.d/{p.name}" for p in _extra(look))]
    for name in files:
        match = _SPEC_DIRS.search(look.text(name) or "")
        if match:
            found = tuple(re.findall(r'["\'](/[^"\']*)["\']', match[1]))
    return found


def _extra(look: Look) -> Iterator[Path]:
    return (p for p in children(look.at("/etc/containers/containers.conf.d")) if p.suffix == ".conf")


def _file(look: Look, folder: str, path: Path) -> CdiFile:
    name = f"{folder}/{path.name}"
    try:
        info = path.stat()
    except OSError as error:
        return CdiFile(name, folder, broken=f"it cannot be read: {error.strerror}")
    mode = info.st_mode & 0o777
    text = read_text(path, _LIMIT)
    if text is None:
        return CdiFile(name, folder, mode=mode, broken="it is empty, or cannot be read")
    if info.st_size > _LIMIT:
        return CdiFile(name, folder, mode=mode, broken=f"it has {info.st_size} bytes, more than any specification")
    return _parsed(look, CdiFile(name, folder, mode=mode), text, is_json=path.suffix == ".json" or text[0] == "{")


def _parsed(look: Look, file: CdiFile, text: str, *, is_json: bool) -> CdiFile:
    try:
        kind, version, names, paths, gids = _from_json(text) if is_json else _from_yaml(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return CdiFile(file.path, file.folder, mode=file.mode, broken=f"it is no CDI specification: {error}")
    lacks = [what for what, value in (("kind", kind), ("cdiVersion", version), ("devices", names)) if not value]
    paths = tuple(dict.fromkeys(paths))
    return CdiFile(
        path=file.path,
        folder=file.folder,
        kind=kind,
        version=version,
        names=tuple(names),
        paths=paths,
        missing=tuple(p for p in paths if not _exists(look.at(p))),
        mode=file.mode,
        gids=gids,
        broken=f"it has no {', no '.join(lacks)}" if lacks else None,
    )


def _exists(path: Path) -> bool:
    """Whether there is something, a link into nowhere included: it is not ours to follow out of the tree."""
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True


Parts = tuple[str | None, str | None, list[str], tuple[str, ...], bool]


def _from_json(text: str) -> Parts:
    data = json.loads(text)
    devices = data.get("devices") or []
    edits = [data.get("containerEdits") or {}, *(device.get("containerEdits") or {} for device in devices)]
    paths: list[str] = []
    for edit in edits:
        paths += [str(n.get("hostPath") or n["path"]) for n in edit.get("deviceNodes") or []]
        paths += [str(m["hostPath"]) for m in edit.get("mounts") or []]
        paths += [str(h["path"]) for h in edit.get("hooks") or []]
    version: Any = data.get("cdiVersion")
    names = [str(device["name"]) for device in devices]
    gids = any(edit.get("additionalGids") for edit in edits)
    return data.get("kind"), None if version is None else str(version), names, tuple(paths), gids


def _from_yaml(text: str) -> Parts:
    """Block style, as `nvidia-ctk` and `amd-ctk` write it."""
    if "\t" in text.partition("devices")[0]:
        raise ValueError("tabs are no indentation in YAML")
    top: dict[str, str] = {}
    names: list[str] = []
    paths: list[str] = []
    section, dash = "", None
    item: str | None = None  # the key of a list item that gave its path: `hostPath` counts, `path` only without it
    for line in text.splitlines():
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        if bare and indent == 0 and bare[0] not in "-#":
            section, dash = bare.partition(":")[0], None
            if match := _TOP.match(bare):
                top.setdefault(match[1], match[2])
        if bare.startswith("- "):
            item = None
            dash = indent if dash is None else dash
        own = indent == dash if bare.startswith("- ") else dash is not None and indent == dash + 2
        if section == "devices" and own and (match := _NAME.match(bare)):
            names.append(match[1])
        if match := _PATH.match(bare):
            if item is None:
                paths.append(match[2])
            elif match[1] == "hostPath":
                paths[-1] = match[2]
            item = match[1]
    return top.get("kind"), top.get("cdiVersion"), names, tuple(paths), "additionalGids:" in text

"""What the image's file system holds: the system's Python, the engine, and the libraries both need.

A file system is a mapping from absolute path to entry, built in memory and written by
`containers.embedded.archive` in the order of its names, so that equal inputs make equal bytes.
Files keep the paths they have on this machine: then Python finds its standard library and the
loader finds its libraries without being told where they went.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from containers.embedded.errors import ImageBuildFailed
from containers.spec import ENGINE_UID

SYSTEM_PYTHON = Path("/usr/bin/python3")
COMMAND_LIMIT = 60.0
"""Seconds for ldd, strip and the interpreter, which take well under two."""

_LEFT_OUT_FOLDERS = frozenset(
    {"__pycache__", "test", "tests", "idlelib", "lib2to3", "ensurepip", "pydoc_data", "dist-packages", "site-packages"}
)
_LEFT_OUT_FILES = re.compile(r"sitecustomize\.py|_test.*\.so|_xx.*\.so|xx.*\.so|.*\.pyc|.*\.a")


@dataclass(frozen=True, slots=True)
class Folder:
    mode: int = 0o755


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True, slots=True)
class Text:
    """A file that we write ourselves."""

    content: bytes
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Copy:
    """A file of this machine, read when the archive is written."""

    source: Path
    mode: int = 0o644


Entry = Folder | Link | Text | Copy
Tree = dict[str, Entry]

USERS = (
    f"root:x:0:0:root:/:/usr/sbin/nologin\nengine:x:{ENGINE_UID}:{ENGINE_UID}:engine:/tmp:/usr/sbin/nologin\n"
).encode()
GROUPS = f"root:x:0:\nengine:x:{ENGINE_UID}:\n".encode()


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that can move into an image: its real file, its prefix and its standard library."""

    executable: Path
    version: str
    library: Path


def skeleton() -> Tree:
    """Folders, users and groups that any image of ours has."""
    tree: Tree = {name: Folder() for name in ("/app", "/dev", "/etc", "/models", "/proc", "/run", "/sys")}
    tree["/tmp"] = Folder(0o1777)  # noqa: S108 - the image's, not this machine's
    tree["/etc/passwd"] = Text(USERS)
    tree["/etc/group"] = Text(GROUPS)
    return tree


def run(command: list[str]) -> str:
    """The command's output. Raises `ImageBuildFailed` with its last words."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise ImageBuildFailed(
            f"{command[0]} is not installed", hint="python3, libc-bin (ldd) and binutils (strip) make the image"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ImageBuildFailed(f"{command[0]} did not end within {COMMAND_LIMIT:.0f} s") from error
    except subprocess.CalledProcessError as error:
        words = (error.stderr or error.stdout or "").strip().splitlines()
        raise ImageBuildFailed(f"{command[0]} ended with {error.returncode}: {' / '.join(words[-3:])}") from error
    return done.stdout


def interpreter(python: Path = SYSTEM_PYTHON) -> Interpreter:
    """What this Python consists of. Raises `ImageBuildFailed` for a missing one or a virtual environment."""
    script = (
        "import json, sys, sysconfig; "
        "print(json.dumps([sys.prefix == sys.base_prefix, '%d.%d' % sys.version_info[:2], "
        "sysconfig.get_path('stdlib')]))"
    )
    whole, version, library = json.loads(run([str(python), "-sE", "-c", script]))
    if not whole:
        raise ImageBuildFailed(
            f"{python} is a virtual environment, which cannot move into an image", hint="name the system's Python"
        )
    return Interpreter(python.resolve(), version, Path(library))


def standard_library(python: Interpreter) -> Tree:
    """The standard library without tests, build files and what needs a display."""
    tree: Tree = {}
    for folder, below, files in os.walk(python.library):
        below[:] = sorted(name for name in below if name not in _LEFT_OUT_FOLDERS and not name.startswith("config-"))
        for name in files:
            path = Path(folder, name)
            # links into /etc and to debuggers' helpers need not lead anywhere
            if not _LEFT_OUT_FILES.fullmatch(name) and path.is_file():
                tree[str(path)] = Copy(path)
    return tree


def libraries(binaries: Iterable[Path]) -> Tree:
    """The shared libraries that ldd names for these files, the loader included, under the names it gives.

    Raises `ImageBuildFailed` when one is missing on this machine.
    """
    tree: Tree = {}
    for line in run(["ldd", *map(str, sorted(binaries))]).splitlines():
        if "=> not found" in line:
            raise ImageBuildFailed(
                f"a library is missing on this machine: {line.strip()}",
                hint="install the package that has it; libgomp.so.1 is in libgomp1",
            )
        match = re.fullmatch(r"\s+(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)", line)
        if match is None:
            continue
        tree[match[1]] = Copy(Path(match[1]).resolve(), 0o755)
    return tree


def python_tree(python: Interpreter) -> Tree:
    """The interpreter, its standard library, and their shared libraries."""
    tree = standard_library(python)
    tree[str(python.executable)] = Copy(python.executable, 0o755)
    for name in {SYSTEM_PYTHON, SYSTEM_PYTHON.with_name(f"python{python.version}")} - {python.executable}:
        tree[str(name)] = Link(str(python.executable))
    return tree


def shared_objects(tree: Tree) -> list[Path]:
    """The files in the tree that the loader will look at."""
    return [
        entry.source
        for name, entry in tree.items()
        if isinstance(entry, Copy) and (re.search(r"\.so(\.\d+)*$", name) or entry.mode == 0o755)
    ]


def with_parents(tree: Tree) -> Tree:
    """The tree with a folder entry for each folder that a path goes through, in order of names."""
    full = dict(tree)
    for name in tree:
        for parent in Path(name).parents:
            if str(parent) != "/":
                full.setdefault(str(parent), Folder())
    return {name: full[name] for name in sorted(full)}


def digest(tree: Tree, *extra: str) -> str:
    """A digest of every name, mode and content in the tree, and of the extra words."""
    whole = hashlib.sha256()
    for name, entry in with_parents(tree).items():
        match entry:
            case Folder(mode):
                what = f"folder {mode:o}"
            case Link(target):
                what = f"link {target}"
            case Text(content, mode):
                what = f"file {mode:o} {hashlib.sha256(content).hexdigest()}"
            case Copy(source, mode):
                with source.open("rb") as file:
                    what = f"file {mode:o} {hashlib.file_digest(file, 'sha256').hexdigest()}"
            case _:
                assert_never(entry)
        whole.update(f"{name}\0{what}\n".encode())
    for word in extra:
        whole.update(f"\0{word}\n".encode())
    return whole.hexdigest()


def strip_version() -> str | None:
    """The first line of `strip --version`, or None where there is no strip."""
    if shutil.which("strip") is None:
        return None
    return run(["strip", "--version"]).splitlines()[0]

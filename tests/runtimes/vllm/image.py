"""An image of vLLM for CPUs, made of this machine's Python and the virtual environment of `venv`: no registry.

About 2 GB in Podman's storage, made in a minute and kept there from run to run. Its entrypoint is `vllm serve`, as
that of the official images is.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tarfile
from pathlib import Path
from typing import IO

from containers.embedded import rootfs
from containers.embedded.rootfs import Copy, Folder, Link, Text, Tree, with_parents
from tests.runtimes.vllm.venv import VERSION, Venv

FORMAT = "2"
"""Raise it when the way of building changes the result."""
PACKAGES = "/opt/vllm"
_ENTRYPOINT = '["/usr/bin/python3", "-m", "vllm.entrypoints.cli.main", "serve"]'
_LEFT_OUT = re.compile(r"^(pip|wheel|torch/(include|share|test)|torch/testing/_internal/(generated|opinfo))(/|$)")
_PROGRAMS = ("/bin/sh", "/usr/bin/lscpu")
"""vLLM asks lscpu, by a shell, which cores and memory nodes there are, and dies where it cannot."""
_MAKE_S = 900


def name(venv: Venv) -> str:
    """Repository and tag: of the wheel, of Python, and of the way of building."""
    what = f"{FORMAT} {venv.wheel} {rootfs.interpreter().version}"
    return f"localhost/outrider-test-vllm:{VERSION}-{hashlib.sha256(what.encode()).hexdigest()[:12]}"


def ensure(venv: Venv) -> str:
    """The image's name, in Podman's storage."""
    wanted = name(venv)
    if subprocess.run(["podman", "image", "exists", wanted], check=False, timeout=60).returncode == 0:
        return wanted
    changes = [f"ENTRYPOINT {_ENTRYPOINT}", f"ENV PYTHONPATH={PACKAGES}", "ENV PATH=/usr/bin:/bin", "ENV LANG=C.UTF-8"]
    words = ["podman", "import", "--quiet", *(part for change in changes for part in ("--change", change)), "-", wanted]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as making:
        assert making.stdin is not None
        assert making.stdout is not None
        _write(venv, making.stdin)
        making.stdin.close()
        said = making.stdout.read().decode(errors="replace")
        if making.wait(_MAKE_S):
            raise RuntimeError(f"podman import: {said[-1000:]}")
    return wanted


def _write(venv: Venv, sink: IO[bytes]) -> None:
    """The root file system as a tar stream. Files keep their times: byte code is good for one time of its source."""
    tree = rootfs.skeleton() | rootfs.python_tree(rootfs.interpreter())
    tree |= {inside: Copy(Path(inside).resolve(), 0o755) for inside in _PROGRAMS}
    objects = [
        path for path in venv.packages.rglob("*.so*") if path.is_file() and not _LEFT_OUT.match(_below(venv, path))
    ]
    tree |= _libraries([*rootfs.shared_objects(tree), *objects], venv.packages)
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for inside, entry in with_parents(tree).items():
            _add(tar, inside.removeprefix("/"), entry)
        tar.add(venv.packages, PACKAGES.removeprefix("/"), filter=_kept)


def _below(venv: Venv, path: Path) -> str:
    return str(path.relative_to(venv.packages))


def _kept(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if _LEFT_OUT.match(info.name.removeprefix(f"{PACKAGES.removeprefix('/')}/")):
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _libraries(binaries: list[Path], packages: Path) -> Tree:
    """The machine's libraries that these need, and the packages' own ones do not bring."""
    tree: Tree = {}
    run = subprocess.run(["ldd", *map(str, sorted(binaries))], capture_output=True, text=True, check=False, timeout=300)
    for line in run.stdout.splitlines():
        match = re.fullmatch(r"\s+(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)", line)
        if match is not None and not match[1].startswith(str(packages)):
            tree[match[1]] = Copy(Path(match[1]).resolve(), 0o755)
    return tree


def _add(tar: tarfile.TarFile, name: str, entry: Folder | Link | Text | Copy) -> None:
    info = tarfile.TarInfo(name)
    match entry:
        case Folder(mode):
            info.type, info.mode = tarfile.DIRTYPE, mode
            tar.addfile(info)
        case Link(target):
            info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, target
            tar.addfile(info)
        case Text(content, mode):
            info.mode, info.size = mode, len(content)
            tar.addfile(info, io.BytesIO(content))
        case Copy(source, mode):
            info.mode, info.size = mode, source.stat().st_size
            with source.open("rb") as file:
                tar.addfile(info, file)

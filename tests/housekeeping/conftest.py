"""Small file systems, and a Podman that is nobody else's."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack.stack import accepts
from tests.waiting import until_sync


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.fixture(scope="module")
def own_podman() -> Iterator[str]:
    """The socket of a Podman with storage and locks of its own: what is pruned there is nobody else's."""
    with tempfile.TemporaryDirectory(prefix="or-p-") as name:
        folder = Path(name)
        conf = folder / "containers.conf"
        (folder / "pulls").mkdir()
        # without locks of its own it would clear those of the machine's Podman
        conf.write_text(f'[engine]\nlock_type = "file"\nimage_copy_tmp_dir = "{folder}/pulls"\n')
        socket = folder / "podman.sock"
        places = [f"--{what}={folder / what}" for what in ("root", "runroot", "tmpdir")]
        service = subprocess.Popen(
            ["podman", *places, "system", "service", "--time=0", f"unix://{socket}"],
            env={**os.environ, "CONTAINERS_CONF": str(conf)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until_sync(lambda: accepts(socket), 20, "a Podman of its own")
            yield str(socket)
        finally:
            remote(str(socket), "rm", "--all", "--force", "--time=0")
            service.terminate()
            service.wait(20)
            subprocess.run(["umount", "--recursive", "--quiet", folder / "root" / "overlay"], check=False)


def remote(socket: str, *words: str) -> str:
    """What a Podman says."""
    command = ["podman", "--url", f"unix://{socket}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

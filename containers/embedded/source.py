"""llama-server built from llama.cpp's source: for CPUs without a wheel, and for load with DFlash.

The wheel's build (11549) aborts under load with DFlash on three or more slots; build 11434 from
source ran clean with four. The build takes minutes (8.5 with two jobs, 13 with one), so the
binary is kept under a digest of the source tree and the flags.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from containers.embedded import image, rootfs
from containers.embedded.errors import ImageBuildFailed
from containers.embedded.image import Progress
from containers.embedded.rootfs import Copy

FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=OFF",  # not for this machine's CPU alone
    "-DGGML_OPENMP=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # else the build wants to download it
    "-DLLAMA_OPENSSL=OFF",
)
TOOLS = ("cmake", "ninja", "cc", "c++", "nice")
BUILD_LIMIT = 7200.0
"""Seconds; one job on a busy machine takes half an hour."""
_TAIL = 15


def tree_digest(source_tree: Path, flags: Sequence[str] = FLAGS) -> str:
    """A digest of the flags and of every file's name and content, version control left out."""
    whole = hashlib.sha256("\n".join(flags).encode())
    for folder, below, files in os.walk(source_tree):
        below[:] = sorted(name for name in below if name != ".git")
        for name in sorted(files):
            path = Path(folder, name)
            if path.is_file():
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
                whole.update(f"{path.relative_to(source_tree)}\0{content}\n".encode())
    return whole.hexdigest()


def build_binary(
    source_tree: Path,
    cache: Path,
    *,
    build_number: int | None = None,
    jobs: int = 1,
    niceness: int = 19,
    limit: float = BUILD_LIMIT,
    progress: Progress | None = None,
) -> Path:
    """The llama-server binary of a llama.cpp source tree, built unless `cache` has it.

    `build_number` is what the binary calls itself: a source package does not know its own. A
    build that was cut short goes on where it stopped. Needs cmake, ninja and a C++ compiler;
    raises `ImageBuildFailed` with the build's last lines.
    """
    flags = [*FLAGS, *([] if build_number is None else [f"-DLLAMA_BUILD_NUMBER={build_number}"])]
    if not (source_tree / "CMakeLists.txt").is_file() or not (source_tree / "tools" / "server").is_dir():
        raise ImageBuildFailed(
            f"{source_tree} is not a source tree of llama.cpp",
            hint="name the folder that holds its CMakeLists.txt and tools/server",
        )
    key = tree_digest(source_tree, flags)[:16]
    binary = cache / f"llama-server-{key}"
    if binary.is_file():
        return binary
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise ImageBuildFailed(
            f"building from source needs {', '.join(missing)}", hint="install them, or use the wheel"
        )
    folder = cache / f"build-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    nice = ["nice", "-n", str(niceness)]
    configure = ["cmake", "-G", "Ninja", "-S", str(source_tree.absolute()), "-B", str(folder), *flags]
    _run([*nice, *configure], limit, progress)
    _run([*nice, "cmake", "--build", str(folder), "--target", "llama-server", "-j", str(jobs)], limit, progress)
    found = folder / "bin" / "llama-server"
    if not found.is_file():
        raise ImageBuildFailed(f"the build left no {found}")
    scratch = binary.with_suffix(".part")
    shutil.copy2(found, scratch)
    scratch.replace(binary)
    shutil.rmtree(folder)
    return binary


def binary_recipe(binary: Path) -> image.Recipe:
    """The recipe of an image with this llama-server and the libraries that it needs."""
    tree = rootfs.skeleton() | rootfs.libraries([binary])
    tree[image.ENTRYPOINT] = Copy(binary, 0o755)
    return image.recipe("llama-cpu-source", tree, strip=(image.ENTRYPOINT,))


def _run(command: list[str], limit: float, progress: Progress | None) -> None:
    """Run a long command and pass on its lines; past the limit its whole process group is ended."""
    tail: deque[str] = deque(maxlen=_TAIL)
    late = threading.Event()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:

        def end() -> None:
            late.set()
            _end_group(process.pid)

        timer = threading.Timer(limit, end)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                tail.append(line.rstrip())
                if progress is not None:
                    progress(line.rstrip())
            process.wait()
        except BaseException:
            _end_group(process.pid)
            raise
        finally:
            timer.cancel()
    if late.is_set():
        raise ImageBuildFailed(f"{command[3]} did not end within {limit:.0f} s")
    if process.returncode != 0:
        raise ImageBuildFailed(f"{command[3]} ended with {process.returncode}: " + " / ".join(tail))


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)

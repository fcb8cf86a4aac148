"""Fixtures for tests with a real engine: its wheel, its image, and the models.

`test_models` is the folder of generated models, new for each session; `heavy_models` that of
the big ones. `xllamacpp_wheel` is the embedded engine's wheel and `xllamacpp_path` the same
unpacked, for PYTHONPATH. `embedded_image` is the id of the engine's image in Podman's storage,
which stays there from session to session.

What is fetched is kept in $OUTRIDER_TEST_CACHE, by default in `.cache/tests` of the repository.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers.embedded import image, wheel
from containers.podman import Podman
from tests.models import generate
from tests.podman_fixture import run_apart

CACHE = Path(__file__).parents[1] / ".cache" / "tests"


@pytest.fixture(scope="session")
def test_cache() -> Path:
    """The folder that outlives the session."""
    folder = Path(os.environ.get("OUTRIDER_TEST_CACHE") or CACHE)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _models(factory: pytest.TempPathFactory, names: dict[str, object]) -> Path:
    folder = factory.mktemp("models")
    generate.generate(folder, names)
    folder.chmod(0o755)  # engines in containers are another user
    return folder


@pytest.fixture(scope="session")
def test_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all models of `tests.models.generate.MODELS`; names are constants there."""
    return _models(tmp_path_factory, {**generate.MODELS})


@pytest.fixture(scope="session")
def heavy_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the models of `tests.models.generate.HEAVY`, 230 MB."""
    return _models(tmp_path_factory, {**generate.HEAVY})


@pytest.fixture(scope="session")
def xllamacpp_wheel(test_cache: Path) -> Path:
    """The pinned wheel file."""
    return wheel.fetch(test_cache).path


@pytest.fixture(scope="session")
def xllamacpp_path(xllamacpp_wheel: Path, test_cache: Path) -> Path:
    """The wheel unpacked: put it on PYTHONPATH."""
    return wheel.unpack(wheel.given(xllamacpp_wheel), test_cache)


@pytest.fixture(scope="session")
def embedded_image(podman_socket: str, xllamacpp_wheel: Path, test_cache: Path) -> str:
    """The id of the embedded engine's image, in Podman's storage."""

    async def ensure() -> str:
        podman = Podman(podman_socket)
        try:
            return (await image.ensure_image(podman, test_cache, wheel=xllamacpp_wheel)).id
        finally:
            await podman.close()

    return run_apart(ensure())


GPU_WORDS = """#!/usr/bin/python3 -sEB
import sys

from containers.embedded.launcher import main

words = sys.argv[1:]
for name in ("--device", "--split-mode", "--fit"):
    while name in words:
        at = words.index(name)
        del words[at : at + 2]
sys.exit(main(words))
"""


@pytest.fixture(scope="session")
def gpu_stand_in(embedded_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The id of an image that stands for one with a GPU's engine: the embedded engine, which passes over the words
    that name GPUs."""
    yield from _another_server(embedded_image, tmp_path_factory.mktemp("gpu-image"), GPU_WORDS)


@pytest.fixture(scope="session")
def fake_engine_image(embedded_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The id of an image whose server is `tests.fakes.engine`: it does as the script in its model's folder says."""
    source = (Path(__file__).parent / "fakes" / "engine.py").read_text()
    yield from _another_server(embedded_image, tmp_path_factory.mktemp("fake-image"), f"{FAKE_WORDS}{source}")


FAKE_WORDS = "#!/usr/bin/python3 -sEB\n"


def _another_server(base: str, folder: Path, program: str) -> Iterator[str]:
    """The id of an image like `base` with another program in the place of its server, while it is needed."""
    (folder / "llama-server").write_text(program)
    (folder / "llama-server").chmod(0o755)
    (folder / "Containerfile").write_text(f"FROM {base}\nCOPY llama-server /app/llama-server\n")
    made = subprocess.run(
        ["podman", "build", "--quiet", "--layers=false", "--network=none", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout.strip()
    image_id = made.splitlines()[-1].removeprefix("sha256:")
    yield f"sha256:{image_id}"
    subprocess.run(["podman", "rmi", "-f", image_id], capture_output=True, timeout=60, check=False)

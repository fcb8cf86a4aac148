"""Fixtures of the hosts tests: the fake vendor libraries (compiled once) and an empty tree."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakelibs import build
from tests.hosts.trees import Tree

Environ = Callable[..., dict[str, str]]
GONE = frozenset({"amdsmi_gpu_driver_reload", "amdsmi_set_gpu_clk_range"})  # ROCm 10 dropped both


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fake NVML with every symbol we use."""
    return build.nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """... without the symbols that old drivers lack."""
    return build.nvml(tmp_path_factory.mktemp("old-nvml"), old_driver=True)


@pytest.fixture(scope="session")
def amdsmi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fake libamd_smi.so that the real binding can be imported with."""
    return build.amdsmi(tmp_path_factory.mktemp("amdsmi"))


@pytest.fixture(scope="session")
def new_rocm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """... of a ROCm release that dropped functions which the binding wants."""
    return build.amdsmi(tmp_path_factory.mktemp("new-rocm"), without=GONE)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A machine with nothing in it."""
    return Tree(tmp_path / "root")


@pytest.fixture
def environ(tmp_path: Path) -> Environ:
    """Makes a child's environment: library folders, and settings of the fakes. No ROCm of this machine is seen."""

    def make(*libraries: Path, **settings: object) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "ROCM_PATH": str(tmp_path / "no-rocm"),
            "LD_LIBRARY_PATH": ":".join(str(folder) for folder in libraries),
            **{name: str(value) for name, value in settings.items()},
        }

    return make

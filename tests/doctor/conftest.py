"""Fixtures of the doctor's tests: clean machines, each probed once a session and copied for each test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.cli.main import main
from hosts.facts import HostFacts
from hosts.probe import probe
from tests.doctor import boxes
from tests.doctor.boxes import Box
from tests.fakelibs import build

Make = Callable[[str], Box]


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str


Outrider = Callable[..., Said]


@pytest.fixture
def outrider(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Outrider:
    """Runs a command in this process, on this machine, with a state folder that does not exist."""

    def run(*words: str) -> Said:
        capsys.readouterr()
        code = main([*words, "--state-dir", str(tmp_path / "state")])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fake NVML."""
    return build.nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def clean_facts(tmp_path_factory: pytest.TempPathFactory, nvml: Path) -> Callable[[str], HostFacts]:
    """What the probe says of each clean box, asked once."""
    known: dict[str, HostFacts] = {}

    def ask(kind: str) -> HostFacts:
        if kind not in known:
            box = build_box(kind, tmp_path_factory.mktemp(kind) / "root", nvml)
            known[kind] = probe(box.tree.roots, environ=box.environ)
            shutil.rmtree(box.base)
        return known[kind]

    return ask


@pytest.fixture
def make(tmp_path: Path, nvml: Path, clean_facts: Callable[[str], HostFacts]) -> Iterator[Make]:
    """A clean box of a kind (`nvidia`, `strix`, `cpu`), with its facts."""

    built: list[Box] = []

    def build_one(kind: str) -> Box:
        box = build_box(kind, tmp_path / f"r{len(built)}", nvml)
        box.facts = clean_facts(kind)
        built.append(box)
        return box

    yield build_one
    for box in built:
        box.close()


def build_box(kind: str, base: Path, nvml: Path) -> Box:
    if kind == "nvidia":
        return boxes.nvidia_box(base, nvml)
    return boxes.strix_box(base) if kind == "strix" else boxes.cpu_box(base)

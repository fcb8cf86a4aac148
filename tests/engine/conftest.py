"""Engines for the tests of this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.engine.running import Running, launch, running

Start = Callable[..., Running]


@pytest.fixture
def start(xllamacpp_path: Path, tmp_path: Path) -> Iterator[Start]:
    """Start the launcher with these arguments and wait until it is healthy; ends with the test."""
    with contextlib.ExitStack() as stack:

        def begin(arguments: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Running:
            return stack.enter_context(running(xllamacpp_path, tmp_path, arguments, env))

        yield begin


@pytest.fixture
def start_only(xllamacpp_path: Path, tmp_path: Path) -> Iterator[Start]:
    """The same without waiting for health."""
    started: list[Running] = []

    def begin(arguments: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Running:
        started.append(launch(xllamacpp_path, tmp_path, arguments, env))
        return started[-1]

    yield begin
    for engine in started:
        engine.process.kill()
        engine.process.wait()

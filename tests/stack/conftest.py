"""Fixtures for whole stacks: the embedded image in Podman, and the generated models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models import generate as g
from tests.stack.stack import Stack

MakeStack = Callable[..., Stack]


@pytest.fixture
def make_stack(podman_socket: str, embedded_image: str) -> Iterator[MakeStack]:
    """Makes stacks; each is closed at the test's end, whatever happened."""
    made: list[Stack] = []

    def make(**options: Any) -> Stack:
        stack = Stack(str(podman_socket), **options)
        made.append(stack)
        return stack

    yield make
    for stack in made:
        stack.close()


@pytest.fixture(scope="module")
def shared_stack(podman_socket: str, embedded_image: str, test_models: Path) -> Iterator[Stack]:
    """One stack for the tests of a module that leave it as they found it: `plain` and `spec` are ready."""
    stack = Stack(str(podman_socket))
    stack.define("plain", test_models / g.TARGET, method="none", parallel=2)
    stack.define(
        "spec",
        test_models / g.TARGET_TWO,
        drafter=test_models / g.DFLASH,
        method="dflash",
        parallel=2,
        aliases=["Spec/Alias"],
    )
    with stack:
        stack.start("plain", "spec")
        yield stack

"""The fixture `make_stack`: whole Outriders for tests of any folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

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

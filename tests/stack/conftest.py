"""Fixtures for whole stacks: the embedded image in Podman, and the generated models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models import generate as g
from tests.stack.stack import Stack


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


# for the attempts to get in and out (`test_escape*.py`)


@pytest.fixture(scope="module")
def stack(podman_socket: str, embedded_image: str, test_models: Path) -> Iterator[Stack]:
    """`plain` is ready. Anybody may enter the stack's folder: what keeps people out lies deeper."""
    made = Stack(podman_socket)
    made.folder.chmod(0o755)
    made.define("plain", test_models / g.TARGET, method="none", aliases=["Some/Alias"])
    with made:
        made.start("plain")
        yield made


@pytest.fixture(scope="module")
def engine(stack: Stack) -> Any:
    """The engine that serves `plain`, as the API shows it."""
    return stack.deployment("plain")["engine"]


@pytest.fixture(scope="module")
def key(stack: Stack, engine: Any) -> str:
    """Its key, which nobody but root and the gateway's user may learn."""
    text = (stack.paths.engines / f"{engine['id']}.key").read_text()
    assert len(text) > 40
    return text

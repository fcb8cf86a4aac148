"""An engine's /dev/shm grows with the GPUs that share its model."""

from __future__ import annotations

import pytest

from orchestrator.shared_memory import SHARED, shared_memory


@pytest.mark.parametrize(
    ("image", "devices", "expected"),
    [
        (None, 0, None),
        (None, 1, None),
        (1 << 30, 1, 1 << 30),
        (None, 2, SHARED),
        (1 << 30, 4, SHARED),
        (32 << 30, 2, 32 << 30),
    ],
)
def test_shared_memory(image: int | None, devices: int, expected: int | None) -> None:
    assert shared_memory(image, devices) == expected

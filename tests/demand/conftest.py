"""Nothing of the product blocks an event loop of these tests."""

from tests.blocking_fixture import nothing_blocks

__all__ = ["nothing_blocks"]

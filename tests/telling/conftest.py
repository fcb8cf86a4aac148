"""Nothing of the product blocks an event loop of these tests; and the command in this process, for what needs no
daemon."""

from tests.blocking_fixture import nothing_blocks
from tests.cli.conftest import call, paths

__all__ = ["call", "nothing_blocks", "paths"]

"""Fixtures for the tests of stopping: small real containers, and a Podman service that may be frozen and killed."""

from tests.blocking_fixture import nothing_blocks
from tests.containers.conftest import podman, private_service, specs, started

__all__ = ["nothing_blocks", "podman", "private_service", "specs", "started"]

"""Fixtures for the tests of stopping: small real containers, and a Podman service that may be frozen and killed."""

from tests.containers.conftest import podman, private_service, specs, started

__all__ = ["podman", "private_service", "specs", "started"]

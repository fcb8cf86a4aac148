"""Fixtures for all tests."""

pytest_plugins = ("tests.podman_fixture", "tests.engine_fixture")

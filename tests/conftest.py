"""Fixtures for all tests."""

pytest_plugins = ("tests.house_rules", "tests.podman_fixture", "tests.engine_fixture")

"""Fixtures for all tests."""

import signal

from hypothesis import HealthCheck, settings

pytest_plugins = ("tests.house_rules", "tests.podman_fixture", "tests.engine_fixture", "tests.stack_fixture")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A script's shell starts what it puts into the background so, and each child of ours would inherit it;
    # the tests of Ctrl-C need programs that feel it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes, or its making, says how busy the machine is; a test's own limit ends what hangs.
settings.register_profile("outrider", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("outrider")

"""The watchdog at full time scale: Podman may be silent for as long as it likes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.install.manager import Listener, Podman
from tests.stack.stack import Stack

WATCHDOG = 60.0
"""As in the units."""
SILENCE = 100.0


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_podman_that_hangs_gets_no_daemon_restarted(
    podman_socket: str, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Podman(short / "podman.sock", podman_socket)
    door.serve()
    with Listener(str(short / "notify")) as listener:
        monkeypatch.setenv("NOTIFY_SOCKET", listener.address)
        monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG * 1e6)))
        stack = Stack(str(door.path), gateway=False, scale=1.0)
        try:
            stack.start_daemon(wait=False)
            listener.wait("READY=1")
            with door.hanging():
                end, longest = time.monotonic() + SILENCE, 0.0
                while time.monotonic() < end:
                    before = time.monotonic()
                    listener.wait("WATCHDOG=1", WATCHDOG)
                    longest = max(longest, time.monotonic() - before)
                print(f"fed every {longest:.0f} s at the longest, of {WATCHDOG:.0f}")
                assert stack.get("/api/v1/health")["podman"] is False
        finally:
            stack._podman_socket = podman_socket
            stack.close()
            door.close()

"""Loopback ports for engines whose runtime has no unix socket: 17000-17999, each rested before reuse.

A Podman service that dies inside a container's start can leave a stale DNAT rule that
swallows the port of the next engine, so a used port rests for ten minutes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from containers.errors import ContainerError

PORTS = range(17000, 18000)
REST = 600.0
"""Seconds before a port is used again."""


class PortsExhausted(ContainerError):
    """No port of the range is free and rested."""

    code = "ports_exhausted"
    retryable = True


class Ports:
    """The port range of one host. `now` gives monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._taken: set[int] = set()
        self._resting: dict[int, float] = {}

    def take(self) -> int:
        """A port that nobody listens on; raises `PortsExhausted`."""
        now = self._now()
        self._resting = {p: t for p, t in self._resting.items() if now - t < REST}
        for port in PORTS:
            if port not in self._taken and port not in self._resting and _free(port):
                self._taken.add(port)
                return port
        raise PortsExhausted(
            f"no port of {PORTS.start}-{PORTS.stop - 1} is free",
            hint="stop engines, or wait ten minutes for ports to rest",
        )

    def keep(self, port: int) -> None:
        """An adopted engine has this port."""
        self._taken.add(port)

    def give_back(self, port: int) -> None:
        """The engine is gone; the port rests."""
        self._taken.discard(port)
        self._resting[port] = self._now()


def _free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

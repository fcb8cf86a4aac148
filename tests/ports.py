"""Ports for programs that a test starts a moment later."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_SPAN = 10_000


def free_ports(count: int) -> tuple[int, ...]:
    """So many ports of 127.0.0.1 that nobody has, for programs that are about to listen on them.

    They are none of those that the kernel gives to connections: such a one may be gone by
    then, to any connection on the machine.
    """
    first = int(_RANGE.read_text().split()[0])
    found: list[int] = []
    for port in random.sample(range(first - _SPAN, first), _SPAN):
        with socket.socket() as probe:
            if _bound(probe, port):
                found.append(port)
        if len(found) == count:
            return tuple(found)
    raise AssertionError(f"there are no {count} free ports below {first}")


def _bound(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True

"""Ports for programs that a test starts a moment later."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_SPAN = 10_000
_WORKERS = 8


def free_ports(count: int) -> tuple[int, ...]:
    """So many ports of 127.0.0.1 that nobody has, for programs that are about to listen on them.

    They are none of those that the kernel gives to connections: such a one may be gone by
    then, to any connection on the machine. Nor are they those of another worker of this run, which may take one
    while the program that has it is started anew.
    """
    first = int(_RANGE.read_text().split()[0])
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    found: list[int] = []
    mine = range(first - _SPAN + worker, first, _WORKERS)
    for port in random.sample(mine, len(mine)):
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

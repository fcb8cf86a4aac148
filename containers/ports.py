"""Loopback ports for engines whose runtime has no unix socket: 17000-17999, each rested before reuse.

A Podman service that dies inside a container's start can leave a stale DNAT rule that
swallows the port of the next engine, so a used port rests for ten minutes.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from containers import proc
from containers.errors import ContainerError

log = structlog.get_logger("ports")
PORTS = range(17000, 18000)
REST = 600.0
"""Seconds before a port is used again."""
_LISTENING = "0A"
"""TCP_LISTEN, as /proc/net/tcp writes it."""


class PortsExhausted(ContainerError):
    """No port of the range is free and rested."""

    code = "ports_exhausted"
    retryable = True


class Ports:
    """The port range of one host. `now` gives monotonic seconds.

    With a `kept` file a daemon's successor knows which ports were in use and since when the others rest; what
    was kept in another boot (`boot`) is void, for its rules and its clock are gone. Methods may be called from
    any thread, and block for a small file.
    """

    def __init__(self, now: Callable[[], float], kept: Path | None = None, *, boot: str = "") -> None:
        self._now = now
        self._kept = kept
        self._boot = boot
        self._lock = threading.Lock()
        self._taken: set[int] = set()
        self._resting = self._read()

    def take(self) -> int:
        """A port that nobody listens on; raises `PortsExhausted`."""
        with self._lock:
            now = self._now()
            self._resting = {p: t for p, t in self._resting.items() if now - t < REST}
            for port in PORTS:
                if port not in self._taken and port not in self._resting and _free(port):
                    self._taken.add(port)
                    self._write()
                    return port
        raise PortsExhausted(
            f"no port of {PORTS.start}-{PORTS.stop - 1} is free",
            hint="stop engines, or wait ten minutes for ports to rest",
        )

    def keep(self, port: int) -> None:
        """An adopted engine has this port."""
        with self._lock:
            self._resting.pop(port, None)
            self._taken.add(port)
            self._write()

    def give_back(self, port: int) -> None:
        """The engine is gone; the port rests."""
        with self._lock:
            self._taken.discard(port)
            self._resting[port] = self._now()
            self._write()

    def _read(self) -> dict[int, float]:
        """What rests. A port that was in use rests from now on, unless its engine is adopted."""
        if self._kept is None:
            return {}
        try:
            data = json.loads(self._kept.read_bytes())
            if data["boot"] != self._boot:
                return {}
            now = self._now()
            rests = {int(port): now if since is None else float(since) for port, since in data["ports"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            log.warning("ports_not_read", file=str(self._kept))
            return {}
        return {port: min(since, now) for port, since in rests.items() if port in PORTS}

    def _write(self) -> None:
        """Failing to keep it is no reason not to start an engine."""
        if self._kept is None:
            return
        ports = {**{str(p): t for p, t in self._resting.items()}, **dict.fromkeys(map(str, self._taken))}
        new = self._kept.with_name(f".{self._kept.name}.new")
        try:
            new.write_text(json.dumps({"boot": self._boot, "ports": ports}))
            new.replace(self._kept)
        except OSError as error:
            log.warning("ports_not_kept", file=str(self._kept), error=str(error))


def listens(pid: int, port: int, *, root: Path = proc.PROC) -> bool | None:
    """Whether somebody listens on this TCP port in the network of a process; None when that cannot be seen."""
    seen = False
    for name in ("tcp", "tcp6"):
        try:
            rows = (root / str(pid) / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        seen = True
        for row in rows:
            fields = row.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False if seen else None


def _free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

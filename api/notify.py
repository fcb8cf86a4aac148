"""Talking to the service manager that started this process (sd_notify), without a package for it.

One datagram a message to the socket that `NOTIFY_SOCKET` names; a name that begins with `@` is
in the abstract namespace. Nobody waits for it and nothing depends on it: without a manager every
call does nothing. Both processes use this, so it imports the standard library alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Self

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Manager:
    """The service manager of this process, or nobody."""

    def __init__(self, address: str | None, watchdog: float | None) -> None:
        """`address` as in `NOTIFY_SOCKET`; `watchdog` in seconds, None when it does not want to be fed."""
        self.watchdog = watchdog
        """Seconds after which the manager restarts a process that was silent; None: it does not."""
        self._address = None if not address else "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        self._status: str | None = None

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] | None = None, pid: int | None = None) -> Self:
        """Read what the manager left in the environment, and take it out: children (Podman among
        them, which would speak to the manager in our name) have no business with it."""
        env = os.environ if environ is None else environ
        address, usec, meant = (env.pop(name, None) for name in VARIABLES)
        watchdog = None
        with contextlib.suppress(ValueError):
            if usec is not None and int(usec) > 0 and (meant is None or int(meant) == (pid or os.getpid())):
                watchdog = int(usec) / 1e6
        return cls(address, watchdog)

    @property
    def there(self) -> bool:
        """Whether a manager listens; then it starts this process anew when it ends."""
        return self._address is not None

    def ready(self, status: str = "") -> bool:
        """Start-up, or a reload, is done."""
        return self._send("READY=1", *self._news(status))

    def status(self, text: str) -> bool:
        """What `systemctl status` shows; the same text again is not sent."""
        news = self._news(text)
        return self._send(*news) if news else False

    def reloading(self) -> bool:
        """A reload begins; `ready` ends it."""
        return self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str = "") -> bool:
        """The process is ending by itself or by a wish, and is not to be mistaken for one that died."""
        return self._send("STOPPING=1", *self._news(status))

    def alive(self) -> bool:
        """Feed the watchdog. Only to be called by whoever would notice if the process had come to a halt."""
        return self._send("WATCHDOG=1") if self.watchdog is not None else False

    async def keep_alive(self) -> None:
        """Feed the watchdog from this event loop at twice the rate that is asked for, until cancelled."""
        while self.watchdog is not None:
            self.alive()
            await asyncio.sleep(self.watchdog / 2)

    def close(self) -> None:
        """Nothing is said any more."""
        self._address = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _news(self, status: str) -> tuple[str, ...]:
        text = " ".join(status.split())  # one line: a second one would be another variable
        if not text or text == self._status:
            return ()
        self._status = text
        return (f"STATUS={text}",)

    def _send(self, *lines: str) -> bool:
        """Whether it was handed over. A manager that does not read, or is gone, costs nobody time."""
        if self._address is None:
            return False
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
                self._socket.setblocking(False)
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True

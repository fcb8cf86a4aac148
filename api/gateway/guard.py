"""Who may ask: a gateway on a loopback address is for the programs of its machine, not for web pages.

A page on any site can let its own name point at 127.0.0.1 afterwards (DNS rebinding),
and then its requests are of one origin with the gateway: only the Host header tells
them apart. A page that does not bother shows itself by its Origin header. Checked once
a request; beyond loopback the only rule is HTTP's own, one Host header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence

from api.gateway import problem
from api.gateway.problem import Problem

_PORT = r"(?::[0-9]{1,5})?"


class Guard:
    """The rules for one listener."""

    __slots__ = ("_host", "_listen", "_origin", "loopback")

    def __init__(self, host: str) -> None:
        """`host` is what is listened on."""
        self.loopback = is_loopback(host)
        self._listen = host
        own = f"[{host}]" if ":" in host else host
        names = "|".join(re.escape(name) for name in ("localhost", "127.0.0.1", "[::1]", own))
        self._host = re.compile(f"(?:{names}){_PORT}".encode(), re.IGNORECASE)
        self._origin = re.compile(f"[a-z][a-z0-9+.-]*://(?:{names}){_PORT}".encode(), re.IGNORECASE)

    def refusal(
        self, headers: Sequence[tuple[bytes, bytes]], version: str, fields: Mapping[bytes, bytes] | None = None
    ) -> Problem | None:
        """Why a request is not taken; None when it is.

        Names in lower case, `version` as in ASGI ("1.1"), `fields` the same headers by name, where known.
        """
        if fields is None:
            fields = dict(headers)
        host = fields.get(b"host")
        if host is None:
            if version == "1.1":
                return problem.host_missing(0)
        elif len(fields) != len(headers) and (count := sum(name == b"host" for name, _ in headers)) > 1:
            return problem.host_missing(count)
        if not self.loopback:
            return None
        if host is not None and self._host.fullmatch(host) is None:
            return problem.foreign_host(self._listen)
        if b"origin" in fields:
            for name, value in headers:
                if name == b"origin" and self._origin.fullmatch(value) is None:
                    return problem.foreign_origin(self._listen)
        return None


def is_loopback(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""Asking a server from inside its own network, whatever leads to it from outside.

A thread of its own enters the network of the server's process, opens a socket there and never returns to a pool: a
socket stays in the network that it was made in, a thread in the one that it entered. It takes root, or the rights of
whoever owns that network.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from contextlib import suppress

CLONE_NEWNET = 0x40000000
_SLACK = 0.5
_LONGEST_LINE = 1024


def status_inside(pid: int, port: int, path: str, *, limit: float) -> int | None:
    """The status that whoever listens on loopback `port` gives for `GET path` in the network of process `pid`; None
    when nobody answers within `limit` seconds. Blocks. Raises OSError when that network cannot be entered."""
    found: list[int | None] = []
    wrong: list[OSError] = []

    def ask() -> None:
        try:
            with _socket_in(pid) as inside:
                found.append(_status(inside, port, path, limit))
        except OSError as error:
            wrong.append(error)

    thread = threading.Thread(target=ask, name=f"netns-{pid}", daemon=True)
    thread.start()
    thread.join(2 * limit + _SLACK)
    if wrong:
        raise wrong[0]
    return found[0] if found else None


def _socket_in(pid: int) -> socket.socket:
    handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)  # `os.setns` is there from Python 3.12 on
        if libc.setns(handle, CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(handle)
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def _status(inside: socket.socket, port: int, path: str, limit: float) -> int | None:
    with suppress(OSError, ValueError):
        inside.settimeout(limit)
        inside.connect(("127.0.0.1", port))
        inside.sendall(f"GET {path} HTTP/1.0\r\nHost: engine\r\n\r\n".encode())
        line = b""
        while b"\n" not in line and len(line) < _LONGEST_LINE:
            part = inside.recv(256)
            if not part:
                break
            line += part
        return int(line.split(b" ", 2)[1]) if line.startswith(b"HTTP/") and b" " in line else None
    return None

"""Sockets for the control API, bound with the right owner and mode, or refused with a next step."""

from __future__ import annotations

import contextlib
import errno
import grp
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Conflict, UsageError

SOCKET_MODE = 0o660
SETTING = "[api] listen"
SHOWN_FILE = "outrider.toml"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """Where to listen. `host` is a loopback address or `localhost`; port 0 takes a free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class UnixListener:
    """A bound unix socket, and which file it is."""

    socket: socket.socket
    path: Path
    inode: tuple[int, int]

    def close(self) -> None:
        """Close it and remove the file, if it is still this socket's and not a successor's."""
        self.socket.close()
        with contextlib.suppress(FileNotFoundError):
            info = self.path.lstat()
            if (info.st_dev, info.st_ino) == self.inode:
                self.path.unlink()


def bind_unix(path: Path, group: str | int | None) -> UnixListener:
    """Bind `path` (mode 0660; the group when this is root and it exists). Does not listen yet.

    A socket file that nobody answers on is what a killed daemon leaves: it is removed.
    Raises `Conflict` when somebody answers, or when the path is something else.
    """
    _clear(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.bind(os.fspath(path))
        # before listen(): nobody can connect while the mode is not yet right
        os.chmod(path, SOCKET_MODE)
        if os.geteuid() == 0 and group is not None:
            with contextlib.suppress(KeyError):
                os.chown(path, -1, group if isinstance(group, int) else grp.getgrnam(group).gr_gid)
        info = path.lstat()
    except OSError as error:
        bound.close()
        raise UsageError(
            f"the control socket {path} cannot be made: {error.strerror or error}",
            hint="check that its folder exists, is writable, and that the path is at most 100 bytes long",
        ) from error
    return UnixListener(bound, path, (info.st_dev, info.st_ino))


def _clear(path: Path) -> None:
    """Make way for a new socket at `path`, or refuse."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Conflict(f"{path} is there and is not a socket", hint="move it away")
    if _answers(path):
        raise Conflict(
            f"another daemon answers on {path}",
            hint="stop it (`outrider down`), or give this one a state folder of its own (`--state-dir`)",
            evidence={"socket": str(path)},
        )
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _answers(path: Path) -> bool:
    """Whether somebody listens. A full backlog or no permission to ask means yes. Never waits."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.setblocking(False)
        try:
            knock.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True


def bind_tcp(address: TcpAddress) -> socket.socket:
    """Bind a loopback address. Does not listen yet. Raises `Conflict` or `UsageError`."""
    ip = _loopback(address.host)
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((str(ip), address.port))
    except OSError as error:
        bound.close()
        where = {"host": address.host, "port": address.port}
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                f"port {address.port} on {address.host} is in use by another program",
                hint=f"stop that program, or set another port in `{SETTING}` in {SHOWN_FILE}",
                evidence=where,
            ) from error
        raise UsageError(
            f"the control API cannot listen on {address.host}, port {address.port}: {error.strerror or error}",
            hint=f"set another address in `{SETTING}` in {SHOWN_FILE}",
            evidence=where,
        ) from error
    return bound


def _loopback(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    text = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        ip = None
    if ip is None or not ip.is_loopback:
        raise UsageError(
            f"{host} is not a loopback address, and the control API does not leave the machine in the clear",
            hint=f"set `{SETTING}` in {SHOWN_FILE} to 127.0.0.1:8081 and reach it through SSH or a TLS proxy",
        )
    return ip

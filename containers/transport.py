"""podman-py's client for one unix socket, with its one leak mended.

podman-py opens a socket before it connects and forgets it when that fails, so each
call to a service that is away would leave a descriptor to the garbage collector.
It also reads the user's own Podman connections on the way; the client here knows
only the socket it is given.
"""

from __future__ import annotations

import socket
from urllib.parse import unquote, urlsplit

from podman.api.client import APIClient
from podman.api.uds import UDSAdapter, UDSConnection, UDSConnectionPool


class _Connection(UDSConnection):
    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(unquote(urlsplit(self.uds).netloc))
        except BaseException:
            sock.close()
            raise
        self.sock = sock


class _Pool(UDSConnectionPool):
    ConnectionCls = _Connection


def client(path: str, timeout: float) -> APIClient:
    """A client for the service on this socket. `timeout` is seconds of silence."""
    api = APIClient(f"http+unix://{path}", timeout=timeout)
    adapter = api.get_adapter("http://")
    assert isinstance(adapter, UDSAdapter)
    assert adapter.poolmanager is not None
    adapter.poolmanager.pool_classes_by_scheme = {"http": _Pool}
    return api

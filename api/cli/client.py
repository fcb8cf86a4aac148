"""The control API over its unix socket, as the command line uses it.

Errors come back as what they were on the daemon's side: the same code, hence the
same exit code. Every call has a deadline; a stream is quiet for `QUIET` at most,
for the daemon sends comments in between.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from orchestrator.errors import (
    AuthFailed,
    AuthGated,
    ContainerError,
    DaemonUnreachable,
    DigestMismatch,
    DiskError,
    DiskFull,
    DiskReadOnly,
    FetchError,
    ModelFileError,
    NotFound,
    NotOffered,
    OutriderError,
    RateLimited,
    Refused,
    SourceFailed,
    TimedOut,
    UsageError,
)
from orchestrator.paths import SYSTEM_STATE, Paths

AUTHOR = "X-Outrider-Author"
DEADLINE = 30.0
"""Seconds for a call that only reads or takes note."""
QUIET = 20.0
"""Seconds without a byte, after which a stream counts as lost."""

SYSTEM_UNIT = "/etc/systemd/system/outrider.service"
"""What `outrider install` made, where it did."""
SYSTEM_RUN = "/run/outrider"
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""No TLS is spoken here; without this httpx would read all certificate authorities for every client."""

_BY_CODE: Mapping[str, type[OutriderError]] = {
    "usage": UsageError,
    "image_unnamed": UsageError,
    "arch_mismatch": Refused,
    "config_invalid": OutriderError,  # the call was right, a file is not: exit 1
    "not_found": NotFound,
    "refused": Refused,
    "too_big": Refused,
    "weights_missing": Refused,
    "conflict": Refused,
    "switch_too_costly": Refused,
    "suspected_host_crash": Refused,
    "driver_mismatch": Refused,
    "gpu_lost": Refused,
    "timed_out": TimedOut,
    "model_file": ModelFileError,
    **{
        kind.code: kind
        for kind in (
            AuthFailed,
            AuthGated,
            DigestMismatch,
            DiskFull,
            DiskReadOnly,
            NotOffered,
            RateLimited,
            SourceFailed,
        )
    },
}
_BY_STATUS: Mapping[int, type[OutriderError]] = {
    400: UsageError,
    401: Refused,
    403: Refused,
    404: NotFound,
    405: UsageError,
    409: Refused,
    413: UsageError,
    415: UsageError,
    421: Refused,
    422: UsageError,
    502: FetchError,
    503: ContainerError,
    504: TimedOut,
    507: DiskError,
}


@dataclass(frozen=True, slots=True)
class Message:
    """One server-sent event; `data` is its decoded JSON."""

    event: str
    id: str | None
    data: Any


def rebuilt(
    code: str,
    detail: str,
    *,
    status: int = 500,
    hint: str | None = None,
    retryable: bool | None = None,
    evidence: Mapping[str, object] | None = None,
) -> OutriderError:
    """The error that stands behind a problem document or a `Why`: its class decides the exit code, and whether
    trying again may help where nobody said."""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status, OutriderError)
    error = kind(detail, hint=hint, evidence=evidence)
    error.code = code
    error.retryable = error.retryable if retryable is None else retryable
    return error


def from_response(response: httpx.Response) -> OutriderError:
    """A problem+json answer as an error; an answer of another kind by its status."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if isinstance(body, dict) and isinstance(body.get("code"), str):
        evidence = body.get("evidence")
        return rebuilt(
            body["code"],
            str(body.get("detail") or body.get("title") or body["code"]),
            status=response.status_code,
            hint=body.get("hint"),
            retryable=bool(body.get("retryable")),
            evidence=evidence if isinstance(evidence, dict) else None,
        )
    text = " ".join(response.text.split())[:200]
    return rebuilt("internal", f"the daemon answered {response.status_code}: {text}", status=response.status_code)


class Client:
    """A connection to this host's daemon; a context manager."""

    def __init__(self, paths: Paths) -> None:
        self._socket = paths.control_socket
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self._socket), verify=PLAIN),
            base_url="http://localhost/api/v1",
            headers={AUTHOR: f"cli:{_user()}"},
            timeout=DEADLINE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back."""
        self._http.close()

    def get(self, path: str, *, params: Mapping[str, str | int] | None = None, timeout: float = DEADLINE) -> Any:
        """The JSON answer of a GET."""
        return self.call("GET", path, params=params, timeout=timeout)

    def text(self, path: str, *, timeout: float = DEADLINE) -> str:
        """The text of a GET beside the API, such as `/metrics`."""
        self._reach()
        try:
            response = self._http.get(f"http://localhost{path}", timeout=timeout)
        except httpx.HTTPError as error:
            raise self._lost(error, timeout) from error
        if response.is_error:
            raise from_response(response)
        return response.text

    def call(
        self,
        method: str,
        path: str,
        *,
        body: object | None = None,
        params: Mapping[str, str | int] | None = None,
        timeout: float = DEADLINE,
        because: str | None = None,
    ) -> Any:
        """A call's JSON answer, None for an empty one. `because` stands in the journal behind who asks. Raises what
        the daemon raised, `DaemonUnreachable` when nobody answers, `TimedOut` after `timeout` seconds."""
        self._reach()
        said = "" if because is None else f" ({because}".encode("ascii", "replace").decode()
        headers = {AUTHOR: f"cli:{_user()}{said}"[:63] + ")"} if said else None
        try:
            response = self._http.request(
                method, path, json=body, params=dict(params or {}), timeout=timeout, headers=headers
            )
        except httpx.HTTPError as error:
            raise self._lost(error, timeout) from error
        if response.is_error:
            raise from_response(response)
        return response.json() if response.content else None

    def stream(
        self, path: str, *, params: Mapping[str, str | int] | None = None, quiet: float = QUIET
    ) -> Iterator[Message]:
        """Server-sent events until `event: end` or the caller stops; `event: error` is raised."""
        timeout = httpx.Timeout(DEADLINE, read=quiet)
        self._reach()
        try:
            with self._http.stream("GET", path, params=dict(params or {}), timeout=timeout) as response:
                if response.is_error:
                    response.read()
                    raise from_response(response)
                for message in parse_events(response.iter_lines()):
                    if message.event == "end":
                        return
                    if message.event == "error":
                        raise _stream_error(message.data)
                    yield message
        except httpx.HTTPError as error:
            raise self._lost(error, quiet) from error

    def _reach(self) -> None:
        """Raise `DaemonUnreachable`, with the reason, unless somebody listens. Costs microseconds, and
        httpx would leave the socket of a failed connection open."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(DEADLINE)
            try:
                probe.connect(str(self._socket))
            except PermissionError as error:
                raise DaemonUnreachable(
                    f"{self._socket} may not be opened by {_user()}",
                    hint="join the socket's group (usually `outrider`), or call with sudo",
                ) from error
            except OSError as error:
                raise DaemonUnreachable(
                    f"no daemon answers on {self._socket}",
                    hint=_where_else(str(self._socket)),
                ) from error

    def _lost(self, error: httpx.HTTPError, timeout: float) -> OutriderError:
        if isinstance(error, httpx.TimeoutException):
            return TimedOut(
                f"the daemon did not answer within {timeout:g} s",
                hint="`outrider status` says what it is doing; its log is in the logs folder",
            )
        return DaemonUnreachable(
            "the daemon went away during the call", hint="`outrider status` says whether it is back; its log says why"
        )


def _where_else(socket: str) -> str:
    """What to do where no daemon answers: the machine's own may be there, under other folders than a user's."""
    if os.geteuid() != 0 and os.path.exists(SYSTEM_STATE / "run" / os.path.basename(socket)):
        return f"this machine's service is another one: add --state-dir {SYSTEM_STATE}, or set OUTRIDER_STATE_DIR"
    if os.path.lexists(SYSTEM_UNIT) and os.path.dirname(socket) == SYSTEM_RUN:
        return "`systemctl start outrider.service outrider-gateway.service` starts this machine's own"
    return "`outrider up` starts one; a daemon with another state folder needs --state-dir"


def parse_events(lines: Iterator[str]) -> Iterator[Message]:
    """Server-sent events from lines; comments are skipped, several data lines join."""
    event, identity, data = "message", None, list[str]()
    for line in lines:
        if not line:
            if data:
                yield Message(event, identity, json.loads("\n".join(data)))
            event, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "event":
                event = value
            case "id":
                identity = value
            case "data":
                data.append(value)
            case _:
                pass  # a comment, or a field of a later version


def _stream_error(data: Any) -> OutriderError:
    if isinstance(data, dict) and isinstance(data.get("code"), str):
        return rebuilt(data["code"], str(data.get("detail") or data["code"]), hint=data.get("hint"))
    return OutriderError(f"the daemon broke off: {data}")


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())

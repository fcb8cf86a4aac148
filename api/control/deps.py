"""What the routes share: the daemon, the author of a change, names in paths."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Path, Request
from pydantic import AfterValidator

from api.control.auth import SLASH
from api.control.sse import Streams
from orchestrator.facade import Facade


async def _facade(request: Request) -> Facade:
    facade: Facade = request.app.state.facade
    return facade


async def _streams(request: Request) -> Streams:
    streams: Streams = request.app.state.streams
    return streams


def _slashes(text: str) -> str:
    return text.replace(SLASH, "/")


Daemon = Annotated[Facade, Depends(_facade)]
OpenStreams = Annotated[Streams, Depends(_streams)]
Author = Annotated[
    str,
    Header(
        alias="X-Outrider-Author",
        description="Who asks for the change; the journal keeps it.",
        pattern=r"^[!-~][ -~]{0,63}$",
    ),
]
ModelName = Annotated[
    str,
    AfterValidator(_slashes),
    Path(
        description="A model's public name or one of its aliases (a slash in it is sent as %2F).",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@%-]{0,255}$",
        examples=["smollm2"],
    ),
]
JobId = Annotated[str, Path(description="A job's id.", pattern=r"^[A-Za-z0-9._-]{1,64}$")]

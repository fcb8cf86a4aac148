"""Asking an engine: whose fault it is that nothing comes."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from orchestrator import engine_client
from orchestrator.engine_client import EngineClient, EngineUnreachable


async def asked(path: Path) -> EngineUnreachable:
    async with EngineClient(socket=str(path), port=None, key="k", timeout=2) as client:
        with pytest.raises(EngineUnreachable) as failed:
            await client.get("/health")
        return failed.value


async def test_a_socket_that_nobody_listens_at_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left.sock"))
    for name in ("left.sock", "never.sock"):
        error = await asked(tmp_path / name)
        assert (error.refused, error.ours, error.connected) == (True, False, False), name


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_a_daemon_that_cannot_ask_blames_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The kernel's answer stands in: taking all file descriptors of the test's own process would take pytest's, too."""

    def none_left(_: str) -> object:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(engine_client, "opened", none_left)
    error = await asked(tmp_path / "x.sock")
    assert (error.refused, error.ours) == (False, True)

"""The link to the daemon: its routing table comes in as events, reports go out. Nothing waits for it.

Without a daemon the gateway goes on with the table it has, for ever; the link tries
again with growing, jittered pauses. A daemon that says nothing at all, not even its
pings (every 5 s at the latest), is taken for dead and asked anew.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from api.gateway import sse, table
from api.gateway.admission import Admission
from api.gateway.log import event, warning
from api.gateway.upstream import Connection, Pool
from orchestrator.errors import DaemonUnreachable, OutriderError
from orchestrator.timing import Timing

TABLE_PATH = "/api/v1/gateway/table"
REPORT_PATH = "/api/v1/gateway/report"
SILENCE = 12.5
"""Seconds: two and a half of the daemon's pings."""


class Link:
    """One gateway's connection to its daemon."""

    def __init__(
        self,
        admission: Admission,
        *,
        socket: Path,
        table_file: Path,
        boot_id: str,
        owner: str,
        timing: Timing,
        silence: float = SILENCE,
    ) -> None:
        self._admission = admission
        self.up = False
        self._socket = socket
        self._table_file = table_file
        self._boot_id = boot_id
        self._owner = owner
        self._timing = timing
        self._silence = silence
        self._random = secrets.SystemRandom()
        self._unsaved: str | None = None
        self._saving: asyncio.Task[None] | None = None
        self._said: str | None = None
        self._report_said: str | None = None

    @property
    def up(self) -> bool:
        """Whether the daemon's table is being followed."""
        return self._up

    @up.setter
    def up(self, value: bool) -> None:
        self._up = value
        self._admission.orphaned = not value

    def start_from_disk(self) -> None:
        """Route by the last table, if it is of this boot and this state folder."""
        try:
            found = table.load(self._table_file, boot_id=self._boot_id, owner=self._owner)
        except OutriderError as error:
            warning("table_on_disk_refused", file=str(self._table_file), detail=error.detail)
            return
        if found is not None:
            self._admission.apply(found, "disk", fresh=True)
            event("table_applied", source="disk", revision=found.revision, models=len(found.models))

    async def run(self) -> None:
        """Follow the daemon's table, and report, until cancelled."""
        while True:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._follow_always())
                    tasks.create_task(self._report_always())
            except* Exception:
                # A mistake of ours may cost the link, never the data path.
                logging.getLogger(__name__).exception("the link to the daemon failed")
                self.up = False
            await asyncio.sleep(self._timing.link_retry_max)

    async def settle(self) -> None:
        """Wait until the last table is on disk."""
        if self._saving is not None:
            await self._saving

    # the table

    async def _follow_always(self) -> None:
        pause = self._timing.link_retry
        while True:
            try:
                await self._follow()
            except (OSError, OutriderError) as error:
                if self.up:
                    pause = self._timing.link_retry
                self._down(f"{type(error).__name__}: {error}" if not isinstance(error, OutriderError) else error.detail)
            await asyncio.sleep(pause * self._random.uniform(0.5, 1.5))
            pause = min(pause * 2, self._timing.link_retry_max)

    def _down(self, detail: str) -> None:
        """Log the loss, once for the same reason."""
        if self.up or self._said != detail:
            warning("daemon_lost" if self.up else "daemon_unreachable", detail=detail, socket=str(self._socket))
        self.up = False
        self._said = detail

    async def _follow(self) -> None:
        """One connection's worth of tables. Ends by raising."""
        async with asyncio.timeout(self._timing.gateway_call):
            connection = await Pool(path=str(self._socket)).dial()
        answer = _Answer()
        try:
            connection.send(answer, _head("GET", TABLE_PATH, accept="text/event-stream"), b"")
            decoder = sse.Decoder()
            fresh = True
            while True:
                try:
                    async with asyncio.timeout(self._silence):
                        data = await answer.more()
                except TimeoutError:
                    raise DaemonUnreachable(f"the daemon has been silent for {self._silence} s") from None
                if connection.status != 200:
                    raise DaemonUnreachable(f"the daemon answered {connection.status} to GET {TABLE_PATH}")
                if data is None:
                    raise DaemonUnreachable("the daemon ended the table's stream")
                for message in decoder.feed(data):
                    if message.name == "table" and self._take(message.data, fresh=fresh):
                        fresh = False
        finally:
            connection.abort()

    def _take(self, text: str, *, fresh: bool) -> bool:
        """Apply one table; False when it is refused, and the old one stays."""
        try:
            new = table.parse(text)
            table.check_origin(new, boot_id=self._boot_id, owner=self._owner)
            self._admission.apply(new, "daemon", fresh=fresh)
        except OutriderError as error:
            warning("table_refused", detail=error.detail)
            return False
        event("table_applied", source="daemon", revision=new.revision, models=len(new.models))
        self._said = None
        self.up = True
        self._unsaved = text
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._save())
        return True

    async def _save(self) -> None:
        """Write the newest table, off the event loop, until there is no newer one."""
        while self._unsaved is not None:
            text, self._unsaved = self._unsaved, None
            try:
                await asyncio.to_thread(table.save, self._table_file, text)
            except OSError as error:
                warning("table_not_saved", file=str(self._table_file), detail=str(error))

    # reports

    async def _report_always(self) -> None:
        pool = Pool(path=str(self._socket))
        try:
            while True:
                with suppress(TimeoutError):  # the first that waits for a model is told at once
                    async with asyncio.timeout(self._timing.report_period):
                        await self._admission.called.wait()
                self._admission.called.clear()
                if self.up:
                    await self._report(pool)
                else:
                    pool.close()
        finally:
            pool.close()

    async def _report(self, pool: Pool) -> None:
        """Send one report. A failure is logged once for the same reason; the next report says it all anyway."""
        body = json.dumps(self._admission.report()).encode()
        failure: str | None = None
        try:
            async with asyncio.timeout(self._timing.gateway_call):
                status = await _post(pool, REPORT_PATH, body)
        except (OSError, OutriderError) as error:
            failure = str(error) or type(error).__name__
        else:
            if status >= 300:
                failure = f"the daemon answered {status}"
        if failure is not None and failure != self._report_said:
            warning("report_failed", detail=failure)
        self._report_said = failure


async def _post(pool: Pool, path: str, body: bytes) -> int:
    """POST JSON and return the status. Raises `OSError` and `DaemonUnreachable`."""
    connection = pool.take() or await pool.dial()
    answer = _Answer()
    connection.send(answer, _head("POST", path, length=len(body)), body)
    try:
        while await answer.more() is not None:
            pass
    except BaseException:
        connection.abort()
        raise
    connection.release()
    return connection.status


def _head(method: str, path: str, *, accept: str = "application/json", length: int | None = None) -> bytes:
    lines: Sequence[str] = [f"{method} {path} HTTP/1.1", "host: localhost", f"accept: {accept}"]
    if length is not None:
        lines = [*lines, "content-type: application/json", f"content-length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class _Answer:
    """A connection's user for code that awaits: whatever came since it last looked."""

    def __init__(self) -> None:
        self._data = b""
        self._done = False
        self._lost: str | None = None
        self._wake = asyncio.Event()

    async def more(self) -> bytes | None:
        """The next of the body; None at the end. Raises `DaemonUnreachable`."""
        while True:
            if self._data:
                data, self._data = self._data, b""
                return data
            if self._lost is not None:
                raise DaemonUnreachable(f"the connection to the daemon was lost: {self._lost}")
            if self._done:
                return None
            self._wake.clear()
            await self._wake.wait()

    def upstream_data(self, connection: Connection) -> None:
        self._data += connection.take()
        self._done = connection.done
        self._wake.set()

    def upstream_lost(self, connection: Connection, detail: str) -> None:
        self._lost = detail
        self._wake.set()

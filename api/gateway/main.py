"""The composition root of the gateway process, and `python -m api.gateway`."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import resource
import signal
import sys
from collections.abc import Sequence

import uvloop

from api.gateway import fastpath, log, protocol
from api.gateway.admission import Admission
from api.gateway.app import GatewayApp
from api.gateway.drain import DrainApp
from api.gateway.guard import Guard
from api.gateway.link import Link
from api.gateway.log import event, warning
from api.gateway.ops import OpsApp
from api.gateway.pidfile import PidFile
from api.gateway.server import Listener, every_second, warn_if_public
from api.gateway.settings import Settings, from_command_line
from api.gateway.table import this_boot
from api.notify import Manager
from orchestrator.clock import SystemClock
from orchestrator.errors import ConfigError, Conflict, OutriderError, UsageError
from orchestrator.log_file import LogFile
from orchestrator.paths import Paths, prepare

OPEN_FILES = 65536
SPARE_FILES = 64
"""Descriptors for everything but clients and engines: listeners, the link, the table's file, operators."""
_FOLDERS = (
    "its own folders, `gateway/` of the state and of the run folder, have to be this user's; "
    "`systemd-tmpfiles --create` makes those of the system service"
)
LAST_WORDS = 1.0
"""Seconds for what is written at the very end to reach its reader."""


def run(paths: Paths, settings: Settings) -> None:
    """Run a gateway in this process until SIGTERM or SIGINT.

    Raises `Conflict` when another runs on the same folder, `CannotListen` when an
    address is taken. Logs to standard error.
    """
    files = _raise_open_files()
    manager = Manager.from_environment()
    if manager.watchdog is not None:
        faulthandler.enable()  # the watchdog ends by SIGABRT: where it was is then in the log
    ready = prepare(paths, only_gateway=True)
    pid = PidFile(ready.gateway_pid, "gateway")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(ready, settings, most_connections(files), manager))
    finally:
        pid.close()
        manager.close()


async def _serve(paths: Paths, settings: Settings, most: int, manager: Manager) -> None:
    clock = SystemClock()
    admission = Admission(settings.limits, wall=clock.wall())
    link = Link(
        admission,
        socket=paths.control_socket,
        table_file=paths.routing_table,
        boot_id=this_boot(),
        owner=paths.owner,
        timing=settings.timing,
    )
    if protocol.BROKEN is not None:
        warning("fast_path_off", detail=protocol.BROKEN)
    guard, ops_guard = Guard(settings.listen.host), Guard(settings.ops_listen.host)
    fast = fastpath.protocol_for(admission, guard if settings.fast_path else None)
    plain = fastpath.protocol_for(admission)
    keep_alive = settings.limits.keep_alive_s
    clients = Listener(GatewayApp(admission, guard), fast, keep_alive, most)
    ops = Listener(OpsApp(admission, link, ops_guard), plain, keep_alive)
    control = Listener(DrainApp(admission), plain, keep_alive)
    stop = _stop_signal()
    link.start_from_disk()
    try:
        await control.unix(paths.gateway_socket)
        ops_listen = await ops.tcp(settings.ops_listen, "ops_listen")
        listen = await clients.tcp(settings.listen, "listen")
        warn_if_public(listen, "listen")
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(link.run()),
                tasks.create_task(every_second(admission, [clients, ops, control], clock)),
                tasks.create_task(manager.keep_alive()),
            ]
            gc.collect()
            gc.freeze()
            event("listening", listen=str(listen), ops_listen=str(ops_listen), control=str(paths.gateway_socket))
            manager.ready(f"listening on {listen}")
            await stop.wait()
            manager.stopping("finishing what is in flight")
            event("stopping", in_flight=sum(engine.in_flight for engine in admission.engines()))
            admission.stop()
            clients.stop_accepting()
            cut = await clients.finish(settings.timing.shutdown)
            admission.cut_off()
            await clients.finish(LAST_WORDS)
            for task in background:
                task.cancel()
        await link.settle()
        event("stopped", cut=cut)
    finally:
        for listener in (clients, ops, control):
            listener.stop_accepting()
            await listener.finish(LAST_WORDS)
            listener.abort()
        admission.close()
        paths.gateway_socket.unlink(missing_ok=True)
        await asyncio.sleep(0)  # closed transports need a turn of the loop to be gone


def most_connections(files: int) -> int:
    """How many clients there may be: each may need a second descriptor, for its engine."""
    return max(1, (files - SPARE_FILES) // 2)


def _raise_open_files() -> int:
    """The descriptors there may be. Each stream takes two, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft


def _stop_signal() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run; the exit code (contract: 0 done, 1 failed, 2 usage, 4 refused)."""
    log.setup()
    try:
        paths, settings = from_command_line(sys.argv[1:] if argv is None else argv)
        log.setup(LogFile(paths.logs / "gateway.log", lambda: settings.log_bytes))
        run(paths, settings)
    except OutriderError as error:
        log.event("failed", 40, code=error.code, detail=error.detail, hint=error.hint)
        match error:
            case ConfigError() | UsageError():
                return 2
            case Conflict():
                return 4
            case _:
                return 1
    except OSError as error:
        log.event("failed", 40, code="os_error", detail=str(error), hint=_FOLDERS)
        return 1
    return 0

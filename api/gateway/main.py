"""The composition root of the gateway process, and `python -m api.gateway`."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
from collections.abc import Sequence

import uvloop

from api.gateway import fastpath, log
from api.gateway.admission import Admission
from api.gateway.app import GatewayApp
from api.gateway.drain import DrainApp
from api.gateway.link import Link
from api.gateway.log import event, warning
from api.gateway.ops import OpsApp
from api.gateway.pidfile import PidFile
from api.gateway.server import Listener, keep_date, warn_if_public
from api.gateway.settings import Settings, from_command_line
from api.gateway.table import this_boot
from orchestrator.clock import SystemClock
from orchestrator.errors import ConfigError, Conflict, OutriderError, UsageError
from orchestrator.paths import Paths, prepare

PID_FILE = "gateway.pid"
OPEN_FILES = 65536


def run(paths: Paths, settings: Settings) -> None:
    """Run a gateway in this process until SIGTERM or SIGINT.

    Raises `Conflict` when another runs on the same folder, `CannotListen` when an
    address is taken. Logs to standard error.
    """
    _raise_open_files()
    ready = prepare(paths)
    pid = PidFile(ready.run_dir / PID_FILE, "gateway")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(ready, settings))
    finally:
        pid.close()


async def _serve(paths: Paths, settings: Settings) -> None:
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
    if fastpath.BROKEN is not None:
        warning("fast_path_off", detail=fastpath.BROKEN)
    clients = Listener(GatewayApp(admission), fastpath.protocol_for(admission, fast=settings.fast_path))
    ops = Listener(OpsApp(admission, link), fastpath.protocol_for(admission, fast=False))
    control = Listener(DrainApp(admission), fastpath.protocol_for(admission, fast=False))
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
                tasks.create_task(keep_date(admission, [clients, ops, control], clock)),
            ]
            gc.collect()
            gc.freeze()
            event("listening", listen=str(listen), ops_listen=str(ops_listen), control=str(paths.gateway_socket))
            await stop.wait()
            event("stopping", in_flight=sum(engine.in_flight for engine in admission.engines()))
            admission.stop()
            clients.stop_accepting()
            cut = await clients.finish(settings.timing.shutdown)
            for task in background:
                task.cancel()
        await link.settle()
        event("stopped", cut=cut)
    finally:
        for listener in (clients, ops, control):
            listener.stop_accepting()
            await listener.finish(1.0)
        admission.close()
        paths.gateway_socket.unlink(missing_ok=True)
        await asyncio.sleep(0)  # closed transports need a turn of the loop to be gone


def _raise_open_files() -> None:
    """Each stream takes two descriptors, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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
    return 0

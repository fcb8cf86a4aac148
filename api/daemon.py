"""`outrider daemon`: composition of the control plane's parts into one process.

The process may die and be started again at any moment: engines and traffic go on. SIGTERM
ends only the daemon, SIGHUP reloads the configuration.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TextIO, cast

import structlog
import uvloop

from api.control.listeners import TcpAddress
from api.control.server import ControlServer
from api.control.token import load_or_create
from api.notify import Manager
from api.telling import Told
from containers import service as podman_service
from orchestrator.assembly import assemble
from orchestrator.clock import SystemClock
from orchestrator.config import Config, split_listen
from orchestrator.errors import ConfigError, OutriderError
from orchestrator.log_file import LogFile
from orchestrator.paths import Paths, prepare
from orchestrator.service import Outrider
from orchestrator.timing import Timing

log = structlog.get_logger("daemon")
PODMAN_LIMIT = 30.0
"""Seconds for a Podman service of our own to come up."""


def run(paths: Paths, *, config: Config) -> int:
    """Run until SIGTERM, SIGINT or a shutdown over the API. Raises `OutriderError` when it cannot start."""
    stderr = LogFile(paths.logs / "daemon.log", lambda: config.logs.daemon_bytes)
    _log_to(stderr)
    manager = Manager.from_environment()
    if manager.watchdog is not None:
        faulthandler.enable()  # the watchdog ends by SIGABRT: where each thread was is then in the log
    try:
        uvloop.run(_serve(prepare(paths), config, stderr, manager))
    finally:
        manager.close()
    return 0


async def _serve(paths: Paths, config: Config, stderr: LogFile, manager: Manager) -> None:
    clock = SystemClock()
    timing = Timing().scaled(config.timing.scale)
    version = installed_version("outrider")
    podman_socket, revive = await _podman(paths, config, managed=manager.there)
    parts = await assemble(
        paths, config, podman_socket=podman_socket, revive=revive, clock=clock, timing=timing, version=version
    )
    outrider = Outrider(parts)
    stderr.limit = lambda: outrider.config.logs.daemon_bytes
    try:
        server = ControlServer(
            outrider,
            paths,
            version=version,
            tcp=TcpAddress(*split_listen(config.api.listen)) if config.api.enabled else None,
            token=await asyncio.to_thread(load_or_create, paths) if config.api.enabled else None,
        )
        await server.start()
        try:
            _signals(outrider, manager)
            if manager.watchdog is not None:
                outrider.on_pulse(manager.alive, manager.watchdog)
            outrider.start()
            with _PidFile(paths.run_dir / "daemon.pid"), Told(manager, outrider, timing.reconcile_period):
                await outrider.ended.wait()
        finally:
            await server.stop(timing.shutdown / 10)
    finally:
        await outrider.close()


async def _podman(paths: Paths, config: Config, *, managed: bool) -> tuple[str, Callable[[], Awaitable[None]] | None]:
    """The socket of a Podman service, and how to have it again when it dies (None: it is not ours).

    One that cannot be had now does not keep the daemon from starting: it says what is wrong and
    adopts when Podman is back. Under a service manager Podman is a unit of that manager's and
    never a child of this process, whose sandbox and end it would share.
    """
    socket = config.podman.socket
    if socket is None and managed:
        socket = podman_service.usual_socket()

    async def revive() -> None:
        await podman_service.own(paths.run_dir, limit=PODMAN_LIMIT)

    try:
        found = await podman_service.ensure(paths.run_dir, socket=socket, limit=PODMAN_LIMIT)
    except OutriderError as error:
        log.warning("podman_unreachable", error=error.detail, hint=error.hint)
        if socket is not None:
            return socket.removeprefix("unix://"), None
        return str(paths.podman_socket), revive
    return found.socket, revive if found.own else None


def _signals(outrider: Outrider, manager: Manager) -> None:
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = loop.create_task(_reload(outrider, manager))
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGTERM, outrider.ended.set)
    loop.add_signal_handler(signal.SIGINT, outrider.ended.set)
    loop.add_signal_handler(signal.SIGHUP, reload)


async def _reload(outrider: Outrider, manager: Manager) -> None:
    manager.reloading()
    try:
        result = await outrider.reload(dry_run=False)
    except ConfigError as error:
        log.warning("configuration_refused", error=str(error))
    else:
        for change in result.changes:
            log.info("configuration_change", subject=change.subject, kind=change.kind, detail=change.detail)
    finally:
        manager.ready()


class _PidFile:
    """The daemon's pid, for people and for `outrider down`; the lock is `orchestrator.locks`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._path.write_text(f"{os.getpid()}\n")

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)


def _log_to(stderr: LogFile) -> None:
    """One JSON object a line, from our own modules and from libraries alike."""
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        # without local variables: they hold engines' keys
        structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
    ]
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    for noisy in ("httpx", "httpcore", "apscheduler", "podman", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, stderr)),
        cache_logger_on_first_use=True,
    )

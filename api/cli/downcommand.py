"""`outrider down`: end engines, daemon, gateway and a Podman service of our own, and leave `desired` alone.

The daemon is asked first, for it knows how to end engines. Whatever it could not
do (it was killed, it hangs) is done here: processes are ended by their pids, and
containers that carry this state folder's label are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator

import typer

from api.cli import processes
from api.cli.options import Common, Json, common, real_run_folder
from api.cli.output import note, print_json, say, ticker
from api.cli.processes import Kind, daemon_of, gateway_of, up_of
from api.install import layout, system
from orchestrator.errors import DaemonUnreachable, OutriderError, Refused
from orchestrator.paths import SYSTEM_STATE, Paths
from orchestrator.timing import Timing

ENGINES = Timing().shutdown + 2 * Timing().stop_grace
"""Seconds the daemon gets to end all engines and itself."""
GRACE = Timing().shutdown + 5
"""Seconds between SIGTERM and SIGKILL: a gateway that is told to end finishes what is in flight."""
PODMAN = 20.0
"""Seconds for one thing asked of Podman."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(down)


def down(ctx: typer.Context, as_json: Json = False) -> None:
    """End everything that `up` started. What is desired stays: the next `up` starts the same models."""
    options = common(ctx)
    _not_a_service(options.paths)
    with ticker("looking at what runs") as shown, uninterrupted():
        ended = _bring_down(options, shown.update)
    if as_json:
        print_json({"ended": ended})
    else:
        say(f"ended: {', '.join(ended)}" if ended else "nothing was up")


def _not_a_service(paths: Paths) -> None:
    """Raise `Refused` for the machine's service: systemd would start again at once what is ended here."""
    if paths.state_dir == SYSTEM_STATE and any(system.is_active(unit) for unit in layout.UNITS):
        raise Refused(
            "this Outrider is a service of the machine",
            hint=f"`systemctl stop {' '.join(layout.UNITS)}` ends it, engines go on; `outrider stop MODEL` ends one",
        )


def bring_down(options: Common) -> list[str]:
    """What `down` does, for `up`; shows what it waits for."""
    with ticker("ending engines, daemon and gateway") as shown, uninterrupted():
        return _bring_down(options, shown.update)


def end_kind(kind: Kind) -> bool:
    """End one process of ours, nothing else."""
    with uninterrupted():
        return processes.end(kind, first=0, grace=GRACE)


def _bring_down(options: Common, tell: Callable[[str], None]) -> list[str]:
    paths = real_run_folder(options.paths)
    ended: list[str] = []
    daemon, gateway = daemon_of(paths), gateway_of(paths)
    if daemon.pid() is not None:
        tell("daemon: ending its engines")
        asked = _ask(options)
        processes.end(daemon, first=ENGINES if asked else 0, grace=GRACE)
        ended += ["engines", "daemon"] if asked else ["daemon"]
    if gateway.pid() is not None:
        tell("gateway: ending")
        processes.end(gateway, first=0, grace=GRACE)
        ended.append("gateway")
    tell("podman: looking for what is left")
    ended += asyncio.run(_podman(paths, _configured_socket(paths)))
    _remove_leftovers(paths, daemon, gateway)
    _wait_for_up(paths)
    return ended


def _ask(options: Common) -> bool:
    """Ask the daemon to end its engines and itself; whether it took note."""
    from api.cli.client import Client

    try:
        with Client(options.paths) as client:
            client.call("POST", "/shutdown", body={"engines": True}, timeout=ENGINES)
    except DaemonUnreachable:
        return False
    except OutriderError as error:
        note(f"the daemon could not end its engines: {error}")
        return False
    return True


def _configured_socket(paths: Paths) -> str | None:
    """Podman's socket by the configuration; a broken configuration must not keep anybody from ending things."""
    from orchestrator.config import ConfigProblems, load

    try:
        return load(paths).podman.socket
    except ConfigProblems:
        return None


async def _podman(paths: Paths, socket: str | None) -> list[str]:
    """Remove containers of ours that are left, then end a service of our own."""
    from containers import service
    from containers.errors import PodmanUnreachable

    pid = service.running(paths.run_dir)
    left = paths.engines.is_dir() and any(paths.engines.iterdir())
    if pid is None and not left:
        return []
    try:
        found = await service.ensure(paths.run_dir, socket=socket, limit=PODMAN)
    except PodmanUnreachable:
        return []
    ended = (
        [f"{count} engine{'s' if count > 1 else ''} left over"]
        if (count := await remove_containers(found.socket, paths.owner))
        else []
    )
    if found.own:
        await found.stop()
        ended.append("Podman service")
    elif pid is not None:
        await service.Service(str(paths.podman_socket), own=True, pid=pid, run_dir=paths.run_dir).stop()
        ended.append("Podman service")
    return ended


async def remove_containers(socket: str, owner: str) -> int:
    """Remove every container of this state folder; how many there were."""
    from containers.labels import owned_by
    from containers.podman import Podman

    podman = Podman(socket, call_timeout=PODMAN)
    try:
        left = await podman.containers(owned_by(owner))
        for container in left:
            await podman.stop(container.id, Timing().stop_grace)
            await podman.remove(container.id)
        return len(left)
    finally:
        await podman.close()


def _remove_leftovers(paths: Paths, *kinds: Kind) -> None:
    """Sockets and engines' folders of processes that are gone. Pid files stay: they are locks."""
    if any(kind.pid() is not None for kind in kinds):
        return
    for file in (paths.control_socket, paths.gateway_socket):
        file.unlink(missing_ok=True)
    if paths.engines.is_dir():
        for folder in paths.engines.iterdir():
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
            else:
                folder.unlink(missing_ok=True)


def _wait_for_up(paths: Paths) -> None:
    """An `outrider up` in another terminal sees the end by itself; give it the time to say so."""
    end = time.monotonic() + 5.0
    while up_of(paths).pid() not in {None, os.getpid()} and time.monotonic() < end:
        processes.pause()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Another Ctrl-C does not leave things half ended; all waits here have limits."""
    before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

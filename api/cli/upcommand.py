"""`outrider up`: everything together, for a laptop or a first try.

`up` starts only what does not run yet, so calling it again is harmless. What it
started it ends again when it cannot finish or is interrupted; `desired` is left
as it was, so that the next `up` goes on from there.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli import processes
from api.cli.downcommand import bring_down, end_kind
from api.cli.options import LOAD, Common, Json, Timeout, common
from api.cli.output import Ticker, note, print_json, say, ticker
from api.cli.processes import Kind, daemon_of, gateway_of, up_of
from orchestrator.errors import DaemonUnreachable, OutriderError, TimedOut

if TYPE_CHECKING:
    from orchestrator.config import Config

HEALTHY = 30.0
"""Seconds that the daemon, the gateway and Podman each get to answer."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(up)


def up(
    ctx: typer.Context,
    *,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when all is ready; `outrider down` ends it.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Start this model too; smollm2 if none is configured."),
    ] = None,
    no_model: Annotated[bool, typer.Option("--no-model", help="Start daemon and gateway only.")] = False,
    timeout: Timeout = LOAD,
    as_json: Json = False,
) -> None:
    """Start everything: Podman, image, daemon, gateway, a model.

    Follows the journal until Ctrl-C, which ends it all; with --detach it returns. What runs already stays.
    """
    from api.cli.client import Client
    from api.cli.firstmodel import models_ready
    from orchestrator.config import exposure, load
    from orchestrator.paths import prepare

    options = common(ctx)
    options = Common(prepare(options.paths), options.arguments)
    run = Up(options, load(options.paths))
    with ended_by_signals():
        try:
            with ticker("looking at what runs") as shown:
                fresh = run.start(shown)
                with Client(options.paths) as client:
                    ready = [] if no_model else models_ready(client, model, shown, timeout=timeout)
            document = answer(run.config, options, ready, fresh=fresh)
            if as_json:
                print_json(document)
            else:
                _tell(document, options)
            if (warning := exposure(run.config)) is not None:
                note(f"warning: {warning}")
            if detach or not fresh:
                return
        except (KeyboardInterrupt, OutriderError):
            run.end()
            raise
        run.follow()


@dataclass(slots=True)
class Up:
    """One run of `up`: what it started itself. `children` by their kind's command."""

    options: Common
    config: Config
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    began: frozenset[str] = frozenset()
    """The commands of the processes that it set out to start, and so has to end."""

    def start(self, shown: Ticker) -> bool:
        """Podman, daemon, gateway: what does not run yet. False when all of it ran already."""
        daemon, gateway = daemon_of(self.options.paths), gateway_of(self.options.paths)
        missing = [kind for kind in (daemon, gateway) if kind.pid() is None]
        self._check_ports(daemon in missing, gateway in missing)
        self.began = frozenset(kind.command for kind in missing)
        if missing:
            shown.update("podman: looking for its API")
            asyncio.run(self._podman(shown))
        for kind in (daemon, gateway):
            if kind in missing:
                shown.update(f"{kind.command}: starting")
                self.children[kind.command] = processes.spawn(kind, self.options)
            self._healthy(kind)
            if kind in missing:
                shown.done(f"{kind.command}: healthy")
        return bool(missing)

    def end(self) -> None:
        """End what this run started: everything, unless the daemon was there before."""
        if "daemon" in self.began:
            bring_down(self.options)
        elif "gateway" in self.began:
            end_kind(gateway_of(self.options.paths))

    def follow(self) -> None:
        """Print the journal until Ctrl-C (which ends everything) or until somebody else called `down`."""
        from api.cli.supervise import Watch

        pid_file = up_of(self.options.paths).pid_file
        try:
            pid_file.write_text(f"{os.getpid()}\n")
            note("Ctrl-C ends it all.")
            Watch(self.options, self.children).run()
        except KeyboardInterrupt:
            note("")
            self.end()
        except OutriderError:
            self.end()
            raise
        finally:
            pid_file.unlink(missing_ok=True)

    def _check_ports(self, daemon: bool, gateway: bool) -> None:
        wanted = []
        if gateway:
            wanted += [
                ("[gateway] listen", self.config.gateway.listen),
                ("[gateway] ops_listen", self.config.gateway.ops_listen),
            ]
        if daemon and self.config.api.enabled:
            wanted.append(("[api] listen", self.config.api.listen))
        processes.check_free(wanted, self.options.paths.config_file)

    async def _podman(self, shown: Ticker) -> None:
        """A Podman service that goes on after us, and the embedded engine's image in it."""
        from api.cli.image import ensure_embedded
        from containers.podman import Podman
        from containers.service import ensure

        paths = self.options.paths
        found = await ensure(paths.run_dir, socket=self.config.podman.socket, limit=HEALTHY)
        podman = Podman(found.socket, call_timeout=HEALTHY)
        try:
            info = await ensure_embedded(podman, paths, lambda line: shown.update(f"image: {line}"))
            shown.done(f"image: {info.names[0] if info.names else info.id}")
        finally:
            await podman.close()

    def _healthy(self, kind: Kind) -> None:
        """Wait until the process answers; its last log lines when it dies instead."""
        child = self.children.get(kind.command)

        def answers() -> bool:
            if is_healthy(kind, self.options):
                return True
            if child is not None and child.poll() is not None:
                raise processes.died(kind, child.returncode)
            return False

        if not processes.until(answers, HEALTHY):
            raise TimedOut(f"the {kind.command} does not answer after {HEALTHY:g} s", hint=f"its log is {kind.log}")


def is_healthy(kind: Kind, options: Common) -> bool:
    """Whether the daemon answers, or the gateway has its routing table from the daemon."""
    from api.cli.client import Client

    try:
        with Client(options.paths) as client:
            health: dict[str, Any] = client.get("/health", timeout=5.0)
    except (DaemonUnreachable, TimedOut):
        return False
    return kind.command == "daemon" or bool(health["gateway"])


def answer(config: Config, options: Common, ready: list[str], *, fresh: bool) -> dict[str, Any]:
    """What `up` has to say, as a document."""
    from orchestrator.config import client_url

    return {
        "already_up": not fresh,
        "base_url": f"{client_url(config.gateway.listen)}/v1",
        "api": client_url(config.api.listen) if config.api.enabled else None,
        "control_socket": str(options.paths.control_socket),
        "models": ready,
    }


def _tell(document: dict[str, Any], options: Common) -> None:
    say("Outrider is already up." if document["already_up"] else "Outrider is up.")
    say(f"OpenAI base URL: {document['base_url']}")
    for name in document["models"][:1]:
        body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "What is an outrider?"}}]}}'
        url = f"{document['base_url']}/chat/completions"
        say(f"Try it:\n  curl -s {url} -H 'content-type: application/json' -d '{body}'")
        say(f"or:\n  {shlex.join([called(), *options.arguments, 'run', name])}")


def called() -> str:
    """How this shell finds the command again: by its name, or by the path it was called with."""
    path = sys.argv[0]
    return "outrider" if shutil.which("outrider") or os.path.basename(path) != "outrider" else path


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal end `up` as Ctrl-C does."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""What `outrider up` does once all is ready: print the journal, and see to its two processes.

A daemon or gateway that crashes is started again (engines and traffic go on
without it); one that crashes again and again is given up with its last words.
One that was told to end stays ended, and when both are gone, so is `up`.
"""

from __future__ import annotations

import math
import subprocess
import threading
import time

from api.cli import processes
from api.cli.options import Common
from api.cli.output import note, say
from api.cli.processes import Kind, daemon_of, gateway_of
from orchestrator.errors import DaemonUnreachable, OutriderError, TimedOut

CRASHES = 3
"""So many crashes of one process within `WINDOW` seconds, and it is given up."""
WINDOW = 60.0
LOOK = 0.5
"""Seconds between two looks at the processes."""
ALONE = 5.0
"""Seconds for which a process that was told to end waits for the other."""
PAUSE = 5.0
"""Seconds before the journal is asked for again after the daemon refused it."""


class Watch:
    """`children` are the processes to start again, by their command; others are only watched."""

    def __init__(self, options: Common, children: dict[str, subprocess.Popen[bytes]]) -> None:
        self._options = options
        self._children = children
        self._kinds = (daemon_of(options.paths), gateway_of(options.paths))
        self._crashes: dict[str, list[float]] = {}
        self._ended: dict[str, float] = {}
        self._journal = threading.Thread(target=self._follow, name="journal", daemon=True)
        self._over = threading.Event()

    def run(self) -> None:
        """Until both processes are gone by somebody's wish; raises when one cannot be kept up."""
        self._journal.start()
        try:
            while [kind for kind in self._kinds if self._look(kind)]:
                self._tell()
                processes.pause(LOOK)
            note("daemon and gateway were ended")
        finally:
            self._over.set()

    def _look(self, kind: Kind) -> bool:
        """Whether the process runs (again)."""
        child = self._children.get(kind.command)
        code = None if child is None else child.poll()
        if child is None or code is None:
            return child is not None or kind.pid() is not None
        if kind.pid() is not None:
            return True  # somebody else started another one
        if code == 0:
            self._ended.setdefault(kind.command, time.monotonic() + ALONE)
            return False
        self._restart(kind, code)
        return True

    def _tell(self) -> None:
        """Say that one process was ended, unless the other follows: then it was `down`."""
        for command, due in self._ended.items():
            if time.monotonic() >= due:
                self._ended[command] = math.inf
                note(f"the {command} was ended; `outrider {command}` starts it again")

    def _restart(self, kind: Kind, code: int) -> None:
        now = time.monotonic()
        recent = [at for at in self._crashes.get(kind.command, []) if now - at < WINDOW]
        self._crashes[kind.command] = [*recent, now]
        if len(recent) + 1 >= CRASHES:
            raise processes.died(kind, code)
        note(f"the {kind.command} ended with exit code {code}; starting it again (its log is {kind.log})")
        self._children[kind.command] = processes.spawn(kind, self._options)

    def _follow(self) -> None:
        """Print journal entries, those of a restarted daemon included. A thread of its own: it waits on the socket."""
        from api.cli.client import Client
        from api.cli.views import event_line, last_sequence

        since: int | None = None
        while not self._over.is_set():
            try:
                with Client(self._options.paths) as client:
                    since = last_sequence(client) if since is None else since
                    for message in client.stream("/events", params={"since": since, "follow": "true"}):
                        since = message.data["sequence"]
                        say(event_line(message.data))
            except (DaemonUnreachable, TimedOut):
                self._over.wait(LOOK)
            except OutriderError as error:
                note(f"the journal broke off: {error}")
                self._over.wait(PAUSE)

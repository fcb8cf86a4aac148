"""Places in a start and a stop at which a test has the daemon die, as a power cut or a killed process would have it.

With `OUTRIDER_CRASH_AT=PLACE` in its environment the daemon kills itself (SIGKILL: nothing is tidied, nothing
flushed) the first time it comes to that place. Nobody but tests sets it; without it `reached` does nothing. Each
place lies between two things that last: a row, a file, a container, a table that the gateway has. What lies inside a
call of Podman's is not here: a test that stands between the daemon and Podman kills at the call itself
(`tests/endurance/door.py`).
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum

VARIABLE = "OUTRIDER_CRASH_AT"


class Place(StrEnum):
    """Where the daemon can be made to die, in the order in which a start and a stop come by."""

    WISH_NOTED = "wish_noted"
    """What a person wants is in the database, and nobody was told yet."""
    PLANNED = "planned"
    NUMBERED = "numbered"
    """The engine has its generation number."""
    RESERVED = "reserved"
    """Memory is promised, and the load is marked where it can freeze the host."""
    FOLDER_MADE = "folder_made"
    KEY_WRITTEN = "key_written"
    CREATED = "created"
    STARTED = "started"
    HEALTHY = "healthy"
    PROVED = "proved"
    """The proof came back right, and the engine counts as ready in memory alone."""
    PROOF_NOTED = "proof_noted"
    SERVING = "serving"
    """The gateway may route to it, and the journal does not say so yet."""
    DRAINING = "draining"
    DRAINED = "drained"
    STOPPED = "stopped"
    """The process has ended, and its container is there."""
    REMOVED = "removed"
    FILES_GONE = "files_gone"
    FORGOTTEN = "forgotten"
    """Nothing of the engine is left but what the journal says."""


_AT = os.environ.get(VARIABLE)


def reached(place: Place) -> None:
    """Die here, if this is the place."""
    if place == _AT:
        os.kill(os.getpid(), signal.SIGKILL)

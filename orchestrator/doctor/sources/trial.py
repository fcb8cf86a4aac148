"""Whether Podman starts a container here: a root of one program that ends at once, tried with each setting of ours."""

from __future__ import annotations

import tempfile
from pathlib import Path

from containers import trial as settings
from containers.errors import PodmanFailed
from orchestrator.doctor.machine import Trial
from orchestrator.doctor.sources.look import Look, Unseen

_SECONDS = 4.0


def trial(look: Look) -> Trial:
    """Raises `Unseen` without Podman, and where one trial took so long that nothing is known."""
    if look.program("podman") is None:
        raise Unseen("there is no command `podman`")
    try:
        program = settings.program()
    except PodmanFailed as error:
        raise Unseen(error.detail) from error
    complaint = None
    with tempfile.TemporaryDirectory(prefix="outrider-doctor-") as folder:
        root = Path(folder) / "root"
        root.mkdir()
        (root / "end").write_bytes(program)
        (root / "end").chmod(0o755)
        for candidate in settings.candidates():
            conf = Path(folder) / settings.CONF_FILE
            conf.write_text(candidate.text())
            more = {} if candidate.untouched else {"CONTAINERS_CONF": str(conf)}
            words = ("run", "--rm", "--network", "none", "--log-driver", "none", "--rootfs", str(root), "/end")
            answer = look.ask("podman", *words, seconds=_SECONDS, environ=more)
            if answer.code == 0:
                ours = None if candidate.untouched else candidate.text()
                return Trial(True, candidate.untouched, complaint, _described(candidate), ours)
            complaint = complaint or answer.complaint
    return Trial(True, False, complaint)


def _described(candidate: settings.Settings) -> str | None:
    if candidate.untouched:
        return None
    parts = [
        f"the runtime {candidate.runtime}" if candidate.runtime else "",
        f"limits {', '.join(f'{k}={v}' for k, v in sorted(candidate.limits.items()))}" if candidate.limits else "",
        "control groups and events through files" if candidate.plain else "",
    ]
    return "; ".join(part for part in parts if part)

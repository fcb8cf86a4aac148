"""What can go wrong with an installation."""

from __future__ import annotations

from orchestrator.errors import OutriderError


class InstallFailed(OutriderError):
    """A step failed. What was done is recorded, so that another run goes on from there."""

    code = "install_failed"

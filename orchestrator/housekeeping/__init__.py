"""Keeping the host's disks from filling up: low water.

`water` decides and is pure; `disks` looks; `watch` acts; `keeper` puts it together.
"""

from __future__ import annotations

from orchestrator.housekeeping.keeper import Housekeeping
from orchestrator.housekeeping.watch import LOW_DISK, may_pull

__all__ = ["LOW_DISK", "Housekeeping", "may_pull"]

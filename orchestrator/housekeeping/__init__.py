"""Keeping the host's disks from filling up: low water, `outrider prune`.

`water` and `unused` decide and are pure. `disks` looks at file systems, `images_here`, `weights_here` and
`caches_here` at what lies on them, `claims` at what needs it. `watch` and `pruning` act; `keeper` is all of it.
"""

from __future__ import annotations

from orchestrator.housekeeping.keeper import Housekeeping
from orchestrator.housekeeping.unused import Group, Wish
from orchestrator.housekeeping.watch import LOW_DISK, may_pull

__all__ = ["LOW_DISK", "Group", "Housekeeping", "Wish", "may_pull"]

"""`python -m tests.restarting.limited daemon`: an Outrider whose plans give every container the bytes of memory that
`CONTAINER_MEMORY` says. No plan of its own has a limit for a container yet."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from orchestrator.plan import Limits
from orchestrator.planner import building

VARIABLE = "CONTAINER_MEMORY"


def limit(size: int) -> None:
    """Have the plans of this process limit memory."""

    def limited(**limits: int | None) -> Limits:
        return replace(Limits(**limits), memory=size)

    vars(building)["Limits"] = limited


if __name__ == "__main__":
    limit(int(os.environ[VARIABLE]))
    from api.cli.main import main

    sys.exit(main())

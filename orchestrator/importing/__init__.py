"""Reading the recipes of others: a deployment or an explained refusal, and what would be different here.

    text -> commands (shell, compose, quadlet, modelfile) -> server and its words -> recipe -> deployment

Nothing is run, fetched or written. Secrets are named, and neither carried over nor shown.
"""

from __future__ import annotations

from orchestrator.importing.judging import Here
from orchestrator.importing.reading import read
from orchestrator.importing.values import Change, Imported, ImportUnreadable, Item, Kind, Outcome

__all__ = ["Change", "Here", "ImportUnreadable", "Imported", "Item", "Kind", "Outcome", "read"]

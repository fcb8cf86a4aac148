"""The lifecycle's table as a drawing: `python -m orchestrator.lifecycle_drawing` writes it into design.md."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.lifecycle import BIRTH, TABLE

DESIGN = Path(__file__).parent / "design.md"
BEGIN, END = "```mermaid\n", "```\n"


def drawing() -> str:
    """The table as a mermaid state diagram, one line an edge, in the table's order."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state.value}: {why}" for state, why in BIRTH.items()]
    for before, edges in TABLE.items():
        lines += [f"    {before.value} --> {after.value}: {why}" for after, why in edges.items()]
    lines += [f"    {state.value} --> [*]" for state, edges in TABLE.items() if not edges]
    return "\n".join(lines) + "\n"


def redrawn(text: str) -> str:
    """The page with its first drawing replaced. ValueError when it has none."""
    begin = text.index(BEGIN) + len(BEGIN)
    return text[:begin] + drawing() + text[text.index(END, begin) :]


if __name__ == "__main__":
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else DESIGN
    page.write_text(redrawn(page.read_text()))

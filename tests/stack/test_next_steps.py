"""Next steps that messages name can be taken."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from api.cli.main import app

REPOSITORY = Path(__file__).parents[2]


def _commands(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, *path, name)


def test_every_command_that_a_message_names_exists() -> None:
    known = set(_commands(typer.main.get_command(app)))
    groups = {path[0] for path in known if len(path) == 2}
    named: dict[tuple[str, ...], str] = {}
    for folder in ("api", "containers", "hosts", "orchestrator"):
        for file in (REPOSITORY / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    for first, second in re.findall(r"[`(; ]outrider ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", node.value):
                        path = (first, second) if first in groups and second else (first,)
                        named[path] = f"{file.relative_to(REPOSITORY)}:{node.lineno}"
    wrong = {path: where for path, where in named.items() if path not in known}
    assert len(named) > 10, "the search finds what it looks for"
    assert not wrong

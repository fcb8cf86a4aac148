"""`outrider completion install|show`: completion of commands and options in a shell."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from api.cli.output import say
from orchestrator.errors import UsageError

VARIABLE = "_OUTRIDER_COMPLETE"
"""Set by the installed script when the shell asks for completions."""

completion_app = typer.Typer(no_args_is_help=True, help="Complete commands in a shell.")


class Shell(StrEnum):
    """Shells that are known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


ShellOption = Annotated[Shell | None, typer.Option("--shell", help="By default the one that SHELL names.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(completion_app, name="completion")


def prepare() -> None:
    """Make typer answer a shell that asks; anything else costs nothing."""
    if VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()


@completion_app.command()
def install(shell: ShellOption = None) -> None:
    """Write the script to the shell's start-up files."""
    from typer._completion_shared import install as write

    name, path = write(shell=_shell(shell), prog_name="outrider", complete_var=VARIABLE)
    say(f"{name} completion is in {path}; it works in the next shell")


@completion_app.command()
def show(shell: ShellOption = None) -> None:
    """Print the script."""
    from typer._completion_shared import get_completion_script

    say(get_completion_script(prog_name="outrider", complete_var=VARIABLE, shell=_shell(shell)))


def _shell(wanted: Shell | None) -> str:
    name = wanted or os.path.basename(os.environ.get("SHELL", ""))
    if name not in {shell.value for shell in Shell}:
        raise UsageError("cannot tell which shell this is", hint=f"give --shell, one of {', '.join(Shell)}")
    return str(name)

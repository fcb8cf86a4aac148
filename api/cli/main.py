"""`outrider`: the console script. Commands live in the modules beside this one, by subject.

Importing this module must stay cheap: commands import what they need when they run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from api.cli import (
    catalog,
    chat,
    completion,
    configuration,
    doctor,
    downcommand,
    fit,
    image,
    importcommand,
    installation,
    library,
    lifecycle,
    measuredcommand,
    offline,
    pausecommand,
    processes,
    prunecommand,
    supportcommand,
    top,
    upcommand,
    views,
    whycommand,
)
from api.cli.options import resolve
from api.cli.output import note, print_error, print_json
from containers.errors import OutriderError
from orchestrator.errors import UsageError

INTERRUPTED = 130
_HOISTED = ("--config", "--state-dir")
_QUIET_ENDS = (BrokenPipeError, ConnectionResetError)

app = typer.Typer(
    name="outrider",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    help="Run language models on this machine: the right engine, proven, kept answering.",
    epilog="--config and --state-dir may stand anywhere. Exit codes: 0 done, 1 failed, 2 wrong call, 3 not found, "
    "4 refused, 5 timed out, 6 daemon not reachable, 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"outrider {version('outrider')}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="outrider.toml, or the folder that holds it and models.d/ [OUTRIDER_CONFIG]"),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where state, weights and sockets live [OUTRIDER_STATE_DIR]"),
    ] = None,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    ctx.obj = resolve(config, state_dir)


for _module in (
    upcommand,
    downcommand,
    processes,
    lifecycle,
    pausecommand,
    chat,
    views,
    whycommand,
    top,
    library,
    catalog,
    offline,
    fit,
    configuration,
    doctor,
    supportcommand,
    image,
    importcommand,
    installation,
    prunecommand,
    measuredcommand,
    completion,
):
    _module.register(app)


def hoisted(arguments: Sequence[str]) -> list[str]:
    """The arguments with the global options first, so that they may stand anywhere before `--`."""
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in _HOISTED:
            front += [word, *(value for value in [next(words, None)] if value is not None)]
        elif word.startswith(tuple(f"{option}=" for option in _HOISTED)):
            front.append(word)
        else:
            rest.append(word)
    return front + rest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. An expected error is a sentence and a hint, never a traceback."""
    words = hoisted(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    completion.prepare()
    try:
        code = app(args=words, prog_name="outrider", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except OutriderError as error:
        return print_error(error, as_json=as_json)
    except TyperException as error:
        if error.format_message().startswith("Usage:"):
            note(error.format_message())  # called without arguments: the message is the help
            return 2
        command = getattr(getattr(error, "ctx", None), "command_path", "outrider")
        return print_error(UsageError(error.format_message(), hint=f"`{command} --help`"), as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except _QUIET_ENDS:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _defect(error, as_json)


def _defect(error: Exception, as_json: bool) -> int:
    if os.environ.get("OUTRIDER_DEBUG") == "1":
        raise error
    detail = f"{type(error).__name__}: {error}"
    note(f"error[internal]: {detail}")
    note("hint: this is a defect; OUTRIDER_DEBUG=1 shows where, please report it")
    if as_json:
        print_json({"error": {"code": "internal", "detail": detail}, "exit_code": 1})
    return 1


if __name__ == "__main__":
    sys.exit(main())

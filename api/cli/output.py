"""What the command line says: results on standard output, all else on standard error.

With `--json` standard output carries exactly one document, an error's included.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from containers.errors import OutriderError
from orchestrator.errors import exit_code
from orchestrator.weights import meter

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

GIB = 2**30
MIB = 2**20
_CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "\N{REPLACEMENT CHARACTER}")
"""All but tab and line feed."""


def print_json(document: object) -> None:
    """The one document of a command with `--json`."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def plain(text: str) -> str:
    """Without control characters, which drive a terminal: a hub, a registry or an engine may have said it."""
    return text.translate(_CONTROLS)


def say(text: str) -> None:
    """A line of a person's answer, on standard output. Plain: no markup is read in it."""
    sys.stdout.write(plain(text) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A line beside the answer, on standard error."""
    sys.stderr.write(plain(text) + "\n")
    sys.stderr.flush()


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Rows under headings; `empty` is said, on standard error, when there are none."""
    if not rows:
        note(empty)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, no_wrap=heading not in {"DETAIL", "TEXT", "WHY"}, overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    _console(sys.stdout.isatty()).print(table)


def _console(terminal: bool, *, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, width=None if terminal else 400)


class Ticker:
    """Shows how far something is: one changing line on a terminal, a line a step otherwise."""

    def __init__(self, status: Status | None) -> None:
        self._status = status
        self._last: str | None = None

    def update(self, step: str, tail: str = "") -> None:
        """`step` is what happens; `tail` (a percentage, seconds) changes too often for a log."""
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(plain(f"{step}{tail}")))
        elif step != self._last:
            note(step)
        self._last = step

    def done(self, text: str) -> None:
        """A line that stays."""
        if self._status is not None:
            from rich.text import Text

            self._status.console.print(Text(plain(text)))
        elif text != self._last:
            note(text)
        self._last = text


@contextmanager
def ticker(first: str) -> Iterator[Ticker]:
    """A `Ticker` for the length of a `with`."""
    if not sys.stderr.isatty():
        yield Ticker(None)
        return
    from rich.text import Text

    with _console(True, stderr=True).status(Text(first)) as status:
        yield Ticker(status)


def print_error(error: OutriderError, *, as_json: bool) -> int:
    """Render an error; its exit code. A traceback shows only with OUTRIDER_DEBUG=1."""
    if os.environ.get("OUTRIDER_DEBUG") == "1":
        traceback.print_exception(error)
    problems = error.evidence.get("problems")
    if isinstance(problems, list) and problems:
        for problem in problems:
            _print_problem(error.code, problem)
    else:
        note(f"error[{error.code}]: {error.detail}")
        if error.hint:
            note(f"hint: {error.hint}")
    code = exit_code(error)
    if as_json:
        print_json({"error": problem_document(error), "exit_code": code})
    return code


def problem_document(error: OutriderError) -> dict[str, object]:
    """An error as JSON, with the names of the API's problem documents."""
    return {
        "code": error.code,
        "detail": error.detail,
        "hint": error.hint,
        "retryable": error.retryable,
        "evidence": error.evidence,
    }


def _print_problem(code: str, problem: Mapping[str, Any]) -> None:
    where = [str(problem[part]) for part in ("file", "key") if problem.get(part)]
    note(f"error[{code}]: {': '.join([*where, str(problem.get('detail', ''))])}")
    if problem.get("hint"):
        note(f"hint: {problem['hint']}")


def clock_time(at: float) -> str:
    """Unix seconds as local date and time."""
    return dt.datetime.fromtimestamp(at, tz=dt.UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float) -> str:
    """Seconds for people: 4 s, 2 min 5 s, 3 h 20 min, 5 d 2 h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def after(seconds: float) -> str:
    """When something happens that many seconds from now."""
    return f"in {duration(seconds)}" if seconds >= 1 else "at once"


def size(count: int | None) -> str:
    """Bytes of memory for people; unknown is a dash. Files are `amount`."""
    if count is None:
        return "-"
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / MIB:.0f} MiB" if count >= MIB else f"{count} B"


def amount(count: int | None) -> str:
    """Bytes of files and images, as hubs and registries count them; unknown is a dash. Memory is `size`."""
    return "-" if count is None else meter.amount(count)

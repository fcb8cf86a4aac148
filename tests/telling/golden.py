"""What `outrider why` says after a fault, against a text that a person has read: `golden/<fault>.txt`.

End the test of a fault with::

    told(stack, "plain", "01-killed-idle")              # a `tests.stack.stack.Stack`
    told(world, "m", "08-memory-held")                  # a `tests.daemon.world.World`

and run it once with OUTRIDER_WRITE_GOLDEN=1, which writes the text; then read it as the machine's owner would at
three in the morning. If it does not tell what happened, from which evidence and what was done, the journal entries
are what to mend (`Steps.emit`, `Journal.emit`): an entry a decision, a plain sentence, numbers as evidence, a limit
under the number's name with `_limit` behind it. `orchestrator/telling/evidence.py` says how names of evidence are told.

So that a text is the same on every machine and at every speed, what differs is put in its place: TIME, SIZE, N, ID,
PATH; exit codes and XIDs stay. What repeats is one line here (`times` is not compared). Entries that may come and
need not are named in `without` (codes, `*` allowed), words that differ in `words` (a pattern to what stands for it).
Take the text at a moment when nothing goes on: ready again, parked, or stopped.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from orchestrator.telling.story import Entry, tell
from orchestrator.telling.text import lines
from tests.daemon.world import World
from tests.stack.stack import Stack
from tests.waiting import until_sync

FOLDER = Path(__file__).parent / "golden"
WRITE = "OUTRIDER_WRITE_GOLDEN"
QUIET = 2.0

_AMOUNT = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_PLACES: tuple[tuple[str, str], ...] = (
    (r"(?m)^  (?:just now|\d+ (?:s|min|h|d) ago) +(?=[?!>+-] )", "  "),  # the column of times
    (r"(its last words: ).*", r"\1WORDS"),
    (r", and not for want of memory", ""),  # where the engine's control group could still be read
    (r"\bsha256:[0-9a-f]+", "ID"),
    (r"\boutrider-[0-9a-f]{8}-\S+-\d+-[0-9a-f]{4}\b", "CONTAINER"),
    (r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", "ID"),
    (r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", "GPU"),
    (r"(?<![\w.])/(?:[\w.@+-]+/)*[\w.@+-]+", "PATH"),
    (r"\bcli:\w+", "cli:USER"),
    (r"(?m)^ {15,}(?=\S)", "      "),  # what stands under an entry
    (r"\bOutrider \S+ on \S+", "Outrider VERSION on HOST"),
    (r"\b(exit code|XID|Xid|signal|HTTP) (\d+)", r"\1 <\2>"),
    (rf"{_AMOUNT} (?:d {_AMOUNT} h|h {_AMOUNT} min|min {_AMOUNT} s|ms\b|s\b|min\b|h\b|d\b)", "TIME"),
    (rf"{_AMOUNT} (?:bytes|B|[kKMGT]i?B)\b", "SIZE"),
    (r"\b(?:in TIME|at once)\b", "soon"),
    (r"\b(?:TIME ago|just now)\b", "some time ago"),
    (rf"(?<![\w.<]){_AMOUNT}(?![\w>])", "N"),
    (r"(?<=\w-)\d+\b", "N"),
    (r"<(\d+)>", r"\1"),
)


def told(
    where: Stack | World,
    deployment: str,
    fault: str,
    *,
    without: Collection[str] = (),
    words: Mapping[str, str] | None = None,
    since_s: float | None = None,
) -> str:
    """Compare the story with the golden text of this fault; what a person would have read."""
    story = _story(where, deployment, since_s)
    read = "\n".join(lines(story)) + "\n"
    text = normal(story, without, words or {})
    file = FOLDER / f"{fault}.txt"
    if os.environ.get(WRITE) == "1":
        FOLDER.mkdir(exist_ok=True)
        file.write_text(text)
        return read
    wanted = file.read_text() if file.exists() else ""
    if text != wanted:
        diff = "".join(difflib.unified_diff(wanted.splitlines(True), text.splitlines(True), str(file), "now"))
        codes = " ".join(beat["code"] for beat in story["beats"])
        raise AssertionError(f"{diff}\ncodes: {codes}\n\n{read}\n{WRITE}=1 writes {file.name} anew")
    return read


def quiet(stack: Stack, deployment: str) -> Callable[[], float]:
    """Wait until nothing was told of it for a while; what it gives says since when, for `since_s`: a story that
    begins here, however soon the next entry comes and however late it is asked for."""

    def silent() -> bool:
        beats = _story(stack, deployment, 1e6)["beats"]
        return all(min(beat["ago_s"], beat["last_ago_s"] or beat["ago_s"]) > QUIET for beat in beats)

    until_sync(silent, 60, "nothing more is told")
    begun = time.monotonic()
    return lambda: time.monotonic() - begun + QUIET / 2


def _story(where: Stack | World, deployment: str, since_s: float | None) -> Any:
    if isinstance(where, Stack):
        since = "" if since_s is None else f"?since_s={since_s}"
        return where.get(f"/api/v1/deployments/{deployment}/why{since}")
    journal, clock = where.journal, where.clock
    entries = [Entry(e, clock.now() - at) for e, at in zip(journal._recent, journal._moments, strict=True)]
    story = tell(where.actor.view(), entries, where.issues.list(), since_s=since_s)
    return json.loads(json.dumps(dataclasses.asdict(story)))


def _once(beats: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What stood apart only by an entry that is left out is one beat, as it is where that entry did not come."""
    found: list[dict[str, Any]] = []
    for beat in beats:
        if found and all(found[-1][key] == beat[key] for key in ("code", "part", "text")):
            found.pop()
        found.append({**beat, "times": 1})
    return found


def normal(story: Mapping[str, Any], without: Collection[str] = (), words: Mapping[str, str] | None = None) -> str:
    """The story's text without what differs from machine to machine."""
    beats = _once(b for b in story["beats"] if not any(fnmatch(b["code"], pattern) for pattern in without))
    issues = [issue for issue in story["issues"] if not any(fnmatch(issue["code"], pattern) for pattern in without)]
    told_once = {**story, "beats": beats, "issues": issues, "left_out": 0, "earlier": 0}
    text = "\n".join(lines(told_once)) + "\n"
    for pattern, place in (*(words or {}).items(), *_PLACES):
        text = re.sub(pattern, place, text)
    return text

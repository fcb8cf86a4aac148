"""A story as lines for a terminal, from the JSON that the API gives. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.telling.amounts import ago, count

_MARKS = {"asked": "?", "trouble": "!", "found": "-", "done": ">", "well": "+"}
"""One sign a line, for eyes that run down the page: asked, trouble, found, done by Outrider, serves."""
_WIDTH = 12
_IN_HEADLINE = frozenset({"keeps_failing"})
"""Issues that the first line says already."""


def lines(story: Mapping[str, Any]) -> Iterator[str]:
    """The story. Nothing in it is cut: a terminal wraps."""
    yield story["now"]
    if story["paused_by"]:
        yield f"Paused by {story['paused_by']}."
    yield ""
    yield "What happened:"
    if story["earlier"]:
        yield f"  ({count(story['earlier'], 'earlier entry', 'earlier entries')}: --since 7d tells more)"
    beats = story["beats"]
    if not beats:
        yield "  nothing that the journal knows of"
    cut_after = 10 if story["left_out"] else None
    for index, beat in enumerate(beats):
        if index == cut_after:
            yield f"  ... {count(story['left_out'], 'entry', 'entries')} left out; `outrider events` has all"
        yield from _beat(beat)
    yield ""
    yield from _list("What comes next:", story["next"])
    issues = [f"[{issue['code']}] {issue['text']}" for issue in story["issues"] if issue["code"] not in _IN_HEADLINE]
    if issues:
        yield ""
        yield from _list("Look at:", issues)
    if story["advice"]:
        yield ""
        yield from _list("What you can do:", story["advice"])


def _beat(beat: Mapping[str, Any]) -> Iterator[str]:
    again = ""
    if beat["times"] > 1:
        again = f" ({beat['times']} times, last {ago(beat['last_ago_s'])})"
    yield f"  {ago(beat['ago_s']):<{_WIDTH}} {_MARKS.get(beat['part'], '-')} {beat['text']}{again}"
    numbers = [item["text"] for item in beat["seen"] if item["name"] != "log"]
    if numbers:
        yield f"  {'':<{_WIDTH}}   seen: {'; '.join(numbers)}"
    for item in beat["seen"]:
        if item["name"] == "log":
            yield f"  {'':<{_WIDTH}}   {item['text']}"


def _list(heading: str, items: Any) -> Iterator[str]:
    yield heading
    for item in items:
        yield f"  {item}"

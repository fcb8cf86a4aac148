"""A deployment's story, made of its journal. Pure: entries and the present state in, a value out.

What repeats is told once, with how often and when last: an engine that failed two hundred times has a short story.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from orchestrator.takeover.course import TAKEN_BACK
from orchestrator.telling.evidence import Seen, seen
from orchestrator.telling.headline import headline
from orchestrator.telling.next_steps import advice, what_comes
from orchestrator.telling.parts import Part, part
from orchestrator.telling.words import sentence, told_by_sentence
from orchestrator.views import DeploymentView, Desired, Event, Issue, State, Why

FIRST, LAST = 10, 40
"""So many entries of a long story's beginning and end are told."""
LONGEST_CYCLE = 12
"""Entries of one attempt, at most, that is known again when it repeats."""
EXPECTED = frozenset({"canary_passed"})
"""Entries that went as they should, and that the next one (`ready`) says in its own words."""
_HOST_KINDS = frozenset({"daemon", "podman", "device", "guard", "adoption"})
"""Entries about the host that are part of every deployment's story."""
_FOR_ALL = frozenset({"paused", "resumed"})
"""Codes of what a person may say of all deployments at once."""
_TOLD_ANYWAY = frozenset({"parked", "not_coming_up", "drifted", "paused_long"})
"""Issues that say in a list what the story says itself."""
_STANDING = frozenset({"memory_above_plan", "gpu_memory_held"})
"""Issues that a story lists while they hold: they come with a round of the rules, or with an entry that says the
same."""
_OF_THE_HOST = frozenset({"podman_away", "gateway_away"})
"""Issues of the host that are everybody's."""
_BEGINNINGS = frozenset({"desired_running", "desired_stopped", "desired_on_demand", "start_forced"})
_DIGITS = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Entry:
    """A journal entry, and how long ago it was (seconds; monotonic where it was this daemon that wrote it)."""

    event: Event
    ago_s: float


@dataclass(frozen=True, slots=True)
class Beat:
    """One thing that happened, once or several times. `ago_s` is the first time, `last_ago_s` the last; `seen` is
    the evidence of the last."""

    sequence: int
    at: float
    ago_s: float
    kind: str
    code: str
    part: Part
    text: str
    seen: tuple[Seen, ...] = ()
    times: int = 1
    last_ago_s: float | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """What `outrider why` tells. `now` is one or two sentences, `left_out` how many entries in the middle are not
    told, `earlier` how many there are before the story begins."""

    deployment: str
    host: str
    desired: Desired
    state: State
    paused_by: str | None
    reason: Why | None
    now: str
    beats: tuple[Beat, ...]
    left_out: int
    earlier: int
    next: tuple[str, ...]
    advice: tuple[str, ...]
    issues: tuple[Issue, ...]


def tell(
    view: DeploymentView,
    entries: Sequence[Entry],
    issues: Sequence[Issue] = (),
    *,
    since_s: float | None = None,
) -> Story:
    """The story of a deployment. `entries` are the journal's, oldest first, of any deployment; without `since_s` it
    begins where a person last said what they want."""
    name = view.deployment
    mine = [entry for entry in entries if _about(entry.event, name) and entry.event.code not in EXPECTED]
    begins = _beginning(mine, since_s)
    told = [beat(entry) for entry in mine[begins:]]
    folded = fold(told)
    cut = max(0, len(folded) - FIRST - LAST)
    beats = folded if not cut else folded[:FIRST] + folded[-LAST:]
    open_issues = tuple(issue for issue in issues if _concerns(issue, name))
    return Story(
        deployment=name,
        host=view.host,
        desired=view.desired,
        state=view.state,
        paused_by=view.paused_by,
        reason=view.reason,
        now=headline(view, [(b.part, b.text, b.ago_s) for b in told]),
        beats=tuple(beats),
        left_out=cut,
        earlier=sum(1 for entry in mine[:begins] if entry.event.deployment == name),
        next=tuple(what_comes(view)),
        advice=tuple(advice(view, open_issues)),
        issues=open_issues,
    )


def _concerns(issue: Issue, name: str) -> bool:
    return issue.code in _OF_THE_HOST or (name in (issue.subject, issue.deployment) and issue.code not in _TOLD_ANYWAY)


def _about(event: Event, name: str) -> bool:
    if event.kind == "issue" and event.code.removesuffix("_over") in _TOLD_ANYWAY | _STANDING:
        return False
    if event.deployment is not None:
        return event.deployment == name
    return event.kind in _HOST_KINDS or event.code in _FOR_ALL or event.evidence.get("subject") == name


def _beginning(mine: Sequence[Entry], since_s: float | None) -> int:
    if since_s is not None:
        return next((i for i, entry in enumerate(mine) if entry.ago_s <= since_s), len(mine))
    told = (e.event.code in _BEGINNINGS and TAKEN_BACK not in str(e.event.evidence.get("by")) for e in mine)
    wishes = [i for i, begins in enumerate(told) if begins]  # what took a start back is its end, no beginning
    return wishes[-1] if wishes else 0


def beat(entry: Entry) -> Beat:
    """One entry as it is told."""
    event = entry.event
    said = told_by_sentence(event)
    return Beat(
        sequence=event.sequence,
        at=event.at,
        ago_s=round(entry.ago_s, 3),
        kind=event.kind,
        code=event.code,
        part=part(event),
        text=sentence(event),
        seen=seen({name: value for name, value in event.evidence.items() if name not in said}),
    )


def fold(beats: Iterable[Beat]) -> list[Beat]:
    """What repeats, one entry or a whole attempt of several, told once."""
    told: list[Beat] = []
    for one in beats:
        told.append(one)
        for length in range(1, min(LONGEST_CYCLE, len(told) // 2) + 1):
            new, before = told[-length:], told[-2 * length : -length]
            if all(_alike(a, b) for a, b in zip(before, new, strict=True)):
                told[-2 * length :] = [_both(a, b) for a, b in zip(before, new, strict=True)]
                break
    return told


def _alike(a: Beat, b: Beat) -> bool:
    return (a.kind, a.code, _DIGITS.sub("", a.text)) == (b.kind, b.code, _DIGITS.sub("", b.text))


def _both(a: Beat, b: Beat) -> Beat:
    last = b.last_ago_s if b.last_ago_s is not None else b.ago_s
    return replace(a, times=a.times + b.times, last_ago_s=last, seen=b.seen)

"""In which words an entry of the journal is told. Pure.

An entry's own sentence is what is told, without the deployment's name before it; here stand the few that are better
said otherwise, and which evidence a sentence says already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestrator.telling.amounts import duration, size
from orchestrator.views import Event

OURSELVES = "outrider"
"""Who acts when nobody asked."""
ENDINGS = {
    "failed": "after the failure",
    "wedged": "nothing holds it any more",
    "desired_stopped": "as asked",
    "restart": "for the restart",
    "superseded": "another engine serves now",
    "plan_changed": "the plan has changed",
    "daemon_ends": "the daemon ended with its engines",
    "stop_unfinished": "the stop that was begun is finished",
    "idle_unload": "nobody used it",
    "evicted": "to make room",
    "switch": "for the switch",
    "waiting_for_turn": "others start first",
    "suspected_host_crash": "the host went down while it was loaded before",
    "waiting_device": "what it needs of the host is not there",
}
"""What `stopped` gives as its reason, in words."""


_FOUND_REASONS = {
    "not_running": "it no longer ran",
    "conmon_dead": "nothing watched over it any more (its conmon was gone), so its end would not have been seen",
    "plan_unreadable": "its plan could not be read from its labels",
    "key_lost": "its key is lost, so nobody could talk to it",
    "not_defined": "no model of this name is defined any more",
    "desired_stopped": "a person wants it stopped",
    "superseded": "a newer engine of the same model runs",
    "not_adopted": "it could not be watched",
    "belongs_to_no_engine": "no engine that is known had it",
}
"""Why a new daemon removes what a former one had left."""


def _split(event: Event, mark: str) -> tuple[str, str]:
    """What stands before and after a mark in an entry's text."""
    before, _, behind = event.text.partition(mark)
    return before, behind


def _method(text: str) -> str:
    """A runtime and its method in words."""
    return text.replace(" with none (0 tokens)", " without speculation").removesuffix(" with none") + (
        " without speculation" if text.endswith(" with none") else ""
    )


def _stopped(event: Event) -> str:
    name, reason = _split(event, " is gone (")
    reason = reason.rstrip(")")
    return f"{name} is gone, its memory and files too ({ENDINGS.get(reason, reason.replace('_', ' '))})"


def _starting(event: Event) -> str:
    name, what = _split(event, ": ")
    return f"{name} is started: {_method(what)}"


def _proving(event: Event) -> str:
    name, what = _split(event, ": ")
    return f"{name}, which was found on its way, is brought up to its end: {_method(what)}"


def _ready(event: Event) -> str:
    seconds = event.evidence.get("seconds")
    took = f" after {duration(seconds)}" if isinstance(seconds, int | float) else ""
    return f"{_split(event, ' is ready')[0]} answered correctly and serves{took}"


def _planned(event: Event) -> str:
    memory = event.evidence.get("expected_bytes")
    room = f"; {size(memory)} of memory expected" if isinstance(memory, int | float) else ""
    cause, by = event.evidence.get("cause"), event.evidence.get("by")
    whose = "" if by == OURSELVES else f" by {by}"
    why = f", because of {str(cause).replace('_', ' ')}{whose}" if cause not in (None, "no_plan") else ""
    return f"the plan is {_method(_bare(event))}{room}{why}"


def _drained(event: Event) -> str:
    name, _ = _split(event, ": ")
    return f"{name} takes no more requests, and those it had are answered"


def _desired(event: Event) -> str:
    by = event.evidence.get("by", "somebody")
    wanted = {"desired_running": "it to run", "desired_stopped": "it stopped", "desired_on_demand": "it on demand"}
    return f"{by} asked for {wanted[event.code]}"


def _daemon_started(event: Event) -> str:
    return f"a daemon started: {event.text}"


def _adopted(event: Event) -> str:
    """A daemon finds what a former one had left."""
    reason, generation = str(event.evidence.get("reason", "")), event.evidence.get("generation")
    name = "an engine" if generation is None else f"{event.deployment}-{generation}"
    match event.code:
        case "adopt":
            return f"the daemon took over {name}, which a former one had left running: same container, nothing stopped"
        case "prove":
            return f"the daemon found {name} on its way, as a former one had left it, and goes on with it"
        case "remove":
            return f"the daemon removed {name}, which a former one had left: {_FOUND_REASONS.get(reason, reason)}"
        case _:
            return _bare(event)


_SENTENCES: Mapping[str, Callable[[Event], str]] = {
    "starting": _starting,
    "proving_again": _proving,
    "ready": _ready,
    "planned": _planned,
    "stopped": _stopped,
    "drained": _drained,
    "desired_running": _desired,
    "desired_stopped": _desired,
    "desired_on_demand": _desired,
}
_DRAFTS = frozenset({"drafted", "accepted", "engine_says_speculating"})
"""Says nothing of an engine that is not meant to draft."""
_ADOPTION = frozenset({"reason", "state", "alive"})
_NATS = frozenset({"nats", "nats_calibrated", "nats_limit", "below_likeliest", "below_likeliest_limit"})
_TOKENS = frozenset({"leading", "leading_needed", "long", "long_leading", "pair_leading"})
_JUDGED = _NATS | _TOKENS | {"reason", "begins_right", "begins_right_needed", "seconds", "whole", "refuted"}
"""All that a canary looks at; the sentence has what decided. `outrider events --json` has the rest."""
_HOLDERS = frozenset({"holders", "pids", "device", "devices", "reason", "had_bytes", "looks"})
_IN_SENTENCE: Mapping[str, frozenset[str]] = {
    "ready": frozenset({"seconds", "method"}),
    "planned": frozenset({"method", "expected_bytes"}),
    "memory_free": frozenset({"after_s"}),
    "stop_escalated": frozenset({"seconds"}),
    "combination_refuted": frozenset({"reason", "driver", "image"}),
    "answers_broken_off": frozenset({"broken_off"}),
    "asked_again": frozenset({"asked_again"}),
    "canary_failed": _JUDGED,
    "wedged": _HOLDERS,
    "gpu_memory_held": _HOLDERS,
}
"""Evidence that the sentence has already, by the entry's code, or by that of the error which it tells."""


def sentence(event: Event) -> str:
    """What an entry says, for a person who reads the story of its deployment."""
    if event.kind == "adoption":
        return _adopted(event)
    if event.kind == "daemon" and event.code == "started":
        return _daemon_started(event)
    own = _SENTENCES.get(event.code)
    return own(event) if own is not None else _bare(event)


def told_by_sentence(event: Event) -> frozenset[str]:
    """Names of evidence that need not be said again."""
    if event.kind == "adoption":
        return _ADOPTION
    told = _IN_SENTENCE.get(event.code, frozenset()) | _IN_SENTENCE.get(str(event.evidence.get("code")), frozenset())
    return told | _DRAFTS if event.evidence.get("method") == "none" else told


def _bare(event: Event) -> str:
    """The entry's text without the deployment's name before it."""
    return event.text.removeprefix(f"{event.deployment}: ") if event.deployment else event.text

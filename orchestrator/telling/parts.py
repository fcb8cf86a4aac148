"""Which part each entry of the journal plays in a story. Pure.

`asked` by a person, `trouble`, `found` (something seen that is no trouble), `done` by Outrider, `well` (it serves).
Every code that the journal is given stands here (`tests/telling/test_words.py` looks for them in the source); one of
another version is told as done.
"""

from __future__ import annotations

from enum import StrEnum

from orchestrator.views import Event


class Part(StrEnum):
    """The part that an entry plays in a story."""

    ASKED = "asked"
    TROUBLE = "trouble"
    FOUND = "found"
    DONE = "done"
    WELL = "well"


_CODES = {
    Part.ASKED: """
        desired_running desired_stopped desired_on_demand start_forced restart drain paused resumed
        """,
    Part.TROUBLE: """
        failed engine_ended waiting_device plan_failed drain_cut_short podman_unreachable database_set_aside not_noted
        not_removed engine_stopped engine_not_gone not_killed held no_other_gpu not_ready network_path_broken
        invariant_broken image_pull_failed pull_stopped
        """,
    Part.FOUND: """
        busy engine_stalled engine_unresponsive would_restart would_retry_same would_next_rung would_drop would_resume
        would_start call_withheld unload_withheld unload_called_off waiting_for_room switch_too_costly load_extended
        canary_passed canary_left_out combination_refuted draft_clamped gpu_found gpu_unwell gpu_well
        daemon_stopped host_slept clock_set answers_broken_off asked_again
        """,
    Part.DONE: """
        started ended adopt prove remove planned plan_unchanged starting proving_again starting_in_turn start_aborted
        drained stopped stop_escalated left_over_killed memory_free engine_gone other_gpu climbed_down climbed_up
        switch_started switch_taken_back speculation_dropped speculation_resumed
        called call_forgotten idle_unload evicted reloaded pruned removed weights_pulled weights_moved
        image_pinned image_unpinned image_removed image_pulled image_pull_started image_pull_cancelled image_pull_again
        image_place_passed image_leftovers_swept
        """,
    Part.WELL: """
        ready ready_again switch_done podman_back held_over
        """,
}
PARTS = {code: part for part, codes in _CODES.items() for code in codes.split()}
_KINDS = {"device": Part.FOUND, "health": Part.FOUND, "canary": Part.FOUND, "desired": Part.ASKED}
"""What the driver says has as many codes as drivers have words; of the others, those of another version."""
_ERRORS = frozenset({"podman", "config", "weights"})
"""Kinds that give an error's own code."""


def part(event: Event) -> Part:
    """The part of an entry."""
    if event.kind == "issue":
        return Part.WELL if event.code.endswith("_over") else Part.TROUBLE
    known = PARTS.get(event.code) or _KINDS.get(event.kind)
    if known is not None:
        return known
    return Part.TROUBLE if event.kind in _ERRORS else Part.DONE

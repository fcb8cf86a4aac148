"""The rules of health, case by case: for each engine that is to be found its twin that is to be left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hosts.work import Work
from orchestrator.health import live, ready
from orchestrator.health.excuses import COMPILERS, FIRST_USE, Looked, doing
from orchestrator.health.live import NOTHING, Doing, Live, Question
from orchestrator.health.patience import (
    FACTOR,
    SLOWEST,
    Ahead,
    Rates,
    answer_limit,
    canary_limit,
    measured,
    prefill_s,
    queues,
    stall_limit,
)
from orchestrator.health.results import Outcome, Probe, Result, Results
from orchestrator.health.signals import Asked, Delivery, Kernel, Seen, Witness, signs
from orchestrator.runtimes import ADAPTERS
from orchestrator.runtimes.llama_cpp.slots import progress

T, NOW = 60.0, 1000.0
GPU = Rates(200.0, 4.0)


def seen(**more: object) -> Seen:
    """An engine that has been watched for long, of which nothing is said but `more`."""
    base = Seen(now=NOW, since=0.0, limit=T, answer_limit=T, patience=10.0)
    return replace(base, **more)  # type: ignore[arg-type]


def stream(ago: float, *, data: float | None = None, **more: int) -> Delivery:
    """A stream that was sent `ago` seconds before now; data last came `data` seconds before."""
    counts: dict[str, int] = {"flowing": 1, **more}
    given = None if data is None else NOW - data
    one = Delivery(in_flight=sum(counts.values()), since=NOW - ago, data_at=given)
    return replace(one, **counts)  # type: ignore[arg-type]


OUT = Asked(pending=NOW - 61, ok_at=NOW - 61)
ANSWERS = Asked(ok_at=NOW)
CASES: dict[str, tuple[Seen, Live]] = {
    "a wedge: no data, and its slots do not answer": (seen(delivery=stream(61, data=61), progress=OUT), Live.STALLED),
    "the same one second before T_stall": (
        seen(delivery=stream(59, data=59), progress=Asked(pending=NOW - 59, ok_at=NOW - 59)),
        Live.LIVE,
    ),
    "a GPU that hangs: slots answer and stand still": (
        seen(delivery=stream(61, data=61), progress=ANSWERS, moved_at=NOW - 61),
        Live.STALLED,
    ),
    "a livelock: counters move, clients and a token of ours get nothing": (
        seen(delivery=stream(61, data=61), progress=ANSWERS, moved_at=NOW, canary=Asked(pending=NOW - 30)),
        Live.STALLED,
    ),
    "stopped, with nobody asking for anything": (
        seen(progress=OUT, canary=Asked(pending=NOW - 30, ok_at=NOW - 61), kernel=Kernel(stopped_since=NOW - 61)),
        Live.STALLED,
    ),
    "idle and wedged: neither its slots nor a token of ours come": (
        seen(progress=OUT, canary=Asked(pending=NOW - 30, ok_at=NOW - 61)),
        Live.STALLED,
    ),
    "a deadlock: no data, no CPU": (
        seen(delivery=stream(61, data=61), progress=ANSWERS, moved_at=NOW, kernel=Kernel(idle_since=NOW - 61)),
        Live.STALLED,
    ),
    # one witness is never enough
    "only the gateway": (seen(delivery=stream(600, data=600), progress=ANSWERS, moved_at=NOW), Live.SUSPECT),
    "only its own word": (seen(progress=Asked(pending=NOW - 600, ok_at=NOW - 600)), Live.SUSPECT),
    "only a token of ours": (seen(progress=ANSWERS, canary=Asked(pending=NOW - 600, ok_at=NOW - 600)), Live.SUSPECT),
    "only the kernel, stopped": (seen(progress=ANSWERS, kernel=Kernel(stopped_since=NOW - 600)), Live.SUSPECT),
    # what is well, however it looks
    "data came a second ago, and everything else says no": (
        seen(
            delivery=stream(600, data=1),
            progress=OUT,
            canary=Asked(pending=NOW - 500),
            kernel=Kernel(stopped_since=NOW - 500),
        ),
        Live.LIVE,
    ),
    "a token of ours came a second ago": (
        seen(delivery=stream(600), progress=OUT, canary=Asked(ok_at=NOW - 1)),
        Live.LIVE,
    ),
    "the daemon looks again since ten seconds only": (
        seen(since=NOW - 10, delivery=stream(600, data=600), progress=OUT, canary=Asked(pending=NOW - 600)),
        Live.LIVE,
    ),
    "nobody asks for anything, and its counters stand still": (seen(progress=ANSWERS, moved_at=NOW - 5000), Live.LIVE),
    "nobody asks for anything, and it uses no CPU": (seen(kernel=Kernel(idle_since=0.0)), Live.LIVE),
    "a runtime whose counters are written at the end": (
        seen(delivery=stream(600, data=600), progress=ANSWERS, moved_at=None),
        Live.SUSPECT,
    ),
    "clients that do not read": (
        seen(delivery=Delivery(3, since=None, data_at=NOW - 600), progress=ANSWERS, moved_at=NOW - 600),
        Live.LIVE,
    ),
    "clients that read slowly have both slots, and others wait for one": (
        seen(
            parallel=2,
            delivery=stream(600, flowing=0, awaiting=3, paused=2, data=600),
            progress=ANSWERS,
            moved_at=NOW - 600,
            canary=Asked(pending=NOW - 500),
            kernel=Kernel(idle_since=NOW - 600),
        ),
        Live.LIVE,
    ),
    "one of two slots is a slow client's, and the other does nothing": (
        seen(
            parallel=2,
            delivery=stream(600, flowing=0, awaiting=3, paused=1, data=600),
            progress=ANSWERS,
            moved_at=NOW - 600,
        ),
        Live.STALLED,
    ),
    "a gateway that was not heard of": (seen(delivery=None, progress=ANSWERS, moved_at=NOW - 600), Live.LIVE),
    "an answer in one piece, and time for it": (
        seen(delivery=stream(500, flowing=0, answers=1), answer_limit=900.0, progress=ANSWERS, moved_at=NOW),
        Live.LIVE,
    ),
    "a hang under an answer in one piece: its slots moved with it, and stand still": (
        seen(delivery=stream(500, flowing=0, answers=1), answer_limit=9000.0, progress=ANSWERS, moved_at=NOW - 61),
        Live.STALLED,
    ),
    "an answer in one piece, with which its slots have not moved yet": (
        seen(delivery=stream(500, flowing=0, answers=1), answer_limit=9000.0, progress=ANSWERS, moved_at=NOW - 501),
        Live.SUSPECT,
    ),
    "a stream that waits behind an answer in one piece": (
        seen(delivery=stream(500, flowing=0, answers=1, awaiting=1), answer_limit=900.0, progress=ANSWERS),
        Live.LIVE,
    ),
    "a long prompt": (
        seen(limit=900.0, delivery=stream(500, flowing=0, awaiting=1), progress=ANSWERS, moved_at=NOW - 500),
        Live.LIVE,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_whether_an_engine_is_live(case: str) -> None:
    question, verdict = CASES[case]
    decision = live.decide(Question(question, T))
    assert decision.action is verdict, decision
    holding = {sign.witness for sign in signs(question) if sign.holds}
    if verdict is Live.STALLED:
        assert decision.reason == "engine_stalled"
        assert len(holding) >= 2
        assert {s["sign"] for s in decision.evidence["signs"]}  # type: ignore[attr-defined]
    if verdict is Live.SUSPECT:
        assert [decision.reason] == [f"only_{w.value}" for w in holding]


def test_two_signs_of_one_witness_are_one() -> None:
    kernel = signs(seen(kernel=Kernel(NOW - 99, NOW - 99), delivery=stream(99)))
    assert [s.witness for s in kernel].count(Witness.KERNEL) == 1


@pytest.mark.parametrize(
    ("refused", "since", "data", "verdict"),
    [
        (3, 61.0, None, Live.REFUSES),
        (2, 61.0, None, Live.LIVE),
        (9, 59.0, None, Live.LIVE),
        (9, 600.0, 1.0, Live.LIVE),  # its streams flow: what counts is what clients get
    ],
)
def test_one_that_refuses_connections(refused: int, since: float, data: float | None, verdict: Live) -> None:
    asked = Asked(ok_at=NOW - since, refused=refused, refused_since=NOW - since)
    question = seen(progress=asked, delivery=None if data is None else stream(900, data=data))
    assert live.decide(Question(question, T)).action is verdict


STALLS = seen(delivery=stream(105, data=105), progress=Asked(pending=NOW - 105, ok_at=NOW - 105))


@pytest.mark.parametrize(
    ("excuse", "verdict"),
    [
        (NOTHING, Live.STALLED),
        (Doing(NOW + 10, "compiling", 315.0), Live.BUSY),
        (Doing(NOW - 1, "compiling", 315.0), Live.STALLED),  # it was long ago
        (Doing(NOW + 10, "compiling", 100.0), Live.STALLED),  # nothing helps for ever
    ],
)
def test_what_it_does_besides_buys_it_time_within_bounds(excuse: Doing, verdict: Live) -> None:
    assert live.decide(Question(STALLS, T, excuse)).action is verdict


MIB = 1 << 20
NINJA, SPINS = {1: 0.0, 7: 5.0}, {1: 5.0}
"""Seconds of CPU since the look before, by process: a compiler beside the engine, and the engine alone."""


@pytest.mark.parametrize(
    ("cpu", "memory", "was", "served", "what"),
    [
        ({1: 0.0}, 0, {1}, True, ""),
        ({1: 0.0}, 50 * MIB, {1}, False, ""),  # memory alone
        # CPU alone is no excuse: a loop that spins, and a wait for a GPU that hangs, use it as well
        (SPINS, 0, {1}, True, ""),
        (SPINS, 0, {1}, False, ""),
        (SPINS, 3 * MIB, {1}, False, ""),  # what its server takes to answer us
        (NINJA, 0, {1, 7}, True, ""),  # a process that came lately, and spins
        (NINJA, 0, {1, 7}, False, ""),
        ({1: 5.0, 7: 0.0}, 50 * MIB, {1, 7}, True, ""),  # one that came lately and does nothing, while the engine spins
        # a compiler
        (SPINS, 50 * MIB, {1}, False, "first_use"),
        (SPINS, -50 * MIB, {1}, False, "first_use"),  # and gives its memory back
        (SPINS, 50 * MIB, {1}, True, ""),  # a loop that leaks
        (NINJA, 0, {1}, True, "compiling"),
        (NINJA, 50 * MIB, {1, 7}, True, "compiling"),
        ({1: 0.0, 7: 0.0}, 0, {1}, True, ""),  # a process that came and does nothing
    ],
)
def test_what_an_engine_is_seen_to_do(
    cpu: dict[int, float], memory: int, was: set[int], served: bool, what: str
) -> None:
    def look(at: float, spent: dict[int, float], resident: int, processes: set[int]) -> Looked:
        return Looked(at, Work(sum(spent.values()), 0, resident, frozenset((p, 1) for p in processes), False, spent))

    before, now = look(0, {}, 100 * MIB, was), look(5, cpu, 100 * MIB + memory, set(cpu))
    found = doing(before, now, limit=T, scale=1.0, served=served, born=frozenset({1}))
    assert found.what == what
    assert found.bound == {"": 0.0, "first_use": FIRST_USE, "compiling": COMPILERS}[what]


@pytest.mark.parametrize(
    ("cpu", "read", "written", "what"),
    [
        (0.0, 50 * MIB, 0, "reading_from_disk"),
        (0.0, 1000, 0, ""),
        (5.0, 0, 4096, "compiling"),  # a new kernel, after a thousand others
        (5.0, 0, 0, ""),
        (0.0, 0, MIB, ""),
        (5.0, None, None, ""),  # nobody may know
    ],
)
def test_an_engine_that_reads_from_a_disk_or_writes_to_one(
    cpu: float, read: int | None, written: int | None, what: str
) -> None:
    one = frozenset({(1, 1)})
    before = Looked(0.0, Work(0.0, 0, 0, one, False, written_bytes=0))
    now = Looked(5.0, Work(cpu, read, 0, one, False, written_bytes=written))
    assert doing(before, now, limit=T, scale=1.0, served=True, born=frozenset({1})).what == what


# patience


@pytest.mark.parametrize(
    ("tokens", "limit"),
    [(0, 60.0), (100, 60.0), (2000, 60.0), (8000, 178.6), (100_000, 10655.3)],
)
def test_t_stall_grows_with_the_prompts_in_flight(tokens: int, limit: float) -> None:
    ahead = Ahead(prompts=tokens, longest=tokens)
    assert stall_limit(T, ahead, GPU) == pytest.approx(limit, abs=0.1)
    assert stall_limit(T, ahead, GPU) >= FACTOR * tokens / GPU.prefill, "the least: 3 x longest prompt / rate"


def test_an_answer_in_one_piece_may_take_what_it_says() -> None:
    short, unsaid = Ahead(answer=64, answers=1), Ahead(answer=None, answers=1)
    assert answer_limit(T, short, GPU, context=4096, parallel=1) == T
    assert answer_limit(T, unsaid, GPU, context=4096, parallel=1) == pytest.approx(3 * 4096 / 4.0)
    four = Ahead(answer=400, answers=4)
    assert answer_limit(T, four, GPU, context=4096, parallel=2) == pytest.approx(3 * 2 * 400 / 4.0), "they wait in turn"
    assert prefill_s(Ahead(), GPU) == 0


def test_a_rate_takes_enough_tokens() -> None:
    llama = next(a for a in ADAPTERS.values() if a.runtime.value == "llama.cpp")
    said = {"llamacpp:prompt_tokens_total": 3519.0, "llamacpp:prompt_seconds_total": 4.41149}
    assert measured(llama.prefilled(said)) == pytest.approx(797.69, abs=0.01), "as its own gauge said then"
    assert measured((10.0, 1.0)) is measured((100.0, 0.0)) is measured(None) is None
    vllm = next(a for a in ADAPTERS.values() if a.runtime.value == "vllm")
    cached = {
        "vllm:prompt_tokens_total": 1000.0,
        "vllm:prefix_cache_hits_total": 900.0,
        "vllm:request_prefill_time_seconds_sum": 1.0,
    }
    assert measured(vllm.prefilled(cached)) == 100.0, "what was in the cache was not computed"


# readiness, results


def test_one_error_is_none_and_two_are_not_ready() -> None:
    well = live.decide(Question(seen(), T))
    facts = ready.Facts(draining=False, live=well, errors=1, refused=0, delivers=False)
    assert ready.decide(facts).action is ready.Ready.READY
    assert ready.decide(replace(facts, errors=2)).action is ready.Ready.NOT_READY
    assert ready.decide(replace(facts, errors=9, delivers=True)).action is ready.Ready.READY


def test_a_probe_that_could_not_be_made_says_nothing() -> None:
    results = Results()
    results.asked("c", Probe.PROGRESS, 1.0)
    results.found("c", Probe.PROGRESS, Result(Outcome.OK, 2.0))
    results.asked("c", Probe.PROGRESS, 3.0)
    results.found("c", Probe.PROGRESS, Result(Outcome.UNKNOWN, 4.0))
    record = results.get("c", Probe.PROGRESS)
    assert record is not None
    assert (record.outcome, record.last_ok, record.first_asked, record.asked_at) == (Outcome.OK, 2.0, None, None)
    results.asked("c", Probe.PROGRESS, 5.0)
    results.found("c", Probe.PROGRESS, Result(Outcome.SILENT, 15.0))
    results.asked("c", Probe.PROGRESS, 16.0)
    record = results.get("c", Probe.PROGRESS)
    assert record is not None
    assert record.first_asked == 5.0, "silent since it was first asked in vain"
    assert results.get("another", Probe.PROGRESS) is None, "the next container begins anew"
    results.reset()
    assert results.get("c", Probe.PROGRESS) is None


# engines' own words


def test_what_slots_say() -> None:
    busy = b'[{"is_processing":true,"id_task":4,"n_prompt_tokens_processed":2048,"next_token":[{"n_decoded":7}]},{}]'
    found = progress(busy)
    assert (found.marks, found.running, found.free) == ((4, 2048, 7), 1, True)
    old = progress(b'[{"is_processing":true,"id_task":4}]')
    assert (old.marks, old.free) == (None, False), "an older build that does not say how far it is"
    assert progress(b"[]").marks == ()
    for garbage in (b"", b"{}", b"[1]", b"[" * 100_000):
        assert progress(garbage).marks is None


def test_gauges_are_no_progress_of_vllm() -> None:
    """They may read 0 while it is wedged (vllm #46811): only what grows counts."""
    vllm = next(a for a in ADAPTERS.values() if a.runtime.value == "vllm")
    text = b"vllm:num_requests_running %d\nvllm:iteration_tokens_total_count 5\nvllm:generation_tokens_total 9\n"
    assert vllm.parse_progress(text % 0).marks == vllm.parse_progress(text % 3).marks == (5, 9, 0)
    assert vllm.parse_progress(b"").marks is None


@pytest.mark.parametrize(
    ("free", "moved_s", "quiet_s", "stands_in_line"),
    [
        (False, 5.0, 60.0, True),
        (False, 5.0, 300.0, False),  # counters alone are believed for so long
        (False, 60.0, 60.0, False),
        (False, None, 60.0, False),
        (True, 5.0, 60.0, False),
        (None, 5.0, 60.0, False),
    ],
)
def test_a_token_that_would_only_stand_in_line(
    free: bool | None, moved_s: float | None, quiet_s: float, stands_in_line: bool
) -> None:
    assert queues(free=free, moved_s=moved_s, quiet_s=quiet_s, stall=T) is stands_in_line


@pytest.mark.parametrize(
    ("errors", "since", "data_at", "action"),
    [
        (3, NOW - T, None, Live.ERRORS),
        (2, NOW - T, None, Live.LIVE),
        (3, NOW - T + 1, None, Live.LIVE),
        (3, NOW - T, NOW - 1, Live.LIVE),
    ],
)
def test_errors_alone_end_an_engine_that_gives_nobody_anything(
    errors: int, since: float, data_at: float | None, action: Live
) -> None:
    seen = Seen(
        now=NOW,
        since=0.0,
        limit=T,
        answer_limit=T,
        patience=10.0,
        delivery=Delivery(in_flight=0, data_at=data_at),
        canary=Asked(pending=since, failed=errors),
    )
    found = live.decide(Question(seen, T))
    assert found.action.alive is (action is not Live.ERRORS)
    assert (found.reason == "answers_errors") is (action is Live.ERRORS)


@pytest.mark.parametrize(
    ("away", "since", "more", "live_still"),
    [
        (3, T, {"free": True}, False),
        (3, T, {"delivery": Delivery(in_flight=0)}, False),  # nobody wants anything of it
        (2, T, {"free": True}, True),
        (3, T - 1, {"free": True}, True),
        (3, T, {}, True),  # nobody knows whether it has room
        (3, T, {"free": False, "delivery": Delivery(in_flight=0)}, True),
        (99, 900.0, {"delivery": Delivery(in_flight=4)}, True),  # it may have too much to do
        (99, 900.0, {"free": True, "delivery": Delivery(in_flight=4, data_at=NOW - 1)}, True),
        (99, T, {"free": True, "answer_limit": 99.0, "delivery": Delivery(in_flight=1, answers=1)}, True),
    ],
)
def test_one_that_has_room_and_turns_everybody_away(
    away: int, since: float, more: dict[str, Any], live_still: bool
) -> None:
    found = live.decide(Question(seen(canary=Asked(turned_away=away, away_since=NOW - since), **more), T))
    assert found.action.alive is live_still
    if not live_still:
        assert (found.action, found.reason) == (Live.ERRORS, "turns_all_away")
        assert found.evidence == {"turned_away": away, "seconds": since, "limit_s": T}


def test_who_is_turned_away_is_counted_until_an_answer_comes() -> None:
    results = Results()
    for at in (1.0, 2.0):
        results.asked("c", Probe.CANARY, at)
        results.found("c", Probe.CANARY, Result(Outcome.UNKNOWN, at, "busy", 503))
    results.found("c", Probe.CANARY, Result(Outcome.UNKNOWN, 3.0, "no file descriptors left"))
    known = results.get("c", Probe.CANARY)
    assert known is not None
    assert (known.turned_away, known.away_since, known.run) == (2, 1.0, 0)
    results.found("c", Probe.CANARY, Result(Outcome.OK, 4.0))
    known = results.get("c", Probe.CANARY)
    assert known is not None
    assert (known.turned_away, known.away_since) == (0, None)


def test_a_token_of_ours_waits_for_an_answer_in_one_piece_only_where_no_slot_is_free() -> None:
    assert canary_limit(10.0, 900.0, answers=1, in_flight=1, parallel=4) == 10.0
    assert canary_limit(10.0, 900.0, answers=1, in_flight=4, parallel=4) == 900.0
    assert canary_limit(10.0, 900.0, answers=0, in_flight=4, parallel=4) == 10.0


def test_counters_that_say_that_nothing_gets_on_make_nobody_immune() -> None:
    assert measured((64.0, 1e15)) == SLOWEST
    assert stall_limit(T, Ahead(1000, 1000), Rates(measured((64.0, 1e15)) or 0.0, 1.0)) < 3600

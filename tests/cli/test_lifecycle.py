"""start, stop, restart, drain, apply: what is asked of the daemon, and how waiting ends."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from api.cli import following, lifecycle, processes
from tests.cli import fake
from tests.cli.conftest import Call

DEPLOYMENT = "/deployments/smollm2"
DESIRED = "/deployments/smollm2/desired"


def progress(phase: str, detail: str, **more: Any) -> dict[str, Any]:
    return {"phase": phase, "detail": detail, "elapsed_s": 2.0, "fraction": None, "eta_s": None, **more}


@pytest.mark.parametrize(("verb", "state"), [("start", "running"), ("stop", "stopped")])
def test_start_and_stop_write_what_is_desired_and_return(
    call: Call, daemon: fake.Script, verb: str, state: str
) -> None:
    daemon.on("PUT", DESIRED, fake.view("pulling", desired=state))
    said = call(verb, "smollm2")
    assert said.code == 0
    assert said.out == f"smollm2: pulling (desired: {state})\n"
    (asked,) = daemon.asked
    assert asked.body == {"state": state}
    assert asked.headers["X-Outrider-Author"].startswith("cli:")


@pytest.mark.parametrize("verb", ["restart", "apply", "drain"])
def test_the_other_verbs_are_posts(call: Call, daemon: fake.Script, verb: str) -> None:
    daemon.on("POST", f"{DEPLOYMENT}/{verb}", fake.view())
    daemon.on("GET", DEPLOYMENT, fake.view())
    said = call(verb, "smollm2", "--json")
    assert said.code == 0
    assert said.document == fake.view()
    assert len(daemon.asked_for("POST", f"{DEPLOYMENT}/{verb}")) == 1


def test_a_name_with_a_slash_is_escaped(call: Call, daemon: fake.Script) -> None:
    daemon.on("PUT", "/deployments/org%2Fm/desired", fake.view("pulling", "m"))
    assert call("start", "org/m").code == 0


def test_waiting_shows_each_step_once_and_ends_when_ready(call: Call, daemon: fake.Script) -> None:
    daemon.on("PUT", DESIRED, fake.view("creating"))
    daemon.on(
        "GET",
        DEPLOYMENT,
        fake.view("stopped"),
        fake.view("creating", progress=progress("creating", "container")),
        fake.view("loading", progress=progress("loading", "weights", fraction=0.25, eta_s=6.0)),
        fake.view("loading", progress=progress("loading", "weights", fraction=0.75, eta_s=2.0)),
        fake.view("warming", progress=progress("warming", "first answer")),
        fake.view("ready"),
    )
    said = call("start", "smollm2", "--wait")
    assert said.code == 0
    assert said.err.splitlines() == [
        "smollm2: creating, container",
        "smollm2: loading, weights",
        "smollm2: warming, first answer",
    ]
    assert said.out == "smollm2: ready, engine 3 (llama.cpp, ngram) (desired: running)\n"


def test_how_far_it_is() -> None:
    view = fake.view("loading", progress=progress("loading", "weights", fraction=0.25, eta_s=6.0))
    assert following.tail(view, 0.0) == " (25 %, 2 s, about 6 s left)"
    assert following.tail(fake.view("loading"), 61.0) == " (1 min 1 s)"
    late = progress("loading", "weights", usual_s=1.0, granted_s=40.0)
    assert following.tail(fake.view("loading", progress=late), 0.0) == (
        " (2 s, longer than the usual 1 s, it has 40 s, more while it gets on)"
    )


def test_waiting_keeps_standard_output_for_the_document(call: Call, daemon: fake.Script) -> None:
    daemon.on("PUT", DESIRED, fake.view("loading"))
    daemon.on("GET", DEPLOYMENT, fake.view("stopped"), fake.view("loading"), fake.view("ready"))
    said = call("start", "smollm2", "--wait", "--json")
    assert said.document == fake.view("ready")
    assert said.err == "smollm2: loading\n"


def test_a_failure_ends_waiting_with_reason_and_hint(call: Call, daemon: fake.Script) -> None:
    why = {"code": "missing_file", "text": "the weights are gone", "hint": "add the model again"}
    daemon.on("PUT", DESIRED, fake.view("loading"))
    daemon.on(
        "GET",
        DEPLOYMENT,
        fake.view("stopped"),
        fake.view("loading"),
        fake.view("failed", reason=why, next_attempt_s=10.0),
    )
    said = call("start", "smollm2", "--wait")
    assert said.code == 1
    assert said.err.splitlines()[-2:] == [
        "error[missing_file]: smollm2 failed: the weights are gone; it is tried again in 10 s",
        "hint: add the model again",
    ]


def test_what_does_not_fit_is_four(call: Call, daemon: fake.Script) -> None:
    why = {"code": "too_big", "text": "needs 30 GiB", "hint": "take a smaller variant"}
    daemon.on("PUT", DESIRED, fake.view("loading"))
    daemon.on("GET", DEPLOYMENT, fake.view("stopped"), fake.view("failed", reason=why))
    assert call("start", "smollm2", "--wait").code == 4


def test_a_refusal_at_once_is_four(call: Call, daemon: fake.Script) -> None:
    daemon.on("GET", DEPLOYMENT, fake.view("stopped"))
    daemon.on("PUT", DESIRED, fake.problem(409, "too_big", "needs 30 GiB", hint="take a smaller variant"))
    said = call("start", "smollm2", "--wait")
    assert said.code == 4
    assert "error[too_big]: needs 30 GiB\nhint: take a smaller variant" in said.err


def test_an_old_failure_is_no_answer_to_a_new_start(call: Call, daemon: fake.Script) -> None:
    why = {"code": "crashed", "text": "exit code 139", "hint": None}
    old = fake.view("failed", reason=why, restarts=4)
    daemon.on("PUT", DESIRED, old)
    daemon.on("GET", DEPLOYMENT, old, old, old, fake.view("loading"), fake.view("ready"))
    assert call("start", "smollm2", "--wait").code == 0


def test_a_new_failure_with_the_same_reason_is(call: Call, daemon: fake.Script) -> None:
    why = {"code": "crashed", "text": "exit code 139", "hint": None}
    daemon.on("PUT", DESIRED, fake.view("loading"))
    daemon.on(
        "GET", DEPLOYMENT, fake.view("failed", reason=why, restarts=4), fake.view("failed", reason=why, restarts=5)
    )
    said = call("start", "smollm2", "--wait")
    assert said.code == 1
    assert "hint: `outrider logs smollm2` shows" in said.err


def test_an_old_failure_that_stays_is_believed_in_the_end(
    call: Call, daemon: fake.Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "STALE", 0.3)
    old = fake.view("failed", reason={"code": "crashed", "text": "exit code 139", "hint": None})
    daemon.on("PUT", DESIRED, old)
    daemon.on("GET", DEPLOYMENT, old)
    assert call("start", "smollm2", "--wait").code == 1


def test_the_time_limit_is_five_and_says_what_it_was_doing(call: Call, daemon: fake.Script) -> None:
    daemon.on("PUT", DESIRED, fake.view("loading"))
    daemon.on("GET", DEPLOYMENT, fake.view("loading", progress=progress("loading", "weights")))
    said = call("start", "smollm2", "--wait", "--timeout", "0.3")
    assert said.code == 5
    assert "smollm2 did not get there within 0.3 s: it is smollm2: loading, weights" in said.err


def test_stop_waits_for_stopped(call: Call, daemon: fake.Script) -> None:
    daemon.on("PUT", DESIRED, fake.view("draining", desired="stopped"))
    daemon.on(
        "GET",
        DEPLOYMENT,
        fake.view(),
        fake.view("draining"),
        fake.view("stopping"),
        fake.view("stopped", desired="stopped"),
    )
    said = call("stop", "smollm2", "--wait")
    assert said.code == 0
    assert said.out == "smollm2: stopped (desired: stopped)\n"


def test_drain_waits_until_nothing_has_been_in_flight_for_a_while(
    call: Call, daemon: fake.Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "SETTLED", 0.1)
    daemon.on("POST", f"{DEPLOYMENT}/drain", fake.view("draining"))
    quiet, busy = fake.view("draining"), fake.view("draining", in_flight=1)
    daemon.on("GET", DEPLOYMENT, fake.view(), quiet, busy, busy, quiet)
    assert call("drain", "smollm2", "--wait", "--json").document == quiet
    assert len(daemon.asked_for("GET", DEPLOYMENT)) > 6


def with_generation(state: str, generation: int, **changes: Any) -> dict[str, Any]:
    view = fake.view(state, **changes)
    view["engine"]["generation"] = generation
    return view


def test_restart_waits_for_another_engine(call: Call, daemon: fake.Script) -> None:
    daemon.on("POST", f"{DEPLOYMENT}/restart", with_generation("ready", 3))
    daemon.on(
        "GET",
        DEPLOYMENT,
        with_generation("ready", 3),  # before
        with_generation("ready", 3),  # the state as the request found it
        with_generation("ready", 3),  # not restarted yet
        with_generation("draining", 3),
        with_generation("loading", 4),
        with_generation("ready", 4),
    )
    said = call("restart", "smollm2", "--wait", "--json")
    assert said.document["engine"]["generation"] == 4


def test_apply_waits_until_nothing_is_drifted(call: Call, daemon: fake.Script) -> None:
    daemon.on("POST", f"{DEPLOYMENT}/apply", fake.view(drifted=True))
    daemon.on("GET", DEPLOYMENT, fake.view(drifted=True), fake.view(drifted=True), fake.view(drifted=True), fake.view())
    assert call("apply", "smollm2", "--wait", "--json").document["drifted"] is False


def test_an_unknown_model_is_three_with_the_daemons_hint(call: Call, daemon: fake.Script) -> None:
    hint = "did you mean 'smollm2'?"
    daemon.on(
        "PUT", "/deployments/smolm2/desired", fake.problem(404, "not_found", "there is no model 'smolm2'", hint=hint)
    )
    said = call("start", "smolm2")
    assert said.code == 3
    assert f"hint: {hint}" in said.err


def test_a_daemon_that_restarts_meanwhile_is_waited_for(call: Call, daemon: fake.Script) -> None:
    def cut(_asked: fake.Asked) -> fake.Answer:
        raise ConnectionAbortedError  # the connection ends without an answer

    daemon.on("PUT", DESIRED, fake.view("loading"))
    daemon.on("GET", DEPLOYMENT, fake.view("stopped"), fake.view("loading"), cut, cut, fake.view("ready"))
    assert call("start", "smollm2", "--wait").code == 0


def test_a_daemon_that_stays_away_is_six(call: Call, daemon: fake.Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "AWAY", 0.3)
    answers = itertools.chain([fake.view("stopped"), fake.view("loading")], itertools.repeat(None))

    def then_cut(_asked: fake.Asked) -> fake.Answer:
        body = next(answers)
        if body is None:
            raise ConnectionAbortedError
        return fake.Answer(body)

    daemon.on("PUT", DESIRED, fake.view("loading"))
    daemon.on("GET", DEPLOYMENT, then_cut)
    assert call("start", "smollm2", "--wait").code == 6


# there on demand

ROOM = f"{DEPLOYMENT}/room"


def room(action: str, reason: str, evict: tuple[str, ...] = (), **kept: tuple[str, str | None]) -> dict[str, Any]:
    return {
        "deployment": "smollm2",
        "action": action,
        "reason": reason,
        "needed_bytes": {"host": 1000},
        "free_bytes": {"host": 10},
        "evict": list(evict),
        "kept": {name: {"code": "c", "text": text, "hint": hint} for name, (text, hint) in kept.items()},
    }


def test_a_start_on_demand_asks_for_that_and_is_done_when_it_is_idle(call: Call, daemon: fake.Script) -> None:
    idle = fake.view("idle", desired="on_demand", engine=None)
    daemon.on("PUT", DESIRED, idle)
    daemon.on("GET", DEPLOYMENT, fake.view("stopped"), idle)
    said = call("start", "smollm2", "--on-demand")
    assert (said.code, said.out) == (0, "smollm2: idle (desired: on_demand)\n")
    assert call("start", "--on-demand", "--wait", "smollm2").code == 0, "nothing is loaded for it"
    assert call("start", "smollm2", "--on-demand", "--json").document == idle
    assert [a.body for a in daemon.asked_for("PUT", DESIRED)] == [{"state": "on_demand"}] * 3


def test_an_on_demand_model_that_serves_already_is_there_too(call: Call, daemon: fake.Script) -> None:
    daemon.on("PUT", DESIRED, fake.view(desired="on_demand"))
    daemon.on("GET", DEPLOYMENT, fake.view(desired="on_demand"))
    said = call("start", "smollm2", "--on-demand", "--wait")
    assert said.out == "smollm2: ready, engine 3 (llama.cpp, ngram) (desired: on_demand)\n"


def test_an_on_demand_model_is_stopped_like_any_other(call: Call, daemon: fake.Script) -> None:
    daemon.on("PUT", DESIRED, fake.view("draining", desired="stopped"))
    before = fake.view(desired="on_demand")
    daemon.on("GET", DEPLOYMENT, before, fake.view("draining", desired="stopped"), fake.view("stopped"))
    assert call("stop", "smollm2", "--wait").code == 0
    assert daemon.asked_for("PUT", DESIRED)[0].body == {"state": "stopped"}


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (room("ready", "room"), ["there is room for smollm2"]),
        (room("ready", "serving"), ["smollm2 runs already"]),
        (room("evict", "memory", ("a", "b")), ["smollm2 would come after these are unloaded: a, b"]),
        (
            room("wait", "in_use", a=("a is answering 2 requests", None)),
            ["smollm2 would wait, for what is in its way passes", "  stays: a is answering 2 requests"],
        ),
        (
            room(
                "refuse", "no_room", big=("big is to run always", "`outrider start --on-demand big` lets it make way")
            ),
            [
                "smollm2 would not come",
                "  stays: big is to run always (`outrider start --on-demand big` lets it make way)",
            ],
        ),
    ],
    ids=["room", "runs", "evicts", "waits", "refused"],
)
def test_a_dry_run_says_what_would_make_way_and_asks_for_nothing(
    call: Call, daemon: fake.Script, found: dict[str, Any], lines: list[str]
) -> None:
    daemon.on("GET", ROOM, found)
    said = call("start", "smollm2", "--dry-run")
    assert (said.code, said.out.splitlines(), said.err) == (0, lines, "")
    assert call("start", "smollm2", "--dry-run", "--on-demand", "--json").document == found
    assert [(a.method, a.path) for a in daemon.asked] == [("GET", ROOM)] * 2


def test_a_dry_run_of_what_cannot_be_planned_is_an_error(call: Call, daemon: fake.Script) -> None:
    daemon.on("GET", ROOM, fake.problem(409, "too_big", "nothing can be launched", hint="stop another model"))
    said = call("start", "smollm2", "--dry-run")
    assert (said.code, said.err) == (4, "error[too_big]: nothing can be launched\nhint: stop another model\n")


def test_who_stops_waiting_is_told_that_it_goes_on(
    call: Call, daemon: fake.Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "pause", interrupted)
    daemon.on("PUT", DESIRED, fake.view("creating"))
    daemon.on("GET", DEPLOYMENT, fake.view("loading"))
    said = call("start", "smollm2", "--wait")
    assert said.code == 130
    assert "goes on without you: `outrider ps`" in said.err

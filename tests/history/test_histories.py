"""Histories: people ask, engines die, Podman is silent, daemons are killed; and nothing comes about that must never.

Through all of it: no transition that the table does not have, never more on a device than it has nor more promised,
never two engines of a model that load at once, one engine at most that admits; no wish that is lost; nobody who waits
for a start for ever. No engine is ended under a request but when its drain has had its time, and never to make room;
every request ends, served or with a reason. No rung that was given up is launched again, by whatever daemon, before
somebody asks; nothing is loaded on a GPU that is left alone, and an open issue says who holds it; what is paused is
left alone. And once the faults are over: what is to run serves where there is room, on a rung that works; what is
there on demand answers, and goes when nobody asks; what is to be stopped is gone; and no container, process, file,
row, promise, place in a queue or task is left over.

The actors, steps, runner, device queues, crash ledger, ladder, desk, stop ladder, barrier, quarantine, adoption and
single flight are the real ones; `daemon` says what is made up, and `machine` why. A history is a number:
`played(number, steps)` tells it again, and what goes wrong is told with both. `test_checks` shows that each of these
would be noticed.
"""

from __future__ import annotations

import inspect
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.history.history import FATES, HAPPENINGS, MODELS, History, played
from tests.history.machine import FLAWS

models = st.sampled_from(MODELS)
pauses = st.sampled_from([0.0, 0.011, 0.05, 0.3, 1.0])
SEED = "OUTRIDER_HISTORIES"
"""The number of the first history of the long run, or `random`: for whoever goes looking. By itself the run is the same
each time, so that a change is what makes it fail."""
MANY = 1500
FOUND = {784232740: 50}
"""Histories that went wrong once, and their steps: what they taught is in `test_found`."""
ROOT = Path(__file__).parents[2]


class Histories(RuleBasedStateMachine):
    """Hypothesis chooses what happens, and makes what went wrong as short as it can."""

    def __init__(self) -> None:
        super().__init__()
        self.history = History()

    def teardown(self) -> None:
        try:
            if not self.history.wrong:
                self.history.finish()
        finally:
            self.history.close()

    @rule(name=models, then=pauses)
    def start(self, name: str, then: float) -> None:
        self.history.do("start", name, then=then)

    @rule(name=models, callers=st.booleans(), then=pauses)
    def start_again(self, name: str, callers: bool, then: float) -> None:
        self.history.do("wait_for_start" if callers else "start", name, then=then)

    @rule(name=models, then=pauses)
    def on_demand(self, name: str, then: float) -> None:
        self.history.do("on_demand", name, then=then)

    @rule(verb=st.sampled_from(["stop", "restart", "apply", "drain", "reconfigure", "renew"]), name=models, then=pauses)
    def ask(self, verb: str, name: str, then: float) -> None:
        self.history.do(verb, name, then=then)

    @rule(how=st.sampled_from(["pause", "resume"]), name=st.sampled_from([*MODELS, None]))
    def automation(self, how: str, name: str | None) -> None:
        self.history.do(how, name)

    @rule(name=models, which=st.sampled_from(sorted(FLAWS)))
    def flaw(self, name: str, which: str) -> None:
        self.history.do("flaw", name, which)

    @rule(name=models, speculate=st.booleans(), then=pauses)
    def govern(self, name: str, speculate: bool, then: float) -> None:
        self.history.do("govern", name, speculate, then=then)

    @rule(name=models, seconds=st.sampled_from([1.0, 20.0, 400.0]))
    def request(self, name: str, seconds: float) -> None:
        self.history.do("request", name, seconds)

    @rule(
        fault=st.sampled_from(["crash", "guard", "not_live", "deafen", "hang", "stick", "unstick", "kill_conmon"]),
        name=models,
        then=pauses,
    )
    def engine_fails(self, fault: str, name: str, then: float) -> None:
        self.history.do(fault, name, then=then)

    @rule(fate=st.sampled_from(FATES))
    def doom(self, fate: str) -> None:
        self.history.do("doom", fate)

    @rule(how=st.sampled_from(["there", "gone", "silent"]), lost=st.integers(0, 2), then=pauses)
    def podman_fails(self, how: str, lost: int, then: float) -> None:
        self.history.do("lose_answers", lost)
        self.history.do("podman", how, then=then)

    @rule(keeps=st.booleans(), full=st.booleans())
    def host_fails(self, keeps: bool, full: bool) -> None:
        self.history.do("keep_memory", keeps)
        self.history.do("fill_disk", full)

    @rule(how=st.sampled_from(["kill_daemon", "end_daemon"]), then=pauses)
    def daemon_goes(self, how: str, then: float) -> None:
        self.history.do(how, then=then)

    @rule(seconds=st.sampled_from([0.05, 0.6, 3.0, 12.0, 45.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.history.do("time_passes", seconds)

    @invariant()
    def nothing_is_wrong(self) -> None:
        self.history.look()


def drive(examples: int, steps: int, *, derandomize: bool) -> None:
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=derandomize,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.generate, Phase.shrink),
        ),
    )


def test_some_histories_by_hypothesis() -> None:
    drive(8, 20, derandomize=True)


def test_some_histories_by_number() -> None:
    for number in range(8):
        played(number)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_histories_by_hypothesis() -> None:
    drive(250, 50, derandomize=os.environ.get(SEED) != "random")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_histories_by_number(record_property: Any) -> None:
    asked = os.environ.get(SEED, "1")
    first = random.SystemRandom().randrange(10**9) if asked == "random" else int(asked)
    print(f"{MANY} histories from {SEED}={first}")
    record_property(SEED, first)
    for number in range(first, first + MANY):
        played(number, steps=30 + number % 40)


@pytest.mark.parametrize(("number", "steps"), FOUND.items())
def test_what_went_wrong_once_does_not_again(number: int, steps: int) -> None:
    played(number, steps)


@pytest.mark.parametrize("number", [25])
def test_a_number_tells_the_same_history_again(number: int) -> None:
    """In this process, and in another one whose sets of words have another order."""
    told = played(number)
    assert played(number) == told
    code = f"from tests.history.history import played; print(*played({number}), sep='\\n')"
    other = {**os.environ, "PYTHONHASHSEED": str(number)}
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=other, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == "\n".join(told).splitlines()


def test_both_ways_of_driving_know_all_that_can_happen() -> None:
    source = inspect.getsource(Histories)
    assert [name for name in HAPPENINGS if f'"{name}"' not in source] == []

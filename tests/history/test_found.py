"""Histories in which something went wrong once, each as short as it can be told."""

from __future__ import annotations

from orchestrator.config import DemandSettings
from orchestrator.demand.groups import Group
from orchestrator.views import State
from tests.history.daemon import GROUPS
from tests.history.history import History
from tests.history.machine import GPUS


def test_two_that_wait_for_room_do_not_keep_each_other_awake() -> None:
    """Each said that it waits, which woke the other one, which said that it waits."""
    with begun() as history:
        for name in ("gamma", "delta", "epsilon", "zeta"):
            history.do("on_demand", name, then=0.5)
        history.do("request", "gamma", 400.0)
        history.do("request", "delta", 400.0, then=70.0)
        history.do("request", "epsilon", 1.0)
        history.do("request", "zeta", 1.0, then=60.0)
        waiting = [a.deployment.name for a in history.daemon.registry.all() if _reason(a) == "waiting_for_room"]
        assert waiting == ["epsilon", "zeta"]
        history.finish()


def test_what_nothing_can_end_is_not_waited_for() -> None:
    """Two models whose engines had died as they loaded, and whose memory came back late, waited for each other to have
    loaded."""
    with begun() as history:
        history.do("start", "gamma", then=12.0)
        history.do("keep_memory", True)
        history.do("crash", "gamma", then=45.0)
        gamma = history.daemon.registry.get("gamma").deployment
        assert [e.state for e in gamma.engines] == [State.WEDGED]
        history.do("start", "epsilon", then=5.0)
        epsilon = history.daemon.registry.get("epsilon").deployment
        view = history.daemon.desk.view(gamma)
        assert view is not None
        assert (view.kept and view.kept.code, epsilon.busy) == ("wedged", False)
        history.do("keep_memory", False, then=120.0)
        assert gamma.serving_engine is not None
        history.finish()


def test_an_end_without_podman_is_not_tried_again_at_once() -> None:
    """What is left of a dead process, and nobody to remove it: the tries followed each other without a pause."""
    with begun() as history:
        history.do("start", "alpha", then=30.0)
        history.do("keep_memory", True)
        history.do("crash", "alpha", then=45.0)
        history.do("podman", "gone", then=200.0)
        history.finish()


def test_what_is_removed_while_it_loads_is_accounted_for_until_it_has_gone() -> None:
    """Its conmon died, so the next daemon removes it, and its memory grows until it ends."""
    with begun() as history:
        history.do("start", "delta", then=4.0)
        history.do("deafen", "delta")
        history.do("kill_conmon", "delta")
        history.do("kill_daemon", then=0.5)
        (process,) = history.machine.processes
        assert process.alive
        assert process.engine in history.daemon.admission.promised(), "it has not taken all of it yet"
        history.do("time_passes", 60.0)
        assert len([c for c in history.daemon.admission.claims().values() if c.model == "delta"]) == 1
        history.finish()


def test_a_plan_that_never_served_is_made_anew_where_there_is_room() -> None:
    """It was planned onto a GPU that another one was to leave, and did not."""
    with begun() as history:
        history.do("on_demand", "beta", then=0.5)
        history.do("request", "beta", 1.0, then=10.0)
        history.do("start", "alpha", then=30.0)
        beta, alpha = (history.daemon.registry.get(n).deployment for n in ("beta", "alpha"))
        assert beta.serving_engine is not None
        assert alpha.serving_engine is not None
        (device,) = history.daemon.admission.claims()[alpha.serving_engine.id].devices
        history.do("start", "gamma", then=90.0)
        gamma = history.daemon.registry.get("gamma").deployment
        assert gamma.serving_engine is not None
        history.do("on_demand", "epsilon", then=0.5)
        history.do("request", "epsilon", 1.0, then=20.0)
        assert history.daemon.registry.get("epsilon").deployment.wanted is None
        history.do("stop", "gamma", then=10.0)
        history.do("request", "epsilon", 1.0, then=60.0)
        epsilon = history.daemon.registry.get("epsilon").deployment
        assert epsilon.serving_engine is not None
        assert history.daemon.admission.claims()[epsilon.serving_engine.id].devices != (device,)
        assert device in GPUS
        history.finish()


def test_a_pause_outlasts_a_quarantine() -> None:
    """It failed while it was paused, and what it had left on its GPU was free again: it was started by itself."""
    with begun() as history:
        history.do("start", "alpha", then=30.0)
        history.do("start", "gamma", then=90.0)
        history.do("pause", None)
        history.do("keep_memory", True)
        for name in ("alpha", "gamma"):
            history.do("crash", name)
        history.do("time_passes", 45.0)
        alpha = history.daemon.registry.get("alpha").deployment
        assert alpha.held == "gpu_memory_held"
        history.do("keep_memory", False, then=120.0)
        assert not alpha.held
        assert [p for p in history.machine.processes if p.alive] == []
        history.do("resume", None, then=60.0)
        assert alpha.serving_engine is not None
        history.finish()


def test_a_pause_outlasts_the_daemon() -> None:
    """What is paused and not there is not started by a daemon that begins; what runs is adopted as ever."""
    with begun() as history:
        history.do("start", "alpha", then=30.0)
        history.do("start", "beta", then=30.0)
        history.do("pause", None)
        history.do("crash", "alpha", then=10.0)
        history.do("kill_daemon", then=60.0)
        alpha, beta = (history.daemon.registry.get(n).deployment for n in ("alpha", "beta"))
        assert [p.deployment for p in history.machine.processes if p.alive] == ["beta"]
        assert beta.serving_engine is not None
        assert (alpha.shown_state(), alpha.shown_reason and alpha.shown_reason.code) == (State.STOPPED, "paused")
        assert "would_start" in [e.code for e in history.daemon.journal._recent]
        history.do("start", "alpha", then=30.0)
        assert alpha.serving_engine is not None, "a person may"
        history.do("crash", "alpha")
        history.do("end_daemon", then=30.0)
        alpha = history.daemon.registry.get("alpha").deployment
        assert alpha.serving_engine is None
        history.do("resume", None, then=30.0)
        assert (alpha.serving_engine is not None, alpha.reason) == (True, None)
        history.finish()


def test_a_plan_that_has_served_goes_to_another_gpu_where_there_is_room() -> None:
    """Its own had been taken by one that runs always, and it waited for that for ever beside an empty one."""
    with begun() as history:
        history.do("on_demand", "epsilon", then=0.5)
        history.do("request", "epsilon", 1.0, then=30.0)
        epsilon = history.daemon.registry.get("epsilon").deployment
        assert epsilon.serving_engine is not None
        (own,) = history.daemon.admission.claims()[epsilon.serving_engine.id].devices
        history.do("stop", "epsilon", then=20.0)
        history.do("start", "alpha", then=30.0)
        assert [claim.devices for claim in history.daemon.admission.claims().values()] == [(own,)]
        history.do("on_demand", "epsilon", then=0.5)
        history.do("request", "epsilon", 1.0, then=60.0)
        assert epsilon.serving_engine is not None
        (other,) = history.daemon.admission.claims()[epsilon.serving_engine.id].devices
        assert other != own
        assert "other_gpu" in [event.code for event in history.daemon.journal._recent]
        history.finish()


def test_an_engine_that_is_proven_once_more_is_drained_too() -> None:
    """That it was proven could not be noted, and the next daemon proves it again, while its answers go on."""
    with begun() as history:
        history.do("fill_disk", True)
        history.do("start", "zeta")
        history.do("fill_disk", False)
        history.do("start", "zeta", then=1.0)
        history.do("fill_disk", True, then=20.0)
        history.do("request", "zeta", 60.0)
        requests = history.requests
        history.do("kill_daemon")
        history.do("fill_disk", False, then=0.1)
        history.do("stop", "zeta", then=30.0)
        assert [r.ended for r in requests] == [None]
        history.do("time_passes", 60.0)
        assert [r.ended for r in requests] == ["served"]
        history.finish()


def test_a_rung_that_was_found_is_not_lost_with_the_daemon() -> None:
    """Unloaded and asked for again, a new daemon begins where the old one had got to."""
    with begun() as history:
        history.do("flaw", "alpha", "dflash")
        history.do("start", "alpha", then=300.0)
        rungs = [p.rung for p in history.machine.processes]
        assert rungs == [*[("dflash", 4)] * 3, *[("dflash", 2)] * 3, ("ngram", 4)]
        history.do("on_demand", "alpha", then=200.0)
        assert [p for p in history.machine.processes if p.alive] == [], "nobody asks for it"
        history.do("kill_daemon", then=2.0)
        history.do("request", "alpha", 1.0, then=60.0)
        assert [p.rung for p in history.machine.processes[len(rungs) :]] == [("ngram", 4)]
        history.finish()


def test_what_could_not_be_removed_is_not_loaded_beside() -> None:
    """The former daemon was stopping it, and Podman went away before the next one had removed it: its memory was
    counted in nobody's name, and another engine of the same model was started."""
    with begun() as history:
        history.do("start", "zeta", then=2.0)
        history.do("stick", "zeta")
        history.do("stop", "zeta", then=0.1)
        history.do("kill_daemon", then=0.1)
        history.do("podman", "gone", then=20.0)
        history.do("start", "zeta", then=0.05)
        zeta = history.daemon.registry.get("zeta").deployment
        (process,) = history.machine.processes
        assert process.alive
        assert (zeta.held, zeta.shown_state(), zeta.shown_reason and zeta.shown_reason.code) == (
            "remains",
            State.CREATING,
            "remains",
        )
        assert process.engine in history.daemon.admission.claims()
        history.do("start", "zeta")
        history.finish()
        assert (process.alive, zeta.held) == (False, None)
        assert zeta.serving_engine is not None


def test_a_switch_does_not_let_another_of_its_group_in() -> None:
    """Between the old engine's end and the new one's record the model had no engine, and who waited for it to go was
    started beside it."""
    with begun() as history:
        only_one_of("beta", "zeta", history=history)
        waits_for_switch(history, "zeta")
        beta, zeta = (history.daemon.registry.get(n).deployment for n in ("beta", "zeta"))
        assert beta.serving_engine is not None
        assert beta.switches["done"] == 1
        assert zeta.live() == []
        history.finish()


def only_one_of(*names: str, history: History) -> None:
    settings = DemandSettings(ttl_s=90.0, residence_s=10.0, turn_s=200.0)
    history.daemon.desk.configure(settings, [*GROUPS, Group(name="pair", members=names)])


def waits_for_switch(history: History, name: str) -> None:
    """Beta answers requests on a GPU that has no room for two of it, another one is asked for and has to wait for it,
    and beta is given another plan."""
    for other in ("alpha", "beta", "gamma"):
        history.do("on_demand" if other == "beta" else "start", other, then=0.5)
        if other == "beta":
            history.do("request", "beta", 250.0)
        history.do("time_passes", 90.0)
    history.do("on_demand", name, then=0.5)
    history.do("request", name, 1.0, then=5.0)
    waits = history.daemon.registry.get(name)
    assert _reason(waits) == "waiting_for_room"
    history.do("reconfigure", "beta", then=5.0)
    beta = history.daemon.registry.get("beta").deployment
    assert beta.phase is not None
    assert "switch" in beta.phase[1]
    history.do("time_passes", 73.0)


def test_what_a_former_daemon_left_passes_the_barrier_too() -> None:
    """Its memory was not given back, and nobody left that GPU alone or said who holds it."""
    with begun() as history:
        history.do("start", "epsilon", then=30.0)
        history.do("keep_memory", True)
        history.do("kill_conmon", "epsilon")
        history.do("kill_daemon", then=20.0)
        epsilon = history.daemon.registry.get("epsilon").deployment
        assert (epsilon.held, epsilon.engines) == ("remains", [])
        history.do("time_passes", 60.0)
        (held,) = history.daemon.quarantine.held.values()
        assert epsilon.serving_engine is not None, "on the other GPU"
        claims = [claim.devices for claim in history.daemon.admission.claims().values()]
        assert sorted(claims) == [(gpu,) for gpu in GPUS]
        assert (held.device,) == claims[0]
        history.do("keep_memory", False, then=20.0)
        assert not history.daemon.quarantine.held
        assert len(history.daemon.admission.claims()) == 1
        history.finish()


def _reason(actor: object) -> str | None:
    reason = actor.deployment.reason  # type: ignore[attr-defined]
    return None if reason is None else str(reason.code)


def begun() -> History:
    """One whose daemon has looked around."""
    history = History()
    history.do("time_passes", 1.0)
    return history

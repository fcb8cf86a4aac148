"""The barrier's rules: what is waited for, for how long, and who is named in the end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hosts.gpu_sample import GpuProcess, GpuSample
from hosts.gpu_users import GpuUser
from hosts.telemetry import Sample
from orchestrator.stopping import barrier, holders
from orchestrator.stopping.barrier import LOST, RISE, STABLE, Barrier, DeviceLook, Look
from orchestrator.stopping.holders import Holder, Trace
from orchestrator.stopping.quarantine import hint

GIB = 1 << 30
ONE = "0000:01:00.0"
LIMIT = 30.0
WORKER = Holder(71, "VLLM::EngineCor", 20 * GIB, ONE, "D", "uvm_va_space_destroy")


def looks(*free: int | None, listed: Sequence[Holder] | None = (), alive: Sequence[Holder] = ()) -> list[Look]:
    """Looks a second apart, with this much free at each."""
    found = None if listed is None else tuple(listed)
    return [Look(float(at), tuple(alive), (DeviceLook(ONE, found, size),)) for at, size in enumerate(free)]


def test_on_the_cpu_the_end_of_the_processes_is_enough() -> None:
    decision = barrier.decide([Look(0.0, ())], LIMIT)
    assert (decision.action, decision.reason) == (Barrier.CLEAR, "processes_gone")


def test_memory_has_to_be_the_same_at_three_looks() -> None:
    seen = looks(2 * GIB, 9 * GIB, 23 * GIB, 23 * GIB + 1, 23 * GIB + 2)
    actions = [barrier.decide(seen[: n + 1], LIMIT).action for n in range(len(seen))]
    assert actions == [Barrier.WAIT] * 4 + [Barrier.CLEAR]
    assert barrier.decide(seen[:3], LIMIT).reason == "still_coming_back"
    assert barrier.decide(seen, LIMIT).evidence["free_bytes"] == {ONE: 23 * GIB + 2}


def test_another_program_that_takes_memory_meanwhile_holds_nobody_up() -> None:
    """A false alarm: what is free falls because somebody else loads, not because the dead engine holds it."""
    assert barrier.decide(looks(20 * GIB, 18 * GIB, 9 * GIB), LIMIT).action is Barrier.CLEAR


def test_a_process_that_the_driver_lists_is_waited_for_and_named() -> None:
    seen = looks(*[GIB] * 31, listed=[WORKER])
    waiting = barrier.decide(seen[:30], LIMIT)
    assert (waiting.action, waiting.reason) == (Barrier.WAIT, "listed_by_driver")
    given_up = barrier.decide(seen, LIMIT)
    assert (given_up.action, given_up.reason) == (Barrier.GIVE_UP, "listed_by_driver")
    assert given_up.evidence == {"device": ONE, "pids": [71], "after_s": 30.0, "limit_s": 30.0}


def test_what_is_left_of_the_container_is_killed_before_anything_else() -> None:
    seen = looks(GIB, alive=[WORKER], listed=[WORKER])
    assert barrier.decide(seen, LIMIT).action is Barrier.KILL
    assert barrier.decide(looks(*[GIB] * 31, alive=[WORKER]), LIMIT).reason == "processes_left"


def test_memory_that_nobody_has_any_more_is_not_free() -> None:
    """The driver lists no process, and the bytes that the engine had are still in use."""

    def held(lost: int) -> list[Look]:
        device = DeviceLook(ONE, (), 4 * GIB, lost=lost, had=20 * GIB)
        return [Look(float(at), (), (device,)) for at in range(STABLE)]

    decision = barrier.decide(held(20 * GIB), LIMIT)
    assert (decision.action, decision.reason) == (Barrier.WAIT, "held_by_nobody")
    assert decision.evidence["lost_bytes"] == 20 * GIB
    assert barrier.decide(held(2 * GIB), LIMIT).action is Barrier.CLEAR, "the driver keeps a little for itself"
    assert barrier.decide(held(LOST), LIMIT).action is Barrier.CLEAR


def test_unified_memory_is_free_when_nobody_is_left() -> None:
    """Everybody on the host changes what is free there: it never stands still, and says nothing."""
    device = DeviceLook(ONE, (), 9 * GIB, unified=True)
    assert barrier.decide([Look(0.0, (), (device,))], LIMIT).action is Barrier.CLEAR


def test_a_device_that_cannot_be_read_holds_nothing_up() -> None:
    """One that fell off the bus has no memory to wait for; its health is told elsewhere."""
    assert barrier.decide([Look(0.0, ())], LIMIT).action is Barrier.CLEAR


@given(st.lists(st.integers(0, 24 * GIB), min_size=1, max_size=40), st.integers(0, 40))
def test_it_never_lets_a_load_in_while_memory_still_comes_back_and_always_ends(free: list[int], more: int) -> None:
    seen = looks(*free)
    decision = barrier.decide(seen, LIMIT)
    if decision.action is Barrier.CLEAR:
        assert all(after - before < RISE for before, after in pairwise(free[-STABLE:]))
        assert len(free) >= STABLE
    settled = looks(*free, *[free[-1]] * (STABLE + more))
    assert barrier.decide(settled, 1e9).action is Barrier.CLEAR
    assert barrier.decide(looks(*free, listed=[WORKER]), 0.0).action is Barrier.GIVE_UP


# who holds it


def a_sample(*users: GpuUser, used: int = 0, listed: bool = True) -> Sample:
    processes = tuple(GpuProcess(u.pid, u.memory, "compute") for u in users) if listed else None
    return Sample({}, gpus={ONE: GpuSample(ONE, memory_used=used, processes=processes)}, users=users)


def user(pid: int, memory: int | None, container: str | None, name: str | None = "python3") -> GpuUser:
    return GpuUser(ONE, pid, name, memory, "compute", container, False)


def test_an_ended_process_is_known_by_the_container_it_was_seen_in() -> None:
    running = a_sample(user(7, 3 * GIB, "c"), user(8, GIB, None, "Xorg"), used=4 * GIB + 300)
    traces = holders.traces(running)
    assert traces["c"][ONE] == Trace({7: "python3"}, 3 * GIB, 300)
    ghost = a_sample(user(7, 3 * GIB, None, None), user(8, GIB, None, "Xorg"), used=4 * GIB + 300)
    assert holders.listed(ghost, ONE, "c", traces["c"][ONE]) == (Holder(7, "python3", 3 * GIB, ONE),)
    reused = a_sample(user(7, GIB, None, "blender"))
    assert holders.listed(reused, ONE, "c", traces["c"][ONE]) == (), "somebody else has its number now"
    assert holders.traces(a_sample(), traces)["c"] == traces["c"], "what ended is remembered"


def test_what_cannot_be_counted_is_unknown() -> None:
    assert holders.nobodys(a_sample(user(7, None, "c"), used=GIB), ONE) is None
    assert holders.nobodys(a_sample(used=GIB, listed=False), ONE) is None
    assert holders.nobodys(a_sample(used=GIB), ONE) == GIB
    assert holders.nobodys(Sample({}), ONE) is None


def test_holders_are_told_in_words_with_the_next_step() -> None:
    assert str(WORKER) == "process 71 (VLLM::EngineCor, state D in uvm_va_space_destroy, 20.00 GiB)"
    ended = Holder(72, None, None, ONE)
    assert holders.told([WORKER, ended]).endswith(", process 72 (name unknown, has ended)")
    assert holders.told([]) == "no process that the driver lists"
    assert "ps -o pid,stat,wchan,cmd -p 71`" in hint([WORKER, ended])
    assert "outrider doctor" in hint([ended])

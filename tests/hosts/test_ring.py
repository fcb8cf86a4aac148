"""The last samples: bounded, and asked for by sequence."""

from __future__ import annotations

from hosts.ring import Ring


def filled(*times: float, size: int = 3) -> Ring[float]:
    ring: Ring[float] = Ring(size)
    for at in times:
        ring.add(at, at=at, wall=1000.0 + at)
    return ring


def test_it_keeps_the_newest() -> None:
    ring = filled(1.0, 2.0, 3.0, 4.0)
    assert len(ring) == 3
    assert [entry.value for entry in ring.since()] == [2.0, 3.0, 4.0]
    assert [(entry.sequence, entry.at, entry.wall) for entry in ring.since(3000)] == [(4000, 4.0, 1004.0)]
    assert [entry.value for entry in ring.since(limit=2)] == [3.0, 4.0]
    assert ring.since(limit=0) == []
    assert ring.since(4000) == []


def test_sequences_grow_even_when_the_clock_stands() -> None:
    assert [entry.sequence for entry in filled(5.0, 5.0, 5.0001).since()] == [5000, 5001, 5002]


def test_a_sequence_of_another_boot_is_of_the_past() -> None:
    assert len(filled(1.0, 2.0).since(99_000_000)) == 2


def test_empty() -> None:
    ring: Ring[int] = Ring(1)
    assert ring.newest is None
    assert ring.since(7) == []

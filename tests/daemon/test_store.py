"""The database: what it keeps, what it never reuses, and what happens when it is unreadable."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.events import KEPT, Journal
from orchestrator.store import Store
from orchestrator.views import Desired, Event


async def test_desired_state_and_author_survive_a_restart(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "a.db")
    await store.set_desired("m", Desired.RUNNING, "ann", 1.0)
    await store.set_desired("n", Desired.RUNNING, "ann", 2.0)
    await store.set_desired("m", Desired.STOPPED, "bob", 3.0)
    await store.close()
    store = await Store.open(tmp_path / "a.db")
    assert [(r.deployment, r.desired, r.author) for r in await store.desired()] == [
        ("m", Desired.STOPPED, "bob"),
        ("n", Desired.RUNNING, "ann"),
    ]
    await store.close()


async def test_a_drain_survives_a_restart_until_it_is_cleared_or_forgotten(tmp_path: Path) -> None:
    async def drained() -> list[str]:
        store = await Store.open(tmp_path / "a.db")
        found = [row.deployment for row in await store.desired() if row.drained]
        await store.close()
        return found

    store = await Store.open(tmp_path / "a.db")
    for name in ("a", "b", "c"):
        await store.set_desired(name, Desired.RUNNING, "ann", 1.0)
        await store.set_drained(name, "ann", 2.0)
    assert await drained() == ["a", "b", "c"]
    await store.clear_drained("a")
    await store.forget("b")
    await store.set_desired("b", Desired.RUNNING, "ann", 3.0)
    assert await drained() == ["c"]
    await store.close()


async def test_what_was_pulled_is_known_by_all_its_names_until_it_is_forgotten(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "a.db")
    for image, reference in (("1", "r.io/b:1"), ("1", "r.io/a:1"), ("2", "r.io/a:2"), ("2", "r.io/a:2")):
        await store.note_pulled(image, reference, 1.0)
    assert await store.pulled() == {"1": ("r.io/a:1", "r.io/b:1"), "2": ("r.io/a:2",)}
    await store.forget_pulled("1")
    assert await store.pulled() == {"2": ("r.io/a:2",)}
    await store.close()


async def test_a_generation_is_never_used_twice(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "a.db")
    assert [await store.next_generation("m"), await store.next_generation("m")] == [1, 2]
    assert await store.next_generation("m", at_least=7) == 7  # what a container's label showed
    await store.forget("m")
    assert await store.next_generation("m") == 8
    await store.close()


async def test_revisions_only_rise_even_when_the_clock_goes_back(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "a.db")
    first = await store.revision(at_least=1_000_000)
    assert await store.revision(at_least=5) == first + 1
    await store.close()


async def test_start_times_prefer_the_same_plan(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "a.db")
    assert await store.start_seconds("p", "m") is None
    await store.record_start("q", "m", 9.0, 1.0)
    assert await store.start_seconds("p", "m") == 9.0
    for at, seconds in enumerate([2.0, 4.0, 3.0]):
        await store.record_start("p", "m", seconds, at)
    assert await store.start_seconds("p", "m") == 4.0
    await store.close()


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to be read" * 40, b"SQLite format 3\0" + b"\xff" * 2000]
)
async def test_an_unreadable_database_is_set_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(content)
    store = await Store.open(path)
    assert store.set_aside == tmp_path / "a.db.unreadable-1"
    assert store.set_aside.read_bytes() == content
    await store.set_desired("m", Desired.RUNNING, "ann", 1.0)
    await store.close()


def journal(store: Store, last: int = 0) -> Journal:
    return Journal(store, SystemClock(), host="h", boot_id="b", last=last)


async def read(entries: Journal, **how: object) -> list[Event]:
    return [event async for event in entries.follow(**how)]  # type: ignore[arg-type]


async def test_the_journal_goes_on_counting_after_a_restart(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "a.db")
    first = journal(store)
    first.emit("k", "one", "text", deployment="m", evidence={"n": 1})
    await first.flush()
    second = journal(store, last=(await store.journal(limit=1))[-1].sequence)
    second.emit("k", "two", "text")
    assert [(e.sequence, e.code, e.deployment) for e in await read(second)] == [(1, "one", "m"), (2, "two", None)]
    assert [e.code for e in await read(second, since=1)] == ["two"]
    assert [e.code for e in await read(second, deployment="m")] == ["one"]
    await store.close()


class Back(SystemClock):
    """A host's clock that was set back by an hour."""

    def wall(self) -> float:
        return super().wall() - 3600


async def test_what_a_former_daemon_wrote_is_older_than_what_this_one_did(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "a.db")
    first = journal(store)
    first.emit("k", "one", "text", deployment="m")
    await first.flush()
    second = Journal(store, Back(), host="h", boot_id="b", last=1)
    second.emit("k", "begins", "text")
    second.emit("k", "two", "text", deployment="m")
    found = await second.recall("m", 10)
    assert [event.code for event, _ in found] == ["one", "begins", "two"]
    ages = [ago for _, ago in found]
    assert ages == sorted(ages, reverse=True), "a story of the last seconds begins after it"
    assert ages[-1] > 0
    await store.close()


async def test_a_follower_gets_what_comes(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "a.db")
    entries = journal(store)
    entries.emit("k", "old", "text")
    seen: list[str] = []

    async def follow() -> None:
        async for event in entries.follow(follow=True):
            seen.append(event.code)
            if event.code == "last":
                return

    task = asyncio.create_task(follow())
    await asyncio.sleep(0)
    for code in ("a", "b", "last"):
        entries.emit("k", code, "text")
        await asyncio.sleep(0)
    await asyncio.wait_for(task, 5)
    assert seen == ["old", "a", "b", "last"]
    await store.close()


async def test_entries_beyond_memory_come_from_disk(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "a.db")
    entries = journal(store)
    for number in range(KEPT + 50):
        entries.emit("k", f"c{number}", "text")
        if number % 500 == 0:
            await entries.flush()
    await entries.flush()
    found = await read(entries, since=KEPT - 900)
    assert [e.sequence for e in found] == list(range(KEPT - 899, KEPT + 51))
    assert await store.compact() == 0
    await store.close()


async def test_a_database_that_cannot_be_written_costs_entries_on_disk_only(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "a.db")
    entries = journal(store)
    await store._db.execute("PRAGMA query_only = ON")
    entries.emit("k", "code", "text")
    await entries.flush()
    assert [e.code for e in await read(entries)] == ["code"]
    await store.close()


async def test_nobody_else_may_read_the_database(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "a.db")
    await store.set_desired("m", Desired.RUNNING, "ann", 1.0)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {"a.db": 0o600, "a.db-wal": 0o600, "a.db-shm": 0o600}
    await store.close()


async def test_damage_further_in_is_found_at_the_door(tmp_path: Path) -> None:
    """A bad page in the middle must not stop a daemon half way up."""
    path = tmp_path / "a.db"
    store = await Store.open(path)
    for number in range(300):
        await store.record_start(f"plan-{number}" * 20, "m", 1.0, number)
    await store.close()
    content = bytearray(path.read_bytes())
    content[8192 : 8192 + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    store = await Store.open(path)
    assert store.set_aside is not None
    await store.close()

"""What observations come to: bounded, without outliers, each under its own heading; and what is kept of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.measured import Ran, Residual
from orchestrator.measuring import deadlines, learned
from orchestrator.measuring import ran as headings
from orchestrator.measuring.learned import Decoding, Start
from orchestrator.measuring.ledger import DECODINGS_KEPT, STARTS_KEPT, Ledger, StartRow
from orchestrator.plan import Method
from tests.daemon.world import a_plan

GIB = 1 << 30
RAN = Ran("m", "v", "llama.cpp", "b11434", "cpu", Method.NONE, None)
NO_DRIVER: frozenset[str | None] = frozenset({None})


def start(residual: int | None, *, load: float | None = 1.0, ran: Ran = RAN, driver: str | None = None) -> Start:
    peak = None if residual is None else 10 * GIB + residual
    return Start(ran, driver, "2026-11-01", load, 10 * GIB, peak)


def decoding(tokens: int, seconds: float) -> Decoding:
    return Decoding(RAN, None, "2026-11-02", tokens, seconds)


def residual(*residuals: int | None) -> tuple[int, int] | None:
    found = learned.measured([start(r) for r in residuals], [], NO_DRIVER).memory.get(RAN)
    return None if found is None else (found.bytes, found.starts)


def test_the_largest_of_late_starts_counts() -> None:
    assert residual(GIB) == (GIB, 1)
    assert residual(GIB, GIB + 10) == (GIB + 10, 2)
    assert residual(-GIB, -GIB + 4) == (-GIB + 4, 2)
    assert residual(5 * GIB, *[GIB] * learned.LATELY) == (GIB, learned.LATELY)  # long ago


def test_an_outlier_counts_no_more_than_a_killed_engine() -> None:
    assert residual(GIB, GIB + 1, GIB + 2, 9 * GIB) == (GIB + 2, 3)
    assert residual(None) is None
    assert residual(None, GIB, None) == (GIB, 1)


def test_less_than_expected_counts_only_of_an_engine_that_worked() -> None:
    """Caches that nothing has filled yet are no proof that they stay empty; more than expected is one at once."""
    idle = [replace(start(r), worked=False) for r in (-GIB, GIB // 2)]
    assert not learned.measured(idle[:1], [], NO_DRIVER).memory
    assert learned.measured(idle, [], NO_DRIVER).memory[RAN].bytes == GIB // 2
    assert learned.measured([*idle[:1], start(-GIB)], [], NO_DRIVER).memory[RAN] == Residual(-GIB, 1, "2026-11-01")


def test_versions_and_drivers_are_kept_apart() -> None:
    newer = Ran("m", "v", "llama.cpp", "b11549", "cpu", Method.NONE, None)
    found = learned.measured([start(GIB), start(2 * GIB, ran=newer)], [], NO_DRIVER)
    assert (found.memory[RAN].bytes, found.memory[newer].bytes) == (GIB, 2 * GIB)
    gpu = [start(GIB, driver="580.1"), start(2 * GIB, driver="595.2")]
    assert learned.measured(gpu, [], frozenset({None, "595.2"})).memory[RAN].bytes == 2 * GIB
    assert learned.measured(gpu, [], frozenset({None, "580.1"})).memory[RAN].bytes == GIB
    assert not learned.measured(gpu, [], NO_DRIVER).memory


def test_the_slower_start_counts() -> None:
    starts = [start(0, load=s) for s in (99.0, 1.0, 3.0, 2.0, 1.0, 1.0)]
    assert learned.measured(starts, [], NO_DRIVER).load_s == {RAN: 3.0}
    assert not learned.measured([start(0, load=None)], [], NO_DRIVER).load_s


def test_speed() -> None:
    assert not learned.measured([], [decoding(20, 1.0)], NO_DRIVER).speed  # too few tokens to be a speed
    found = learned.measured([], [decoding(100, 1.0), decoding(102, 1.0), decoding(98, 1.0)], NO_DRIVER).speed[RAN]
    assert (found.tokens_s, found.over_s) == (100.0, 3.0)
    slow = [decoding(100, 1.0)] * 4 + [decoding(100, 20.0)]  # another process had the machine
    assert learned.measured([], slow, NO_DRIVER).speed[RAN].tokens_s == 100.0


@pytest.mark.parametrize(
    ("prior", "seen", "limit"),
    [
        (1.0, None, 900.0),
        (600.0, None, 1200.0),
        (1.0, 700.0, 1400.0),
        (600.0, 700.0, 1400.0),
        (1.0, 5000.0, 7200.0),
        (5000.0, 9000.0, 10_000.0),
    ],
)
def test_a_start_may_take_what_it_usually_takes(prior: float, seen: float | None, limit: float) -> None:
    """8.5 to 9 minutes were seen for a 27B on gfx1151: the default holds, and whatever is slower gets longer."""
    assert deadlines.load_limit(900.0, prior, seen) == limit


def test_headings_come_back() -> None:
    for ran in (RAN, Ran("m", "v", "vllm", None, "sm_86", Method.DFLASH, "d")):
        assert headings.from_text(headings.to_text(ran)) == ran
    assert headings.from_text("[]") is headings.from_text("{") is headings.from_text('["a"]') is None
    plan = a_plan()
    assert (plan.devices, deadlines.backend(plan, "cpu").value) == ((), "cpu")


# the ledger


def row(engine: str, at: float = 1.0, **more: int) -> StartRow:
    return StartRow(engine, start(more.get("residual", 5)), "sha256:0", 4096, 2, at, {"kv": 7})


async def test_what_is_kept(tmp_path: Path) -> None:
    ledger = await Ledger.open(tmp_path / "m.db")
    await ledger.started(row("a"))
    await ledger.peaked("a", 99 * GIB)
    await ledger.started(row("b", 2.0))
    await ledger.void("b")
    await ledger.peaked("b", 3)  # a late reading of what was killed
    await ledger.decoded(decoding(100, 1.0), 1.0)
    await ledger.close()
    again = await Ledger.open(tmp_path / "m.db")
    first, second = await again.starts()
    assert (first.engine, first.start.peak, first.printed, first.context) == ("a", 99 * GIB, {"kv": 7}, 4096)
    assert (second.start.peak, second.start.load_s) == (None, 1.0)
    assert await again.decodings() == [decoding(100, 1.0)]
    assert await again.forget("other") == 0
    assert await again.forget("m") == 1
    assert not await again.starts()
    assert not await again.decodings()
    await again.close()


async def test_it_stays_bounded(tmp_path: Path) -> None:
    ledger = await Ledger.open(tmp_path / "m.db")
    for number in range(STARTS_KEPT + 3):
        await ledger.started(row(str(number), float(number)))
    for number in range(DECODINGS_KEPT + 3):
        await ledger.decoded(decoding(number + 1, 1.0), float(number))
    starts, decodings = await ledger.starts(), await ledger.decodings()
    assert [s.engine for s in starts] == [str(n) for n in range(3, STARTS_KEPT + 3)]
    assert (len(decodings), decodings[0].tokens) == (DECODINGS_KEPT, 4)
    await ledger.compact()
    assert len(await ledger.starts()) == STARTS_KEPT
    await ledger.close()


@pytest.mark.parametrize("damage", ["text", "truncated", "page"])
async def test_a_damaged_one_is_set_aside(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "m.db"
    ledger = await Ledger.open(path)
    for number in range(15):
        await ledger.started(row(str(number)))
    await ledger.close()
    data = path.read_bytes()
    bad = {"text": b"no database\n" * 500, "truncated": data[:5000], "page": data[:4096] + b"\xff" * (len(data) - 4096)}
    path.write_bytes(bad[damage])
    again = await Ledger.open(path)
    assert not await again.starts()
    assert (tmp_path / "m.db.unreadable").read_bytes() == bad[damage]
    await again.started(row("new"))
    assert [s.engine for s in await again.starts()] == ["new"]
    await again.close()


async def test_one_that_cannot_be_had_costs_only_what_would_be_learned(tmp_path: Path) -> None:
    folder = tmp_path / "m.db"
    folder.mkdir()
    ledger = await Ledger.open(folder)
    await ledger.started(row("a"))
    await ledger.decoded(decoding(1, 1.0), 1.0)
    assert not await ledger.starts()
    assert await ledger.forget(None) == 0
    await ledger.close()


async def test_what_another_version_wrote_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    ledger = await Ledger.open(path)
    await ledger.started(row("a"))
    await ledger.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE starts SET ran = '[1]', printed = '3'")
    again = await Ledger.open(path)
    assert not await again.starts()
    await again.close()


def test_another_image_of_the_same_version_is_another_program() -> None:
    one, other = (replace(start(r), image=i) for r, i in ((2 * GIB, "sha256:a"), (GIB, "sha256:b")))
    assert learned.measured([one, other], [], NO_DRIVER).memory[RAN] == Residual(GIB, 1, "2026-11-01")
    assert learned.measured([other, one, one], [], NO_DRIVER).memory[RAN].starts == 2


def test_a_speed_that_cannot_be_is_none() -> None:
    assert not learned.measured([], [decoding(10**18, 0.001)], NO_DRIVER).speed
    known = learned.measured([], [decoding(10**18, 0.001), decoding(1000, 10.0)], NO_DRIVER).speed
    assert known[RAN].tokens_s == 100.0


async def test_a_clock_that_jumps_neither_hides_nor_keeps_a_start(tmp_path: Path) -> None:
    """A board without a battery begins in 1970, and has been in 2099."""
    ledger = await Ledger.open(tmp_path / "m.db")
    for number in range(STARTS_KEPT + 3):
        await ledger.started(row(f"future-{number}", 4e9))
    await ledger.started(row("now", 0.0, residual=7))
    starts = await ledger.starts()
    assert starts[-1].engine == "now"
    await ledger.decoded(decoding(100, 1.0), 4e9)
    await ledger.decoded(decoding(200, 1.0), 0.0)
    assert [d.tokens for d in await ledger.decodings()] == [100, 200]
    await ledger.close()


async def test_what_no_column_holds_and_no_row_should_is_passed_over(tmp_path: Path) -> None:
    ledger = await Ledger.open(tmp_path / "m.db")
    await ledger.decoded(decoding(10**30, 1.0), 1.0)  # does not raise
    await ledger.started(row("a"))
    await ledger.decoded(decoding(100, 1.0), 1.0)
    await ledger.close()
    with closing(sqlite3.connect(tmp_path / "m.db")) as db, db:  # `with db` alone commits and leaves it open
        db.execute(
            "INSERT INTO starts SELECT 'b', '[[], 1, 2, 3, 4, \"none\", 5]', driver, image, context, parallel,"
            " at, day, load_s, likely, peak, printed, void, worked FROM starts"
        )
        db.execute(
            "INSERT INTO starts SELECT 'c', ran, driver, image, context, parallel, at, day, load_s, likely,"
            " 'much', printed, void, worked FROM starts WHERE engine = 'a'"
        )
        db.execute("UPDATE decodings SET seconds = 'long' WHERE tokens = 100")
    again = await Ledger.open(tmp_path / "m.db")
    assert [s.engine for s in await again.starts()] == ["a"]
    assert not await again.decodings()
    await again.close()

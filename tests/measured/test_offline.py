"""What was learned, read by a command that needs no daemon: nothing is written, and nothing made."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator import profiles
from orchestrator.measured import NOTHING, Ran
from orchestrator.measuring import offline
from orchestrator.measuring.learned import Decoding, Start
from orchestrator.measuring.ledger import Ledger, StartRow
from orchestrator.plan import Method

SERVER = profiles.load("dankserver")
DRIVER = SERVER.accelerators[0].driver
RAN = Ran("qwen3.8-27b", "w4a16", "vllm", "0.33.0", "sm_86", Method.NONE, None)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    made = await Ledger.open(tmp_path / "measured.db")
    start = Start(RAN, DRIVER, "2026-11-29", 90.0, 20 << 30, (20 << 30) + (700 << 20))
    await made.started(StartRow("one", start, "image", 8192, 1, 1.0))
    await made.decoded(Decoding(RAN, DRIVER, "2026-11-29", 600, 12.0), 2.0)
    yield made
    await made.close()


async def test_it_is_read_while_the_daemon_has_it_open_and_afterwards(ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "measured.db"
    during, why = offline.measured(path, SERVER)
    assert why is None
    assert during.speed[RAN].tokens_s == 50.0
    assert during.memory[RAN].bytes == 700 << 20
    assert during.load_s[RAN] == 90.0
    await ledger.close()
    kept = tmp_path / "kept"
    kept.mkdir()
    shutil.copy(path, kept)
    before = {p.name: p.read_bytes() for p in kept.iterdir()}
    after, why = offline.measured(kept / "measured.db", SERVER)
    assert (after, why) == (during, None)
    assert {p.name: p.read_bytes() for p in kept.iterdir()} == before, "read only"


async def test_another_drivers_measurements_say_nothing(ledger: Ledger, tmp_path: Path) -> None:
    known, _ = offline.measured(tmp_path / "measured.db", profiles.load("dankclaw"))
    assert not known.speed
    assert not known.memory


def test_what_is_not_there_is_not_made_and_what_is_damaged_is_told(tmp_path: Path) -> None:
    path = tmp_path / "no" / "measured.db"
    assert offline.measured(path, SERVER) == (NOTHING, None)
    assert not path.parent.exists()
    damaged = tmp_path / "measured.db"
    damaged.write_bytes(b"this is no database" * 100)
    known, why = offline.measured(damaged, SERVER)
    assert known == NOTHING
    assert why is not None
    assert str(damaged) in why
    assert damaged.read_bytes().startswith(b"this is no database")

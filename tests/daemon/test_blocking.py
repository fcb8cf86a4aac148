"""What the folder's own fixture finds: `tests.blocking_fixture` fails a test whose product blocks the loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orchestrator import log_file
from tests.blocking_fixture import _recording, faults


async def test_a_write_on_the_loop_is_found_and_one_in_a_thread_is_none(tmp_path: Path) -> None:
    (seen, _), log = _recording(), tmp_path / "log"
    log.write_bytes(b"x" * 100)
    begun = seen.stat().st_size
    await asyncio.to_thread(log_file.cut, log, 10)
    assert faults(seen, begun) == []
    log.write_bytes(b"x" * 100)
    log_file.cut(log, 10)
    assert any("log_file.py" in found for found in faults(seen, begun))
    with seen.open("r+b") as lines:  # or it would be held against this test
        lines.truncate(begun)

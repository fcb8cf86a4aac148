"""Issues: open for as long as they hold, told once."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.world import World


async def test_an_issue_is_open_for_as_long_as_it_holds_and_told_once(tmp_path: Path) -> None:
    world = await World.open(tmp_path)
    try:
        issues = world.context.issues
        first = issues.open("low_disk", "host", "4 % are left", hint="free some", evidence={"free": 4})
        again = issues.open("low_disk", "host", "3 % are left", evidence={"free": 3})
        assert again.since == first.since
        assert [i.text for i in issues.list()] == ["3 % are left"]
        assert issues.holds("low_disk")
        assert not issues.holds("low_disk", "other")
        assert issues.close("low_disk", "host")
        assert not issues.close("low_disk", "host")
        assert issues.list() == ()
        told = [(e.code, e.evidence.get("free")) async for e in world.journal.follow()]
        assert told == [("low_disk", 4), ("low_disk_over", None)]
    finally:
        await world.close()

"""`outrider prune`: what it shows, and that nothing goes without a yes."""

from __future__ import annotations

from tests.cli import fake
from tests.cli.conftest import Call

IMAGE = {
    "id": "image:sha256:1",
    "kind": "image",
    "name": "docker.io/a/b:1",
    "bytes": 40_050_273,
    "action": "remove",
    "reason": "not_named",
    "text": "no model and nothing in the catalogue names it",
    "used_by": [],
    "outcome": None,
    "error": None,
}


def answer(*things: dict[str, object]) -> dict[str, object]:
    size = sum(int(str(thing["bytes"])) for thing in things)
    return {"dry_run": True, "reclaimable_bytes": size, "freed_bytes": 0, "things": list(things), "problems": []}


def test_nothing_goes_where_nobody_can_be_asked(call: Call, daemon: fake.Script) -> None:
    daemon.on("POST", "/prune", answer(IMAGE))
    said = call("prune", "--all")
    assert said.code == 4
    assert "40.1 MB in all" in said.out
    assert "the same command with --yes removes it" in said.err
    assert [asked.body["dry_run"] for asked in daemon.asked] == [True]


def test_the_document_says_whether_it_was_a_dry_run(call: Call, daemon: fake.Script) -> None:
    daemon.on("POST", "/prune", answer())
    assert call("prune", "--yes", "--json").document["dry_run"] is False
    assert call("prune", "--dry-run", "--json").document["dry_run"] is True

"""`outrider measured`: what was learned, on a screen."""

from __future__ import annotations

from typing import Any

from tests.cli import fake
from tests.cli.conftest import Call


def view(**changes: Any) -> dict[str, Any]:
    return {
        "model": "m", "variant": "q4", "runtime": "llama.cpp", "version": "b11434", "arch": "sm_86",
        "method": "dflash", "drafter": "d", "starts": 3, "memory": -(200 << 20), "load_s": 12.5, "tokens_s": 81.26,
        "seen": "2026-11-30", "other_drivers": [], **changes,
    }  # fmt: skip


def test_ls(call: Call, daemon: fake.Script) -> None:
    other = view(model="n", drafter=None, memory=None, load_s=None, tokens_s=None, seen=None, other_drivers=["580.1"])
    daemon.on("GET", "/measurements", [view(), other])
    said = call("measured", "ls")
    first, second = said.out.splitlines()[-2:]
    for word in ("llama.cpp b11434", "sm_86", "dflash (d)", "-209.7 MB", "81.3", "2026-11-30"):
        assert word in first
    assert "with driver 580.1" in second
    assert call("measured", "ls", "--json").document == [view(), other]
    daemon.on("GET", "/measurements", [])
    assert "nothing was learned yet" in call("measured", "ls").err


def test_rm(call: Call, daemon: fake.Script) -> None:
    daemon.on("DELETE", "/measurements", {"forgotten": 1})
    assert "forgot 1 combination\n" in call("measured", "rm", "m").out
    assert daemon.asked[-1].query == "model=m"
    assert call("measured", "rm", "--all", "--json").document == {"forgotten": 1}
    assert daemon.asked[-1].query == ""
    assert call("measured", "rm").code == 2
    assert call("measured", "rm", "m", "--all").code == 2
    daemon.on("DELETE", "/measurements", {"forgotten": 0})
    assert "nothing of it was known" in call("measured", "rm", "x").out

"""Reading, refusing and keeping of routing tables."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from api.gateway import table
from api.gateway.table import TableRefused

ENGINE: dict[str, Any] = {
    "engine": "0123456789abcdef",
    "generation": 3,
    "socket": "/run/engine.sock",
    "port": None,
    "key": "secret",
    "plan": "ab" * 32,
    "method": "none",
    "admit": True,
}
MODEL: dict[str, Any] = {
    "name": "m",
    "aliases": ["a"],
    "state": "ready",
    "hold": False,
    "reason": None,
    "retry_after_s": None,
    "engines": [ENGINE],
}
TABLE: dict[str, Any] = {
    "schema": 1,
    "boot_id": "boot",
    "owner": "owner",
    "host": "h",
    "revision": 12,
    "models": [MODEL],
}


def text(model: dict[str, Any] | None = None, engine: dict[str, Any] | None = None, **top: Any) -> str:
    engines = [{**ENGINE, **(engine or {})}]
    return json.dumps({**TABLE, "models": [{**MODEL, "engines": engines, **(model or {})}], **top})


def test_a_table_is_read() -> None:
    read = table.parse(text())
    assert (read.revision, read.host, read.owner) == (12, "h", "owner")
    (model,) = read.models
    assert (model.name, model.aliases, model.state, model.hold) == ("m", ("a",), "ready", False)
    assert model.engines[0].socket == "/run/engine.sock"
    assert model.engines[0].port is None
    assert model.engines[0].admit


def test_what_is_new_is_read_over_and_what_is_missing_has_a_meaning() -> None:
    read = table.parse(
        json.dumps(
            {
                **TABLE,
                "future": 1,
                "models": [
                    {"name": "m", "state": "hibernating", "reason": {"code": "c", "text": "why", "hint": "do"}},
                    {"name": "o", "state": "failed", "reason": "an older daemon's"},
                    {"name": "n", "state": "ready", "retry_after_s": 3, "engines": [{**ENGINE, "weight": 2}]},
                ],
            }
        )
    )
    assert read.models[0].engines == ()
    assert read.models[0].reason == table.Reason("why", "c", "do")
    assert read.models[1].reason == table.Reason("an older daemon's")
    assert read.models[2].retry_after_s == 3.0


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "table: not an object"),
        (text(schema=2), "schema 2"),
        (text(revision="1"), "table.revision"),
        (text(revision=True), "table.revision"),
        (text(models={}), "table.models"),
        (text(models=[1]), "models[0]: not an object"),
        (text(host="a\r\nb"), "host"),
        (text(boot_id=None), "table.boot_id"),
        (text({"name": ""}), "models[0].name"),
        (text({"aliases": [1]}), "models[0].aliases"),
        (text({"aliases": ["\ud800"]}), "models[0].aliases"),
        (text({"name": "\udfff"}), "models[0].name"),
        (text(engine={"socket": "/\ud800"}), "socket"),
        (text({"hold": "no"}), "models[0].hold"),
        (text({"retry_after_s": -1}), "models[0].retry_after_s"),
        (text({"engines": {}}), "models[0].engines"),
        (text({"engines": [ENGINE, ENGINE]}), "twice"),
        (text(models=[MODEL, {**MODEL, "engines": []}]), "twice"),
        (text(engine={"socket": None}), "exactly one"),
        (text(engine={"port": 17000}), "exactly one"),
        (text(engine={"socket": None, "port": 70000}), "no port"),
        (text(engine={"socket": "relative"}), "socket"),
        (text(engine={"socket": "/" + "x" * 107}), "socket"),
        (text(engine={"socket": "/a\0b"}), "socket"),
        (text(engine={"key": "a\nb"}), "key"),
        (text(engine={"method": "é"}), "method"),
        (text(engine={"generation": None}), "generation"),
    ],
    ids=lambda value: value[:40] if len(value) < 60 else "table",
)
def test_a_table_that_is_wrong_anywhere_is_refused(broken: str, said: str) -> None:
    with pytest.raises(TableRefused) as caught:
        table.parse(broken)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_names_win_over_aliases_and_the_first_alias_wins() -> None:
    models = [
        {**MODEL, "name": "x", "aliases": ["y", "z"], "engines": []},
        {**MODEL, "name": "y", "aliases": ["z"], "engines": []},
    ]
    index = table.index(table.parse(text(models=models)))
    assert {name: model.name for name, model in index.items()} == {"x": "x", "y": "y", "z": "x"}


def test_the_copy_on_disk_is_private_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "gateway" / "table.json"
    table.save(path, "old")
    table.save(path, text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [item.name for item in path.parent.iterdir()] == ["table.json"]
    assert table.load(path, boot_id="boot", owner="owner") == table.parse(text())


@pytest.mark.parametrize(("boot_id", "owner", "said"), [("x", "owner", "boot"), ("boot", "x", "state folder")])
def test_a_table_of_another_boot_or_folder_is_void(tmp_path: Path, boot_id: str, owner: str, said: str) -> None:
    path = tmp_path / "table.json"
    table.save(path, text())
    with pytest.raises(TableRefused, match=said):
        table.load(path, boot_id=boot_id, owner=owner)


def test_no_table_on_disk_is_no_error(tmp_path: Path) -> None:
    assert table.load(tmp_path / "table.json", boot_id="b", owner="o") is None
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(TableRefused, match="cannot read"):
        table.load(path, boot_id="b", owner="o")

"""What is allowed and cannot be meant is said with file, key and the next step; what is meant is not."""

from __future__ import annotations

import pytest

from orchestrator.catalogue import shipped
from orchestrator.config_cautions import cautions
from orchestrator.config_problems import Problem
from tests.config.conftest import Folder


def found(folder: Folder) -> list[Problem]:
    config = folder.load()
    known = config.laid_over(shipped())
    return list(cautions(config, str(folder.where.config_file), known.model, [m.name for m in known.models]))


def group(members: list[str], more: str = "") -> str:
    return f'[[group]]\nname = "g"\nmembers = {members}\n{more}\n'.replace("'", '"')


CASES = [
    # (settings, key, in the detail, in the hint)
    (group(["a", "b", "cc"]), "members", "'cc' is no model here, so it keeps nobody out", "did you mean"),
    (group(["a", "b", "zzzzzzzz"]), "members", "'zzzzzzzz' is no model here", "`outrider models`"),
    (group(["also-a", "b", "c"]), "members", "'also-a' is another name of 'a'", "write 'a'"),
    (group(["a"]), "at_once", "is 1 for 1 member, so the group keeps nobody out", "add the models meant"),
    (group(["a", "b"], "at_once = 2"), "at_once", "is 2 for 2 members", "lower it"),
    (group(["a", "b", "pinned"]), "members", "pinned is pinned and once loaded never", "pinned = false for pinned"),
    (group(["pinned", "pinned2"]), "members", "only 1 of them can ever be loaded", "take them out"),
    (
        group(["pinned", "a", "b"], "at_once = 2\nexclusive = true"),
        "members",
        "no model outside of the group",
        "take it",
    ),
]
FINE = [
    "",
    group(["a", "b"]),
    group(["a", "b", "c"], "at_once = 2"),
    group(["a"], "exclusive = true"),
    group(["a", "b", "pinned"], "at_once = 2"),
]


@pytest.fixture
def four(folder: Folder) -> Folder:
    folder.model("a", 'aliases = ["also-a"]')
    for name in ("b", "c"):
        folder.model(name)
    for name in ("pinned", "pinned2"):
        folder.model(name, "pinned = true")
    return folder


@pytest.mark.parametrize(("settings", "key", "detail", "hint"), CASES)
def test_groups_that_cannot_be_meant(four: Folder, settings: str, key: str, detail: str, hint: str) -> None:
    four.settings(settings)
    (problem,) = found(four)
    assert (problem.file, problem.key) == (str(four.where.config_file), f"group[g].{key}")
    assert detail in problem.detail
    assert hint in problem.hint


@pytest.mark.parametrize("settings", FINE)
def test_groups_that_can(four: Folder, settings: str) -> None:
    four.settings(settings)
    assert found(four) == []


def test_a_pinned_model_has_no_time_to_live(folder: Folder) -> None:
    file = folder.model("m", "pinned = true\nttl_s = 60")
    (problem,) = found(folder)
    assert (problem.file, problem.key) == (str(file), "model[m].ttl_s")


def test_two_groups_of_one_name_are_an_error(folder: Folder) -> None:
    folder.model("a")
    file = folder.settings(group(["a"], "exclusive = true") * 2)
    problem = folder.problem()
    assert (problem.file, problem.key) == (str(file), "group[g].name")
    assert "rename one of them" in problem.hint


def test_a_member_named_twice_is_an_error(folder: Folder) -> None:
    folder.settings(group(["a", "a"]))
    assert "member named twice: a" in folder.problem().detail

"""What is wrong is said with file, key, what was found and a hint."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from orchestrator.config import ConfigProblems
from orchestrator.errors import exit_code
from tests.config.conftest import Folder

SETTINGS = [
    # (outrider.toml, key, in the detail, in the hint)
    ('[gateway]\nlistn = "127.0.0.1:1"', "gateway.listn", "not a known key", "'listen'"),
    ("[gatway]", "gatway", "not a known key", "'gateway'"),
    (
        "[zzz]",
        "zzz",
        "not a known key",
        "known here: api, demand, engine, gateway, group, guard, host, hub, images, logs, podman, store, timing",
    ),
    (
        '[gateway]\nlisten = "127.0.0.1"',
        "gateway.listen",
        "'127.0.0.1' is no address to listen on: has no port",
        "host:",
    ),
    ("[gateway]\nlisten = 8080", "gateway.listen", "expected text in quotes, found 8080", 'listen = "8080"'),
    ('[gateway]\nmax_waiting = "8"', "gateway.max_waiting", "expected a whole number, found '8'", "max_waiting = 8"),
    ('[gateway]\nmax_waiting = "x"', "gateway.max_waiting", "a whole number, found 'x'", "without quotes"),
    ("[gateway]\nmax_waiting = 1.5", "gateway.max_waiting", "found 1.5", "whole number"),
    ("[gateway]\nmax_waiting = -1", "gateway.max_waiting", "found -1", "at least 0"),
    ("[gateway]\nmax_waiting = true", "gateway.max_waiting", "found true", "whole number"),
    ("[gateway]\nhold_s = inf", "gateway.hold_s", "found inf", "finite"),
    ("[gateway]\nhold_s = nan", "gateway.hold_s", "found nan", "finite"),
    ("[gateway]\nhold_s = 2026-01-01", "gateway.hold_s", "found the date or time 2026-01-01", "quotes"),
    ("gateway = 3", "gateway", "expected a table, found 3", "[gateway]"),
    ("[[gateway]]", "gateway", "expected a table, found a list", "[gateway]"),
    ('[api]\nenabled = "yes"', "api.enabled", "expected true or false, found 'yes'", "enabled = true"),
    ('[api]\nlisten = "0.0.0.0:8081"', "api.listen", "not a loopback address", "127.0.0.1"),
    ('[api]\nlisten = "gpu.lan:8081"', "api.listen", "not a loopback address", "127.0.0.1"),
    ('[api]\nlisten = "127.0.0.1:8080"', "api.listen", "is also gateway.listen", "port of its own"),
    ('[gateway]\nops_listen = "127.0.0.1:8080"', "gateway.ops_listen", "is also gateway.listen", "port of its own"),
    ("[timing]\nscale = 0", "timing.scale", "found 0", "greater than 0"),
    ('[podman]\nsocket = "podman.sock"', "podman.socket", "found 'podman.sock'", "absolute path"),
    ('[hub]\ntoken_file = "hub.token"', "hub.token_file", "found 'hub.token'", "begins with /"),
    ('[hub]\nendpoint = "ftp://hub.lan"', "hub.endpoint", "found 'ftp://hub.lan'", "https:// or http://"),
    (
        '[images]\nmirrors = { "docker.io" = "http://mirror.lan" }',
        "images.mirrors",
        "found 'http://mirror.lan'",
        "HOST[:PORT][/PATH]",
    ),
    ('[host]\nname = "my host"', "host.name", "found 'my host'", "letters, digits"),
    ("[engine]\nparallel = 1000", "engine.parallel", "found 1000", "at most 256"),
    ('[engine]\nimage = ""', "engine.image", "empty", "give it a value"),
    ('[[model]]\nname = "m"', "model", "does not belong in this file", "models.d/"),
]


@pytest.mark.parametrize(("text", "key", "detail", "hint"), SETTINGS, ids=[s[0].replace("\n", " ") for s in SETTINGS])
def test_settings(folder: Folder, text: str, key: str, detail: str, hint: str) -> None:
    file = folder.settings(text)
    problem = folder.problem()
    assert (problem.file, problem.key) == (str(file), key)
    assert detail in problem.detail
    assert hint in problem.hint


MODELS = [
    # (keys of the model, what follows its variant, key, in the detail, in the hint)
    ("paralell = 2", "", "model[m1].paralell", "not a known key", "'parallel'"),
    ('aliases = "X"', "", "model[m1].aliases", "expected a list, found 'X'", 'aliases = ["X"]'),
    ('aliases = ["bad alias"]', "", "model[m1].aliases[0]", "found 'bad alias'", "letters, digits"),
    ('runtime = "vLLM"', "", "model[m1].runtime", "found 'vLLM'", "'vllm'"),
    ('runtime = "tensorrt"', "", "model[m1].runtime", "found 'tensorrt'", "llama.cpp, sglang, vllm"),
    ("runtime = 3", "", "model[m1].runtime", "expected one of llama.cpp, vllm, sglang, found 3", "one of"),
    ('context = "4k"', "", "model[m1].context", "found '4k'", "whole number"),
    ("context = 0", "", "model[m1].context", "found 0", "greater than 0"),
    ('variant = "q4"', "", "model[m1]", "variant 'q4' is not one of q8", "schema"),
    ("", '[model.speculation]\nmethod = "dflsh"', "model[m1].speculation.method", "found 'dflsh'", "'dflash'"),
    ("", "[model.speculation]\nmethod = 4", "model[m1].speculation.method", "found 4", "auto"),
    ("", "[model.speculation]\nresume_below = 9", "model[m1].speculation", "resume_below must be less", "schema"),
    ("", "[model.speculaton]", "model[m1].speculaton", "not a known key", "'speculation'"),
    (
        "",
        '[[model.variants]]\nname = "q4"\nformat = "ggfu"\nquantisation = "q4"\npath = "x"',
        "model[m1].variants[q4].format",
        "found 'ggfu'",
        "'gguf'",
    ),
    (
        "",
        '[[model.variants]]\nname = "q4"\nformat = "gguf"\nquantisation = "q4"',
        "model[m1].variants[q4]",
        "exactly one of path and repository",
        "schema",
    ),
    (
        "",
        '[[model.variants]]\nformat = "gguf"\nquantisation = "q4"\npath = "x"',
        "model[m1].variants[1].name",
        "missing",
        "name =",
    ),
    (
        "",
        '[[model.drafters]]\nname = "d"\nmethod = "ngram"\nformat = "gguf"\npath = "x"',
        "model[m1].drafters[d]",
        "takes no drafter",
        "schema",
    ),
]


@pytest.mark.parametrize("case", MODELS, ids=[(m[0] + m[1]).replace("\n", " ") for m in MODELS])
def test_models(folder: Folder, case: tuple[str, str, str, str, str]) -> None:
    extra, more, key, detail, hint = case
    file = folder.model("m1", extra, more)
    problem = folder.problem()
    assert (problem.file, problem.key) == (str(file), key)
    assert detail in problem.detail
    assert hint in problem.hint


WHOLE_FILES = [
    ('[model]\nname = "m1"', "model", "expected a list, found a table", "[[model]] instead of [model]"),
    ('[[models]]\nname = "m1"', "models", "not a known table", "[[model]]"),
    ("[gateway]", "gateway", "does not belong in this file", "outrider.toml"),
    ("[[model]]", "model[0].name", "missing", "name ="),
    ('[[model]]\nname = "m1"\nvariants = []', "model[m1].variants", "is empty", "[[model.variants]]"),
    ('[[model]]\nname = "m1"', "model[m1].variants", "missing", "[[model.variants]]"),
    ('[[model]]\nname = "M 1"\nvariants = []', "model[M 1].name", "found 'M 1'", "lower-case"),
]


@pytest.mark.parametrize(("text", "key", "detail", "hint"), WHOLE_FILES, ids=[w[0] for w in WHOLE_FILES])
def test_whole_model_files(folder: Folder, text: str, key: str, detail: str, hint: str) -> None:
    file = folder.models("m.toml", text)
    problem = next(p for p in folder.problems() if p.key == key)
    assert problem.file == str(file)
    assert detail in problem.detail
    assert hint in problem.hint


def test_bad_toml_names_the_line(folder: Folder) -> None:
    file = folder.models("m.toml", "a = 1\nb = = 2\n")
    problem = folder.problem()
    assert (problem.file, problem.key) == (str(file), None)
    assert "not TOML" in problem.detail
    assert "line 2" in problem.detail


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a = " + "{a=" * 900 + "1", "nested too deeply"),
        ("x = 1\n" + ".".join("a" * 50_000) + " = 1", "dots in line 2"),
        ("a = " + "9" * 5000, "is not TOML"),
    ],
    ids=["arrays", "tables", "dotted", "digits"],
)
def test_toml_that_wears_the_reader_out(folder: Folder, text: str, detail: str) -> None:
    file = folder.models("m.toml", text)
    begin = time.process_time()
    problem = folder.problem()
    assert (problem.file, time.process_time() - begin < 2) == (str(file), True)
    assert detail in problem.detail


def test_a_file_that_is_not_utf8(folder: Folder) -> None:
    file = folder.settings("")
    file.write_bytes(b'[host]\nname = "\xff"')
    assert "not UTF-8 (byte 15)" in folder.problem().detail


def test_a_file_that_is_no_file(folder: Folder) -> None:
    folder.where.models_d.mkdir()
    os.mkfifo(folder.where.models_d / "m.toml")  # reading it would wait for ever
    assert "not a regular file" in folder.problem().detail


def test_a_file_that_is_too_long(folder: Folder) -> None:
    file = folder.settings("")
    os.truncate(file, 5 * 2**20)
    assert "bytes long" in folder.problem().detail


def test_a_file_that_cannot_be_read(folder: Folder) -> None:
    folder.where.models_d.mkdir()
    (folder.where.models_d / "m.toml").symlink_to("nowhere")
    problem = folder.problem()
    assert problem.file == str(folder.where.models_d / "m.toml")
    assert "No such file" in problem.detail


def test_settings_that_link_to_nowhere_are_no_defaults(folder: Folder) -> None:
    folder.where.config_file.symlink_to("nowhere")
    assert "No such file" in folder.problem().detail


def test_models_d_that_is_a_file(folder: Folder) -> None:
    folder.where.models_d.write_text("")
    assert folder.problem().file == str(folder.where.models_d)


def test_the_same_model_in_two_files_names_both(folder: Folder) -> None:
    first, second = folder.model("m1", file="a.toml"), folder.model("m1", file="b.toml")
    problem = folder.problem()
    assert (problem.file, problem.key) == (str(second), "model[m1].name")
    assert str(first) in problem.detail


def test_an_alias_that_is_another_models_name(folder: Folder) -> None:
    first = folder.model("m1", file="a.toml")
    second = folder.model("m2", 'aliases = ["m1"]', file="b.toml")
    problem = folder.problem()
    assert (problem.file, problem.key) == (str(second), "model[m2].aliases")
    assert "'m1' is already taken by model[m1].name" in problem.detail
    assert str(first) in problem.detail


def test_a_clash_shows_beside_other_errors(folder: Folder) -> None:
    folder.model("m1", file="a.toml")
    folder.model("m1", "context = 0", file="b.toml")
    assert {p.key for p in folder.problems()} == {"model[m1].context", "model[m1].name"}


def test_a_models_own_name_may_stand_among_its_aliases(folder: Folder) -> None:
    folder.model("m1", 'aliases = ["m1"]')
    assert folder.load().models[0].aliases == ("m1",)


def test_all_problems_of_all_files_come_at_once(folder: Folder) -> None:
    settings = folder.settings("[gateway]\nlisten = 1\nmax_waiting = -1")
    one = folder.model("m1", "context = 0")
    two = folder.models("n.toml", "= 1")
    with pytest.raises(ConfigProblems) as raised:
        folder.load()
    error = raised.value
    assert [(p.file, p.key) for p in error.problems] == [
        (str(settings), "gateway.listen"),
        (str(settings), "gateway.max_waiting"),
        (str(one), "model[m1].context"),
        (str(two), None),
    ]
    assert all(p.hint for p in error.problems)
    assert (error.file, error.key) == (str(settings), "gateway.listen")
    assert "and 3 more" in error.detail
    assert exit_code(error) == 1
    assert error.code == "config_invalid"
    assert [p["key"] for p in error.evidence["problems"]] == [p.key for p in error.problems]  # type: ignore[attr-defined]


def test_what_is_found_is_cut_short(folder: Folder) -> None:
    folder.settings(f'[engine]\ncontext = "{"9" * 500}"')
    assert len(folder.problem().detail) < 120


def test_loading_touches_nothing(folder: Folder, tmp_path: Path) -> None:
    folder.load()
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["config"]

"""probe, plan, catalog and config: what answers without a daemon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.config_schema import schema
from orchestrator.paths import Paths
from tests.cli.conftest import Call

NAMED = """
[[model]]
name = "mine"
aliases = ["Mine"]
[[model.variants]]
name = "q8"
format = "gguf"
quantisation = "q8_0"
path = "mine.gguf"
"""


def test_probe(call: Call) -> None:
    document = call("probe", "--json").document
    assert {"host", "cpu", "memory", "accelerators", "problems"} <= set(document)
    assert document["cpu"]["threads"] >= 1
    said = call("probe")
    assert said.code == 0
    assert f"{document['cpu']['threads']} threads" in said.out


@pytest.mark.parametrize("profile", ["dankserver", "dankclaw"])
def test_planning_for_a_shipped_host(call: Call, profile: str) -> None:
    said = call("plan", "qwen3.6-27b", "--profile", profile, "--json")
    assert said.code == 0
    plan = said.document["plan"]
    assert plan["model"] == "qwen3.6-27b"
    assert len(plan["digest"]) == 64
    assert all({"code", "text", "source"} <= set(reason) for reason in plan["reasons"])
    assert said.document["alternatives"]
    human = call("plan", "qwen3.6-27b", "--profile", profile, "--all")
    assert plan["digest"] in human.out
    assert "[method]" in human.out


def test_planning_for_a_host_in_a_file_is_the_same(call: Call, tmp_path: Path) -> None:
    from orchestrator import profiles  # noqa: PLC0415

    file = tmp_path / "facts.json"
    file.write_text(json.dumps(profiles.load("dankserver").to_dict()))
    from_file = call("plan", "qwen3.6-27b", "--facts", str(file), "--json").document
    assert from_file == call("plan", "qwen3.6-27b", "--profile", "dankserver", "--json").document


def test_what_if(call: Call) -> None:
    words = ("plan", "qwen3.6-27b", "--profile", "dankserver", "--json", "--what-if")
    plan = call(*words, "method=none,context=2048", "--what-if", "parallel=2").document["plan"]
    assert (plan["method"], plan["context"], plan["parallel"]) == ("none", 2048, 2)


def test_what_does_not_fit_is_four_with_a_document(call: Call) -> None:
    said = call("plan", "qwen3.6-27b", "--profile", "dankserver", "--json", "--what-if", "context=4000000")
    assert said.code == 4
    assert said.document["plan"] is None
    assert any(other["rejected"] for other in said.document["alternatives"])
    human = call("plan", "qwen3.6-27b", "--profile", "dankserver", "--what-if", "context=4000000")
    assert human.code == 4
    assert human.out.startswith("no plan")


@pytest.mark.parametrize(
    ("words", "code", "detail"),
    [
        (("qwen3.6-27", "--profile", "dankserver"), 3, "did you mean 'qwen3.6-27b'?"),
        (("qwen3.6-27b", "--profile", "nowhere"), 3, "dankclaw, dankserver"),
        (("qwen3.6-27b", "--facts", "nowhere.json"), 3, "No such file"),
        (("qwen3.6-27b", "--what-if", "colour=red"), 2, "colour"),
    ],
)
def test_wrong_wishes(call: Call, words: tuple[str, ...], code: int, detail: str) -> None:
    said = call("plan", *words)
    assert said.code == code
    assert detail in said.err


@pytest.mark.parametrize("text", ["{", "[]", '{"host": 3}', '{"host": "h"}'])
def test_facts_that_are_none(call: Call, tmp_path: Path, text: str) -> None:
    (tmp_path / "f.json").write_text(text)
    said = call("plan", "qwen3.6-27b", "--facts", str(tmp_path / "f.json"))
    assert said.code == 2
    assert "error[usage]: --facts" in said.err


def test_catalog_with_the_users_models(call: Call, paths: Paths) -> None:
    paths.models_d.mkdir(parents=True)
    (paths.models_d / "mine.toml").write_text(NAMED)
    document = call("catalog", "list", "--json").document
    origins = {m["name"]: m["origin"] for m in document["models"]}
    assert origins["mine"] == str(paths.models_d / "mine.toml")
    assert origins["qwen3.6-27b"] == "catalogue"
    assert any(image["name"] == "embedded-cpu" for image in document["images"])
    assert "mine" in call("catalog", "list").out
    assert call("catalog", "show", "Mine", "--json").document["variants"][0]["path"] == "mine.gguf"
    assert "mine.gguf" in call("catalog", "show", "Mine").out
    assert call("catalog", "show", "Meins").code == 3


def test_config_check(call: Call, paths: Paths) -> None:
    assert "defaults" in call("config", "check").out
    paths.models_d.mkdir(parents=True)
    file = paths.models_d / "mine.toml"
    file.write_text(NAMED)
    said = call("config", "check")
    assert said.code == 0
    assert said.out == f"{file}\nok: 1 model\n"
    assert call("config", "check", "--json").document == {
        "ok": True,
        "problems": [],
        "files": [str(file)],
        "models": ["mine"],
        "warnings": [],
    }


def test_config_check_warns_of_what_cannot_be_meant(call: Call, paths: Paths) -> None:
    paths.models_d.mkdir(parents=True)
    (paths.models_d / "mine.toml").write_text(NAMED)
    paths.config_file.write_text('[[group]]\nname = "g"\nmembers = ["mine", "mien"]\n')
    said = call("config", "check")
    assert (said.code, said.out.splitlines()[-1]) == (0, "ok: 1 model")
    key = "group[g].members"
    detail, hint = "'mien' is no model here, so it keeps nobody out", "did you mean 'mine'?"
    assert said.err == f"warning: {paths.config_file}: {key}: {detail}; {hint}\n"
    (warning,) = call("config", "check", "--json").document["warnings"]
    assert warning == {"file": str(paths.config_file), "key": key, "detail": detail, "hint": hint}


@pytest.mark.parametrize(
    ("listen", "warned"),
    [
        ("0.0.0.0:8080", True),
        ("[::]:8080", True),
        ("box.lan:80", True),
        ("127.0.0.2:80", False),
        ("localhost:80", False),
    ],
)
def test_config_check_says_what_a_gateway_on_the_network_means(
    call: Call, paths: Paths, listen: str, warned: bool
) -> None:
    paths.config_dir.mkdir()
    paths.config_file.write_text(f'[gateway]\nlisten = "{listen}"\n')
    said = call("config", "check")
    assert said.code == 0
    assert said.err.startswith(f"warning: [gateway] listen is {listen}") is warned
    assert ("asks for no key" in said.err) is warned


def test_config_check_explains_every_error(call: Call, paths: Paths) -> None:
    paths.models_d.mkdir(parents=True)
    paths.config_file.write_text("[gatway]\n")
    file = paths.models_d / "mine.toml"
    file.write_text(NAMED.replace('"gguf"', '"ggfu"'))
    said = call("config", "check")
    assert said.code == 1
    assert said.err.splitlines() == [
        f"error[config_invalid]: {paths.config_file}: gatway: is not a known key",
        "hint: did you mean 'gateway'?",
        f"error[config_invalid]: {file}: model[mine].variants[q8].format: found 'ggfu'",
        "hint: did you mean 'gguf'? (one of gguf, safetensors)",
    ]
    said = call("config", "check", "--json")
    assert said.code == 1
    assert [p["key"] for p in said.document["problems"]] == ["gatway", "model[mine].variants[q8].format"]


def test_config_show(call: Call, paths: Paths) -> None:
    paths.config_dir.mkdir()
    paths.config_file.write_text("[engine]\ncontext = 512\n")
    document = call("config", "show", "--json").document
    assert document["defaults"]["context"] == 512
    assert document["gateway"]["listen"] == "127.0.0.1:8080"
    assert document["folders"]["state"] == str(paths.state_dir)
    said = call("config", "show")
    assert "[engine]\ncontext = 512\n" in said.out
    assert f'run = "{paths.run_dir}"' in said.out


def test_config_schema(call: Call) -> None:
    assert call("config", "schema").document == json.loads(json.dumps(schema()))

"""`outrider catalog list|show|check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from api.cli.main import main
from orchestrator import catalogue

SHIPPED = catalogue.shipped()


class Said:
    """What a call answered."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> Said:
        code = main(["--config", str(tmp_path / "config"), "--state-dir", str(tmp_path / "state"), "catalog", *words])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


def test_each_kind_is_listed_as_a_table_and_as_a_document(call: Any) -> None:
    for kind in ("models", "images", "combinations", "restrictions", "runtimes", "handled"):
        document = call("list", kind, "--json").document
        assert list(document) == [kind]
        assert len(document[kind]) == len(getattr(SHIPPED, kind))
        assert call("list", kind).out.count("\n") > len(getattr(SHIPPED, kind))
    assert set(call("list", "--json").document) >= {"models", "images", "combinations"}


def test_filters(call: Any) -> None:
    found = call("list", "combinations", "--model", "qwen3.8-27b", "--arch", "sm_86", "--evidence", "proven", "--json")
    ids = {c["id"] for c in found.document["combinations"]}
    assert "38-3090-mtp" in ids
    assert not any(i.startswith(("36", "38-strix", "ling")) for i in ids)
    rows = call("list", "restrictions", "--runtime", "sglang", "--method", "dspark", "--json").document["restrictions"]
    assert {r["runtime"] for r in rows} == {"sglang"}
    assert call("list", "--expired", "--json").document["combinations"] == []
    assert call("list", "--model", "qwen9").code == 3


def test_show_says_everything_of_a_model_on_a_host(call: Any) -> None:
    document = call("show", "qwen3.6-27b", "--profile", "dankclaw", "--json").document
    ids = {r["id"] for r in document["restrictions"]}
    assert {"vllm-gfx1151-graphs", "vllm-rocm-flash-attn"} <= ids
    assert not any("fp8-kv" in i for i in ids)
    assert all(c["arch"] in ("gfx1151", "*") for c in document["combinations"])
    said = call("show", "qwen3.6-27b").out
    assert "dflash is gated" in said
    assert "proven 2026-07-28, until 2027-07-28" in said
    assert "vllm-hybrid-illegal-access" in said
    assert "tok/s 45.5 at 1, 86.3 at 2, " in call("show", "qwen3.8-27b", "--profile", "dankserver").out


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("docker.io/vllm/vllm-openai:v0.33.0", "image"),
        ("38-3090-mtp", "combination"),
        ("vllm-dflash-slots", "restriction"),
        ("vllm-marlin-warning", "handled"),
        ("Ollama", "runtime"),
        ("trtllm", "runtime"),
    ],
)
def test_show_knows_all_kinds(call: Any, name: str, kind: str) -> None:
    assert call("show", name, "--json").document["kind"] == kind
    assert "source" in call("show", name).out


def test_show_says_what_is_near(call: Any) -> None:
    said = call("show", "vllm-dflash-slot")
    assert said.code == 3
    assert "did you mean 'vllm-dflash-slots'?" in said.err


def test_what_ships_is_checked_and_good(call: Any) -> None:
    said = call("check", "--json")
    assert said.code == 0
    assert (said.document["ok"], said.document["problems"]) == (True, [])
    assert said.document["warnings"] == []


OWN = """
[[combination]]
id = "mine"
model = "qwen3.8-28b"
runtime = "vllm"
image = "vllm-cudo"
method = "mtp"
evidence = "proven"
versions = ">=0.30,<0.29"
date = 2026-01-01
expires = 2026-02-01
source = "here"

[[combination]]
id = "twice"
model = "qwen3.8-27b"
variant = "w4a16"
runtime = "vllm"
arch = "sm_86"
method = "none"
evidence = "proven"
versions = "==0.27.1"
date = 2026-01-01
source = "here"

[[restriction]]
id = "vllm-dflash-slot"
disabled = true
"""


def test_what_is_doubtful_is_a_warning_and_what_is_wrong_is_one(call: Any, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN)
    said = call("check", str(file), "--json")
    assert said.code == 0
    warned = {(w["entry"], w["code"]) for w in said.document["warnings"]}
    assert warned == {
        ("combination mine", "unknown_name"),
        ("combination mine", "no_version"),
        ("combination mine", "expired"),
        ("combination twice", "shadowed"),
        ("restriction vllm-dflash-slot", "drops_nothing"),
    }
    assert "did you mean 'qwen3.8-27b'?" in call("check", str(file)).out
    file.write_text(OWN.replace("evidence", "evidense", 1))
    wrong = call("check", str(file))
    assert wrong.code == 1
    assert "combination[mine].evidense" in wrong.err
    assert call("check", str(file), "--json").document["ok"] is False


def test_a_runtime_that_is_not_run_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "qwen3.8-27b", "--profile", "dankserver", "--what-if", "runtime=Ollama", "--json"]
    assert main(["--config", str(tmp_path), "--state-dir", str(tmp_path / "s"), *words]) == 4
    (down,) = json.loads(capsys.readouterr().out)["alternatives"]
    assert down["rejected"]["code"] == "runtime_unsupported"
    assert "llama.cpp" in down["rejected"]["text"]
    assert down["source"]

"""`outrider import` as a person calls it."""

from __future__ import annotations

import io
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from api.cli.main import main

ON = ("--profile", "dankserver")
LINE = "vllm serve Qwen/Qwen3.8-27B --max-model-len 8192"


@pytest.fixture
def outrider(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str) -> tuple[int, str, str]:
        home = ["--state-dir", str(tmp_path / "state"), "--config", str(tmp_path / "config")]
        code = main([*home, *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_a_command_is_shown_and_nothing_is_written(outrider: Any, tmp_path: Path) -> None:
    code, out, err = outrider("import", "--profile", "dankserver", "--", *LINE.split())
    assert code == 0
    assert 'name = "qwen3.8-27b"' in out
    assert "context = 8192" in out
    assert "nothing was written" in err
    assert not (tmp_path / "config").exists()


def test_json_is_one_document(outrider: Any, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"export HF_TOKEN=hf_abcdefghijk\n{LINE}\n")
    code, out, _ = outrider("import", str(tmp_path / "run.sh"), "--profile", "dankserver", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["deployments"], document["written"]) == (1, [])
    [item] = document["items"]
    assert item["model"]["context"] == 8192
    assert {"code", "was", "becomes", "why", "source"} == set(item["changes"][0])
    assert "hf_abc" not in out


def test_write_makes_a_model_that_plan_knows_and_never_overwrites(outrider: Any, tmp_path: Path) -> None:
    words = ("import", "--profile", "dankserver", "--write", "--name", "mine", "--", *LINE.split())
    assert outrider(*words)[0] == 0
    file = tmp_path / "config" / "models.d" / "mine.toml"
    before = file.read_text()
    assert tomllib.loads(before)["model"][0]["name"] == "mine"
    code, _, err = outrider(*words)
    assert code == 4
    assert "is there already" in err
    assert file.read_text() == before
    code, out, _ = outrider("plan", "mine", "--profile", "dankserver", "--json")
    document = json.loads(out)
    rows = [r for r in document["alternatives"] if r["rejected"]] + [document["plan"] or {}]
    assert any(row.get("variant") == "bf16" for row in rows)
    assert code in (0, 4)


def test_what_is_refused_is_four(outrider: Any) -> None:
    fp8 = ["--kv-cache-dtype", "fp8", "--attention-backend", "flash_attn"]
    code, out, _ = outrider("import", "--profile", "dankserver", "--", *LINE.split(), *fp8)
    assert code == 4
    assert "bfloat16 with FLASH_ATTN" in out


def test_standard_input_and_bad_calls(outrider: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINE.encode())))
    assert outrider("import", "-", "--profile", "dankserver")[0] == 0
    assert outrider("import", str(tmp_path / "nowhere"), "--profile", "dankserver")[0] == 3
    assert outrider("import", "--kind", "novel", "ls", "--profile", "dankserver")[0] == 2
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    code, _, err = outrider("import", str(tmp_path / "binary"), "--profile", "dankserver")
    assert code == 2
    assert "error[import_unreadable]" in err
    (tmp_path / "two").write_text(f"{LINE}\n{LINE}\n")
    assert outrider("import", str(tmp_path / "two"), "--write", "--profile", "dankserver")[0] == 2
    assert outrider("import", str(tmp_path / "two"), "--name", "x", "--profile", "dankserver")[0] == 2


@pytest.mark.parametrize(
    ("line", "fits", "said"),
    [
        (LINE, False, "too_big"),
        ("vllm serve dbirks/Qwen3.8-27B-W4A16-AutoRound --max-model-len 8192", True, "8192 tokens x 2"),
    ],
)
def test_it_says_what_a_plan_would(outrider: Any, tmp_path: Path, line: str, fits: bool, said: str) -> None:
    """A deployment that nothing on this host can launch is not shown as if it could be."""
    words = ("import", "--profile", "dankserver", "--name", "mine")
    [item] = json.loads(outrider(*words, "--json", "--", *line.split())[1])["items"]
    assert item["here"]["fits"] is fits
    assert said in f"{item['here']['code']} {item['here']['text']}"
    out = outrider(*words, "--", *line.split())[1]
    assert ("here: cannot be launched" in out) is not fits
    outrider(*words, "--write", "--", *line.split())
    assert (outrider("plan", "mine", "--profile", "dankserver")[0] == 0) is fits


def test_a_known_limit_is_no_change(outrider: Any) -> None:
    line = 'vllm serve Qwen/Qwen3.8-27B --speculative-config {"method":"mtp","num_speculative_tokens":3}'
    out = outrider("import", "--profile", "dankserver", "--", *line.split())[1]
    known = [text for text in out.splitlines() if "known_limit" in text]
    assert known
    assert not any("left out" in text for text in known)


def test_files_of_the_catalogue_are_known_to_import_and_fit(outrider: Any, tmp_path: Path) -> None:
    folder = tmp_path / "config" / "catalog.d"
    folder.mkdir(parents=True)
    (folder / "own.toml").write_text(
        '[[model]]\nname = "own"\naliases = ["me/own"]\n[[model.variants]]\nname = "w4"\nformat = "safetensors"\n'
        'quantisation = "W4A16"\nrepository = "me/own"\nweight_bytes = 9000000000\n'
    )
    code, out, _ = outrider("fit", "--model", "own", "--profile", "dankserver")
    assert (code, "own on dankserver" in out) == (0, True)
    _, out, _ = outrider("import", "--profile", "dankserver", "--json", "--", "vllm", "serve", "me/own")
    [item] = json.loads(out)["items"]
    assert item["model"]["variants"][0]["weight_bytes"] == 9000000000


def test_a_long_command_in_one_word_is_read_and_not_looked_for_as_a_file(outrider: Any) -> None:
    code, out, err = outrider(
        "import", *ON, f"docker run -e HF_TOKEN=N0tForYou vllm/vllm-openai --model a/b {'--x y ' * 90}"
    )
    assert code == 0
    assert "N0tForYou" not in out + err


def test_write_never_breaks_the_configuration_with_an_alias_that_is_taken(outrider: Any, tmp_path: Path) -> None:
    assert outrider("import", *ON, "--write", "--", *LINE.split())[0] == 0
    code, _, err = outrider("import", *ON, "--write", "--name", "other", "--", *LINE.split())
    assert code == 0
    assert "is left out, qwen3.8-27b has it already" in err
    assert outrider("config", "check")[0] == 0
    assert outrider("import", *ON, "--write", "--name", "Qwen3.8-27B", "--", *LINE.split())[0] != 0
    assert sorted(p.name for p in (tmp_path / "config" / "models.d").iterdir()) == ["other.toml", "qwen3.8-27b.toml"]


def test_nothing_in_a_file_is_said_to_be_nothing(outrider: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nothing\n")
    code, _, err = outrider("import", str(tmp_path / "empty"))
    assert code != 0
    assert "no command was found" in err

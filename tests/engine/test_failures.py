"""What goes wrong for real, and how it looks from outside: the daemon relies on each of these."""

from __future__ import annotations

import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from tests.engine.conftest import Start
from tests.engine.running import LIMIT
from tests.models import generate as models
from tests.waiting import until_sync

COMMON = ("-c", "4096", "-np", "2", "--slots")


def spec(method: str, drafter: Path | None = None) -> list[str | Path]:
    return ["--spec-type", method] if drafter is None else ["--spec-type", method, "-md", drafter]


@pytest.mark.parametrize(
    ("method", "drafter"),
    [("draft-simple", models.DRAFT_FOREIGN), ("draft-dflash", None)],
    ids=["foreign vocabulary", "no drafter named"],
)
def test_speculation_fails_silently(method: str, drafter: str | None, start: Start, test_models: Path) -> None:
    path = None if drafter is None else test_models / drafter
    engine = start(["-m", test_models / models.TARGET, *spec(method, path), *COMMON])
    assert [slot["speculative"] for slot in engine.call("/slots")[1]] == [False, False]
    answer = engine.chat(64)
    assert (answer.text, answer.drafted) == (models.recital(64), 0)


@pytest.mark.parametrize("drafter", [models.EAGLE3, models.DRAFT])
def test_a_drafter_without_a_type_is_ignored(drafter: str, start: Start, test_models: Path) -> None:
    engine = start(["-m", test_models / models.TARGET, "-md", test_models / drafter, *COMMON])
    assert engine.call("/slots")[1][0]["speculative"] is False


def test_a_block_drafter_without_a_type_is_recognised(start: Start, test_models: Path) -> None:
    engine = start(["-m", test_models / models.TARGET, "-md", test_models / models.DFLASH, *COMMON])
    assert engine.chat(256).drafted == 191  # three tokens a step, llama.cpp's default


def test_eagle3_file_as_dflash_answers_500(start: Start, test_models: Path) -> None:
    engine = start(["-m", test_models / models.TARGET, *spec("draft-dflash", test_models / models.EAGLE3), *COMMON])
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    status, value = engine.call("/v1/chat/completions", body)
    assert status == 500
    assert "failed to process speculative batch" in value["error"]["message"]
    assert engine.call("/health")[0] == 200


def test_drafter_of_another_width_aborts(start_only: Start, test_models: Path) -> None:
    engine = start_only(
        ["-m", test_models / models.TARGET, *spec("draft-dflash", test_models / models.DFLASH_WIDE), *COMMON],
        {"GGML_NO_BACKTRACE": "1"},
    )
    assert engine.process.wait(LIMIT) == -signal.SIGABRT
    assert "GGML_ASSERT" in engine.log


def test_mtp_on_a_target_without_a_head(start_only: Start, test_models: Path) -> None:
    engine = start_only(["-m", test_models / models.TARGET, *spec("draft-mtp"), *COMMON])
    assert engine.process.wait(LIMIT) == 1
    assert "doesn't contain MTP layers" in engine.log


@pytest.mark.parametrize("fault", ["missing", "truncated", "no model"])
def test_a_model_that_does_not_load(fault: str, start_only: Start, test_models: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    if fault == "truncated":
        path.write_bytes((test_models / models.TARGET).read_bytes()[:-4096])
    elif fault == "no model":
        path.write_bytes(b"not a model" * 100)
    engine = start_only(["-m", path])
    assert engine.process.wait(LIMIT) == 1
    assert "failed to load model" in engine.log


def test_a_stop_ends_it_cleanly(start: Start, test_models: Path) -> None:
    engine = start(["-m", test_models / models.TARGET, *COMMON])
    until_sync(lambda: "\nlistening on" in engine.log, LIMIT, "the launcher's last word")
    assert stat.S_IMODE(engine.socket.stat().st_mode) == 0o777
    assert engine.stop() == 0
    assert not engine.socket.exists()


def test_a_stop_in_the_first_healthy_moment_is_as_clean(start: Start, test_models: Path) -> None:
    # health comes from threads of C++, before the launcher's own code goes on
    assert start(["-m", test_models / models.TARGET, *COMMON]).stop(signal.SIGINT) == 0


def test_a_stop_while_the_model_loads_is_obeyed(start_only: Start, tmp_path: Path) -> None:
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)  # the loader waits in open() for a writer that never comes
    engine = start_only(["-m", pipe])
    until_sync(lambda: "loading model" in engine.log, LIMIT, "the beginning of the load")
    assert engine.stop() == 0


def test_a_stale_socket_is_replaced(start: Start, test_models: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(tmp_path / "engine.sock"))
    assert start(["-m", test_models / models.TARGET, *COMMON]).chat(8).text == models.recital(8)


def test_a_socket_in_use_is_left_alone(start_only: Start, test_models: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "engine.sock"))
        other.listen()
        engine = start_only(["-m", test_models / models.TARGET])
        assert engine.process.wait(LIMIT) == 1
        assert (tmp_path / "engine.sock").exists()


@pytest.mark.parametrize("way", ["environment", "flag", "file"])
def test_the_key_is_demanded(way: str, start: Start, test_models: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# ours\nsesame\n")
    ways: dict[str, list[str | Path]] = {
        "environment": [],
        "flag": ["--api-key", "sesame"],
        "file": ["--api-key-file", tmp_path / "keys"],
    }
    env = {"LLAMA_API_KEY": "sesame"} if way == "environment" else {}
    engine = start(["-m", test_models / models.TARGET, *COMMON, *ways[way]], env)
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    assert engine.call("/health")[0] == 200
    assert engine.call("/v1/chat/completions", body)[0] == 401
    assert engine.call("/slots")[0] == 401
    assert engine.call("/v1/chat/completions", body, {"Authorization": "Bearer sesame"})[0] == 200
    assert engine.call("/v1/chat/completions", body, {"Authorization": "Bearer wrong"})[0] == 401


def test_names_and_metrics(start: Start, test_models: Path) -> None:
    engine = start(["-m", test_models / models.TARGET, *COMMON, "--metrics", "-a", "one,two", "--alias", "three"])
    status, value = engine.call("/v1/models")
    assert status == 200
    entry = value["data"][0]
    assert {entry["id"], *entry.get("aliases", ())} == {"one", "two", "three"}
    assert "llamacpp:prompt_tokens_total" in engine.call("/metrics")[1]
    assert engine.call("/props")[1]["total_slots"] == 2

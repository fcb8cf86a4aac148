"""Starts that go wrong, for real: the log's own words are recognised."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.models import Runtime
from orchestrator.runtimes import adapter, diagnose
from tests.engine.running import LIMIT, launch
from tests.models import generate as models
from tests.waiting import until_sync

LLAMA = adapter(Runtime.LLAMA_CPP)


@pytest.mark.parametrize(
    ("words", "code", "healthy"),
    [
        ("-m {target} -ctk q8_0 -ctv q8_0 -fa off", "kv_type", False),
        ("-m {target} -ngl 999 --split-mode tensor", "split_unsupported", False),
        ("-m {other}", "architecture_unknown", False),
        ("-m {short}", "model_truncated", False),
        ("-m {target} --spec-type draft-dflash -md /nowhere.gguf", "model_unreadable", False),
        ("-m {headless} --spec-type draft-mtp", "no_mtp_head", False),
        ("-m {target} --spec-type draft-simple -md {foreign}", "speculation_off", True),
        ("-m {target} --draft-max 4", "bad_flag", False),
        ("-m {target} -c 512", None, True),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_its_log_is_recognised(
    words: str, code: str | None, *, healthy: bool, xllamacpp_path: Path, test_models: Path, tmp_path: Path
) -> None:
    target = (test_models / models.TARGET).read_bytes()
    (tmp_path / "other.gguf").write_bytes(target.replace(b"qwen3", b"qwenX"))
    (tmp_path / "short.gguf").write_bytes(target[:-4096])
    places = {
        "target": test_models / models.TARGET,
        "headless": test_models / models.TARGET_HEADLESS,
        "foreign": test_models / models.DRAFT_FOREIGN,
        "other": tmp_path / "other.gguf",
        "short": tmp_path / "short.gguf",
    }
    engine = launch(xllamacpp_path, tmp_path, words.format(**places).split())
    try:
        if healthy:
            until_sync(engine.healthy, LIMIT, "the engine's health")
        else:
            assert engine.process.wait(LIMIT) == 1
        found = diagnose(engine.log.splitlines(), LLAMA.failures)
        assert (None if found is None else found.code) == code, engine.log[-2000:]
    finally:
        engine.process.kill()
        engine.process.wait(LIMIT)

"""The launcher's command line, without an engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from containers.embedded import launcher, options, selftest
from containers.embedded.options import BadArgument, Member, parse
from tests.engine.running import REPOSITORY

HASWELL = "processor : 0\nflags\t\t: fpu sse4_2 avx avx2 fma f16c bmi1 bmi2\n"


def settings(*argv: str, **environ: str) -> options.Settings:
    return parse(argv, environ).settings


def test_a_full_command_line() -> None:
    speculation = ["-md", "/models/d.gguf", "--spec-type", "draft-dflash", "--spec-draft-n-max", "7"]
    shape = ["-c", "8192", "-np", "2", "-ctk", "q8_0", "-fa", "on", "-ngl", "all", "-lm", "mlock"]
    server = ["--host", "/run/engine/engine.sock", "--no-slots", "--no-webui", "--no-warmup"]
    found = settings("-m", "/models/m.gguf", *speculation, *shape, *server)
    assert found == {
        "model.path": "/models/m.gguf",
        "speculative.draft.mparams.path": "/models/d.gguf",
        "speculative.types": [Member("common_speculative_type", "COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH")],
        "speculative.draft.n_max": 7,
        "n_ctx": 8192,
        "n_parallel": 2,
        "hostnames": ["/run/engine/engine.sock"],
        "cache_type_k": Member("ggml_type", "GGML_TYPE_Q8_0"),
        "flash_attn_type": Member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_ENABLED"),
        "endpoint_slots": False,
        "ui": False,
        "warmup": False,
        "n_gpu_layers": -2,
        "load_mode": Member("llama_load_mode", "LLAMA_LOAD_MODE_MLOCK"),
    }


def test_aliases_and_keys_add_up() -> None:
    found = settings("-a", "one, two", "--alias", "three", "--api-key", "x,y", LLAMA_API_KEY="z")
    assert found == {"model_alias": {"one", "two", "three"}, "api_keys": ["z", "x", "y"]}


def test_a_flag_wins_over_the_environment_and_underscores_are_dashes() -> None:
    assert settings("--ctx_size", "2", LLAMA_ARG_CTX_SIZE="1") == {"n_ctx": 2}
    assert settings(LLAMA_ARG_CONT_BATCHING="off") == {"cont_batching": False}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--frobnicate", "error: invalid argument: --frobnicate"),
        ("--no-mmap", "error: invalid argument: --no-mmap"),
        ("--draft-max 4", 'error while handling argument "--draft-max": the argument has been removed'),
        ("-c", 'error while handling argument "-c": expected value for argument'),
        ("-c many", "error while handling argument \"-c\": 'many' is not a whole number"),
        ("--spec-type dflash", "unknown speculative type: dflash"),
        ("--spec-type draft-mtp,", "unknown speculative type: "),
        ("-ctk q9", "Unsupported cache type: q9"),
        ("-fa maybe", "must be one of: on, off, auto"),
        ("-np 0", "invalid value for n_parallel"),
        ("--spec-draft-sampling rude", "must be one of: greedy, probabilistic"),
        ("--chat-template-file /nowhere", "failed to open file '/nowhere'"),
        ("--spec-synth-rates 0.5,x", "'x' is not a number"),
    ],
)
def test_bad_command_lines(argv: str, message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert launcher.main(["-m", "m.gguf", *argv.split(" ")]) == 1
    out, err = capfd.readouterr()
    assert message in err
    assert out == ""


def test_a_bad_environment_is_named() -> None:
    with pytest.raises(BadArgument, match='environment variable "LLAMA_ARG_CTX_SIZE"'):
        settings(LLAMA_ARG_CTX_SIZE="wide")


def test_without_a_model(capfd: pytest.CaptureFixture[str]) -> None:
    assert launcher.main(["-c", "512"]) == 1
    assert "--model is required" in capfd.readouterr().err


def test_defaults_are_completed_like_llama_server_does() -> None:
    assert launcher.with_defaults({"cpuparams.n_threads": 1}) == {
        "hostnames": ["127.0.0.1"],
        "port": 8080,
        "use_jinja": True,
        "n_parallel": 4,
        "kv_unified": True,
        "cpuparams.n_threads": 1,
        "cpuparams_batch.n_threads": 1,
        "speculative.draft.cpuparams.n_threads": 1,
        "speculative.draft.cpuparams_batch.n_threads": 1,
    }
    assert "kv_unified" not in launcher.with_defaults({"n_parallel": 2})


def test_cpu_features() -> None:
    assert selftest.missing_features(HASWELL) == ()
    assert selftest.complaint(HASWELL) is None
    assert selftest.missing_features(HASWELL + HASWELL.replace(" f16c", "")) == ("f16c",)
    assert selftest.missing_features("") == selftest.CPU_FEATURES


def test_an_old_cpu_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cpuinfo").write_text(HASWELL.replace("avx2 fma ", "").replace(" bmi2", ""))
    monkeypatch.setattr(selftest, "CPUINFO", tmp_path / "cpuinfo")
    assert launcher.main(["-m", "m.gguf"]) == 1
    assert "this one lacks avx2, fma, bmi2" in capfd.readouterr().err


_APPLY_ALL = """
import xllamacpp
from containers.embedded import launcher, options

SAMPLES = ("1", "on", "f16", "none", "greedy", "auto", "0.5,0.5", '{"a": 1}', "ngram-mod", __file__)
for option in options.OPTIONS:
    for sample in SAMPLES:
        settings = {}
        try:
            option.take(settings, sample)
        except options.BadArgument:
            continue
        break
    else:
        raise SystemExit(f"no sample suits {option.names}")
    settings.pop("help", None), settings.pop("version", None)
    try:
        launcher.apply(settings, xllamacpp.CommonParams(), xllamacpp)
    except Exception as error:
        raise SystemExit(f"{option.names}: {error!r}")
print(launcher.version_line())
"""


def test_every_option_is_one_of_the_wheel(xllamacpp_path: Path, tmp_path: Path) -> None:
    script = tmp_path / "apply.py"
    script.write_text(_APPLY_ALL)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": f"{xllamacpp_path}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "version: xllamacpp 2026.10.11549 (build 11549)\n"

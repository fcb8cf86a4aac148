"""What SGLang's parsers say to every command line of its adapter; `python -m tests.coverage.sglang_record` keeps it.

A wheel's parser runs in an environment of its own (`.cache/sglang-parser`: msgspec and packaging), made here.
"""

from __future__ import annotations

import json
import subprocess
import venv
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.models import Runtime
from tests.coverage import launches
from tests.coverage.elements import shape
from tests.coverage.evidence import FOLDER, Recorded, Rejection, rules
from tests.coverage.wheels import CACHE, wheel

VERSIONS = tuple(version for version in launches.VERSIONS[Runtime.SGLANG] if version is not None)
TEST = "tests/coverage/test_sglang_parser.py"
KNOWN_BAD: tuple[tuple[str, ...], ...] = (
    ("--model-path", "/m", "--no-such-flag"),
    ("--model-path", "/m", "--uds", "/run/engine/engine.sock"),
    ("--model-path", "/m", "--kv-cache-dtype", "fp8"),
    ("--model-path", "/m", "--kv-cache-dtype", "int8_per_token_head"),
    ("--model-path", "/m", "--attention-backend", "FLASH_ATTN"),
    ("--model-path", "/m", "--speculative-config", "{}"),
    ("--model-path", "/m", "--max-model-len", "4096"),
    ("--model-path", "/m", "--max-num-seqs", "8"),
    ("--model-path", "/m", "--speculative-num-draft-tokens", "few"),
    ("--port", "17000"),
)
"""Refused by every version: other runtimes' words, and no model."""
_PARSE_S = 120


@cache
def emitted(version: str) -> dict[tuple[str, ...], tuple[str, ...]]:
    """By shape, the command lines that the adapter makes for this version, and for an unknown one."""
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    for request, argv in launches.lines(Runtime.SGLANG):
        if request.version in (version, None):
            found.setdefault(shape(argv), tuple("17000" if word == "{port}" else word for word in argv))
    return found


def ask(version: str, argvs: Sequence[tuple[str, ...]]) -> list[str | None]:
    """The parser's verdicts: None for accepted, its last words for refused."""
    verdicts: list[str | None] = _run(version, argvs)
    return verdicts


def resolve(argvs: Sequence[tuple[str, ...]]) -> list[dict[str, Any]]:
    """What the newest version's own handlers make of the speculation in these, or `error` and its words."""
    resolved: list[dict[str, Any]] = _run(VERSIONS[-1], argvs, "resolve")
    return resolved


def _run(version: str, argvs: Sequence[tuple[str, ...]], *words: str) -> Any:
    program = Path(__file__).with_name("sglang_parser.py")
    run = subprocess.run(
        [str(parser_python()), "-I", str(program), str(wheel(f"sglang-{version}")), *words],
        input=json.dumps(argvs),
        capture_output=True,
        text=True,
        check=False,
        timeout=_PARSE_S,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    answer = json.loads(run.stdout)
    assert answer["version"] == version
    return answer["verdicts"]


def parser_python() -> Path:
    """The interpreter for SGLang's parsers, made if need be."""
    folder = CACHE / "sglang-parser"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    have = subprocess.run([python, "-c", "import msgspec, packaging"], capture_output=True, check=False, timeout=60)
    if have.returncode != 0:
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "msgspec", "packaging"], check=True, timeout=_PARSE_S)
    return python


def file(version: str) -> Path:
    return FOLDER / f"sglang-{version}.json"


def record(version: str, date: str) -> Recorded:
    """Ask, and keep what was accepted; AssertionError when a command line of ours is refused."""
    argvs = [*emitted(version).values()]
    verdicts = ask(version, [*argvs, *KNOWN_BAD])
    for argv, verdict in zip(argvs, verdicts, strict=False):
        assert verdict is None, (argv, verdict)
    known = rules().wheels[f"sglang-{version}"]
    refused = zip(KNOWN_BAD, verdicts[len(argvs) :], strict=True)
    return Recorded(
        runtime=Runtime.SGLANG,
        how="parser",
        version=version,
        wheel=known.file,
        sha256=known.sha256,
        date=date,
        test=TEST,
        accepted=tuple(argvs),
        rejected=tuple(Rejection(argv=argv, says=(says or "")[:120]) for argv, says in refused),
    )


def main() -> None:
    import argparse  # noqa: PLC0415

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("date", help="today, as 2026-11-30")
    date = parser.parse_args().date
    for version in VERSIONS:
        made = record(version, date).model_dump(mode="json")
        rows = ",\n".join(json.dumps(argv) for argv in made.pop("accepted"))
        head = json.dumps(made, indent=1).removesuffix("\n}")
        file(version).write_text(f'{head},\n "accepted": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()

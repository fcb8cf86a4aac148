"""Writes the test models: `python -m tests.models.generate FOLDER [--heavy]`.

About 8 MB in well under a second, with numpy and gguf alone; two runs write the same bytes.
Greedy, and at any usual temperature, a target recites `tests.models.tokenizer.recital`, so what
an engine says is a string comparison, and what a drafter gets right is known beforehand
(`tests.models.expected`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.models import drafters, targets
from tests.models.parts import WIDTH
from tests.models.tokenizer import CYCLE, FIRST, MARKER, SECOND, recital

__all__ = ["CYCLE", "FIRST", "HEAVY", "MARKER", "MODELS", "SECOND", "generate", "recital"]


def every_fifth(place: int) -> bool:
    """Where the half-right drafters are wrong: after every fifth character."""
    return place % 5 == 4


TARGET = "target.gguf"
"""A plain Qwen3 that recites `FIRST`."""
TARGET_MTP = "target-mtp.gguf"
"""A hybrid Qwen3.5 with a multi-token-prediction block that is right."""
TARGET_MTP_HALF = "target-mtp-half.gguf"
"""The same, with a block that is wrong after every fifth character."""
TARGET_HEADLESS = "target-headless.gguf"
"""The hybrid without its block, and `MTP_SIDECAR`, the block as a file of its own."""
MTP_SIDECAR = "mtp-target-headless.gguf"
TARGET_TWO = "target-two.gguf"
"""A plain Qwen3 that recites `SECOND` when the prompt has the word `MARKER`."""
TARGET_TWO_MTP = "target-two-mtp.gguf"
"""The hybrid with MTP, listening in the same way."""
TARGET_HEAVY = "target-heavy.gguf"
"""`TARGET` with 100 MB of weights: a step costs milliseconds, so that drafting pays."""
TARGET_MTP_HEAVY = "target-mtp-heavy.gguf"

DRAFT = "draft.gguf"
"""A draft model that is right; `DRAFT_HALF` wrong after every fifth character, `DRAFT_BAD` always."""
DRAFT_HALF = "draft-half.gguf"
DRAFT_BAD = "draft-bad.gguf"
DRAFT_FOREIGN = "draft-foreign.gguf"
"""A draft model with another vocabulary: the engine runs on without speculation, and says so only in its log."""
DFLASH = "dflash.gguf"
"""A DFlash drafter, block 8, all 7 right; `DFLASH_3` the first 3; `DFLASH_WRONG` random weights."""
DFLASH_3 = "dflash-3.gguf"
DFLASH_WRONG = "dflash-wrong.gguf"
DFLASH_FOREIGN = "dflash-foreign.gguf"
"""`DFLASH` with another vocabulary."""
DFLASH_WIDE = "dflash-wide.gguf"
"""A DFlash drafter for a wider target: the engine aborts."""
DSPARK = "dspark.gguf"
"""A DSpark drafter, 8 right; `DSPARK_HALF` wrong after every fifth character, and knows it."""
DSPARK_HALF = "dspark-half.gguf"
EAGLE3 = "eagle3.gguf"
EAGLE3_WRONG = "eagle3-wrong.gguf"
RANDOM_1 = "random-1.gguf"
"""Qwen3 models of random weights, with two seeds."""
RANDOM_2 = "random-2.gguf"
TIES = "ties.gguf"
"""The same with a near-tie at every token."""

MODELS: dict[str, Callable[[Path], None]] = {
    TARGET: lambda path: targets.qwen3(path, 1),
    TARGET_MTP: lambda path: targets.qwen35_mtp(path, 2),
    TARGET_MTP_HALF: lambda path: targets.qwen35_mtp(path, 2, mtp_wrong=every_fifth),
    TARGET_HEADLESS: lambda path: targets.qwen35_mtp(path, 2, head=False),
    MTP_SIDECAR: lambda path: targets.qwen35_mtp(path, 2, trunk=False),
    TARGET_TWO: lambda path: targets.qwen3(path, 3, listens=True),
    TARGET_TWO_MTP: lambda path: targets.qwen35_mtp(path, 3, listens=True),
    DRAFT: lambda path: targets.qwen3(path, 4, layers=1),
    DRAFT_HALF: lambda path: targets.qwen3(path, 4, layers=1, wrong=every_fifth),
    DRAFT_BAD: lambda path: targets.qwen3(path, 4, layers=1, step=2),
    DRAFT_FOREIGN: lambda path: targets.qwen3(path, 4, layers=1, foreign=True),
    DFLASH: drafters.dflash,
    DFLASH_3: lambda path: drafters.dflash(path, right=3),
    DFLASH_WRONG: lambda path: drafters.random_dflash(path, 5),
    DFLASH_FOREIGN: lambda path: drafters.dflash(path, foreign=True),
    DFLASH_WIDE: lambda path: drafters.random_dflash(path, 5, width=WIDTH + 32),
    DSPARK: drafters.dspark,
    DSPARK_HALF: lambda path: drafters.dspark(path, wrong=every_fifth),
    EAGLE3: drafters.eagle3,
    EAGLE3_WRONG: lambda path: drafters.eagle3(path, seed=5),
    RANDOM_1: lambda path: targets.random_qwen3(path, 6),
    RANDOM_2: lambda path: targets.random_qwen3(path, 7),
    TIES: lambda path: targets.random_qwen3(path, 8, ties=True),
}
"""How to write each file."""

HEAVY: dict[str, Callable[[Path], None]] = {
    TARGET_HEAVY: lambda path: targets.qwen3(path, 1, ffn=32768),
    TARGET_MTP_HEAVY: lambda path: targets.qwen35_mtp(path, 2, ffn=32768),
}
"""Big files, for what depends on the time of a step."""


def generate(folder: Path, names: Iterable[str] = MODELS) -> dict[str, Path]:
    """Write these models into the folder, made if need be; name to path."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name in names:
        path = folder / name
        (MODELS | HEAVY)[name](path)
        written[name] = path
    return written


def main(arguments: list[str]) -> int:
    """The command line."""
    folders = [word for word in arguments if not word.startswith("-")]
    if len(folders) != 1 or set(arguments) - {*folders, "--heavy"}:
        print("usage: python -m tests.models.generate FOLDER [--heavy]", file=sys.stderr)
        return 2
    names = [*MODELS, *HEAVY] if "--heavy" in arguments else [*MODELS]
    for name, path in generate(Path(folders[0]), names).items():
        print(f"{path.stat().st_size:>10} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

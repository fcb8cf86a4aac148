"""What each way of drafting does with the test models: exact numbers of tokens.

Counts are for one greedy chat of `TOKENS` tokens with the prompt `PROMPT` as the first request
of an engine (n-gram tables outlive a request), the same in llama.cpp builds 11434 and 11549. They follow
from the models alone: a right drafter with room for n tokens has n accepted in each step, which
yields n+1 tokens; a drafter that is wrong after every fifth character stops there. Drafters of
random weights are not exact: they propose about as many tokens as there are steps times n, and
next to none is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.models import generate as models

TOKENS = 256
PROMPT = "Say it."


@dataclass(frozen=True, slots=True)
class Expected:
    """One way of drafting, and what comes of it.

    `method` is llama.cpp's word. `drafted` and `accepted` are exact when `exact`; else at least
    `drafted` tokens are proposed and at most `accepted` of them taken.
    """

    name: str
    target: str
    method: str
    drafter: str | None
    n_max: int | None
    drafted: int
    accepted: int
    options: tuple[str, ...] = ()
    exact: bool = True

    def argv(self, folder: Path | str) -> list[str]:
        """Model and speculation flags for a llama-server, with the models in this folder."""
        words = ["-m", f"{folder}/{self.target}"]
        if self.method != "none":
            words += ["--spec-type", self.method]
        if self.drafter is not None:
            words += ["-md", f"{folder}/{self.drafter}"]
        if self.n_max is not None:
            words += ["--spec-draft-n-max", str(self.n_max)]
        return [*words, *self.options]


def _ngram(kind: str) -> tuple[str, ...]:
    return (f"--spec-ngram-{kind}-size-n", "4", f"--spec-ngram-{kind}-size-m", "8")


_MOD = ("--spec-ngram-mod-n-match", "4", "--spec-ngram-mod-n-min", "1", "--spec-ngram-mod-n-max", "8")

TABLE = (
    Expected("none", models.TARGET, "none", None, None, 0, 0),
    Expected("none-mtp", models.TARGET_MTP, "none", None, None, 0, 0),
    Expected("draft", models.TARGET, "draft-simple", models.DRAFT, 5, 212, 212),
    Expected("draft-half", models.TARGET, "draft-simple", models.DRAFT_HALF, 5, 254, 204),
    Expected("draft-bad", models.TARGET, "draft-simple", models.DRAFT_BAD, 5, 1260, 0),
    Expected("mtp-1", models.TARGET_MTP, "draft-mtp", None, 1, 127, 127),
    Expected("mtp-3", models.TARGET_MTP, "draft-mtp", None, 3, 191, 191),
    Expected("mtp-half", models.TARGET_MTP_HALF, "draft-mtp", None, 3, 303, 153),
    Expected("dflash", models.TARGET, "draft-dflash", models.DFLASH, 7, 223, 223),
    Expected("dflash-1", models.TARGET, "draft-dflash", models.DFLASH, 1, 127, 127),
    Expected("dflash-hybrid", models.TARGET_MTP, "draft-dflash", models.DFLASH, 7, 223, 223),
    Expected("dflash-3", models.TARGET, "draft-dflash", models.DFLASH_3, 7, 442, 191),
    Expected("dflash-3-at-3", models.TARGET, "draft-dflash", models.DFLASH_3, 3, 191, 191),
    Expected("dflash-foreign", models.TARGET, "draft-dflash", models.DFLASH_FOREIGN, 7, 223, 223),
    Expected("dflash-wrong", models.TARGET, "draft-dflash", models.DFLASH_WRONG, 7, 1600, 24, exact=False),
    Expected("dspark", models.TARGET, "draft-dspark", models.DSPARK, 8, 226, 226),
    Expected("dspark-half", models.TARGET, "draft-dspark", models.DSPARK_HALF, 8, 404, 204),
    Expected(
        "dspark-sure",
        models.TARGET,
        "draft-dspark",
        models.DSPARK_HALF,
        8,
        204,
        204,
        options=("--spec-draft-p-min", "0.5"),  # its confidence head ends each draft in time
    ),
    Expected("eagle3", models.TARGET, "draft-eagle3", models.EAGLE3, 4, 204, 204),
    Expected("eagle3-wrong", models.TARGET, "draft-eagle3", models.EAGLE3_WRONG, 4, 900, 24, exact=False),
    Expected("ngram-simple", models.TARGET, "ngram-simple", None, None, 189, 189, options=_ngram("simple")),
    Expected("ngram-map-k", models.TARGET, "ngram-map-k", None, None, 187, 187, options=_ngram("map-k")),
    Expected("ngram-map-k4v", models.TARGET, "ngram-map-k4v", None, None, 187, 187, options=_ngram("map-k4v")),
    Expected("ngram-mod", models.TARGET, "ngram-mod", None, None, 189, 189, options=_MOD),
    Expected("ngram-mod+mtp", models.TARGET_MTP, "ngram-mod,draft-mtp", None, 3, 220, 220, options=_MOD),
)
"""Every method that drafts here. (`ngram-cache` never did: no drafts in thousands of tokens.)"""

BY_NAME = {row.name: row for row in TABLE}

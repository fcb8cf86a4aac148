"""Which of several known combinations speaks."""

from __future__ import annotations

import datetime as dt
import random

import pytest

from orchestrator.catalogue import Combination, choosing
from orchestrator.models import Runtime
from orchestrator.plan import Evidence, Method

DAY = dt.date(2026, 6, 1)


def known(name: str, **more: object) -> Combination:
    base: dict[str, object] = {
        "id": name, "runtime": Runtime.VLLM, "method": Method.MTP, "evidence": Evidence.PROVEN, "date": DAY,
        "source": "s",
    }  # fmt: skip
    return Combination.model_validate({**base, **more})


ALL = [
    known("any"),
    known("pattern", arch="sm_8*"),
    known("arch", arch="sm_86"),
    known("model", model="m", arch="sm_86"),
    known("old", model="m", variant="v", date=dt.date(2026, 1, 1)),
    known("new", model="m", variant="v"),
    known("versioned", model="m", variant="v", image="i", versions="==0.27.1"),
    known("two", model="n", tensor_parallel=2),
    known("other", runtime=Runtime.SGLANG, model="m", variant="v", image="i"),
]


@pytest.mark.parametrize(
    ("asked", "speaks"),
    [
        ({"model": "x", "arch": "sm_90"}, "any"),
        ({"model": "x", "arch": "sm_89"}, "pattern"),
        ({"model": "x", "arch": "sm_86"}, "arch"),
        ({"model": "m", "arch": "sm_86", "variant": "w"}, "model"),
        ({"model": "m", "arch": "sm_90", "image": "j"}, "new"),
        ({"model": "m", "arch": "sm_90", "version": "0.27.1"}, "versioned"),
        ({"model": "m", "arch": "sm_90", "version": "0.33.0"}, "new"),
        ({"model": "n", "arch": "sm_90", "tensor_parallel": 2}, "two"),
        ({"model": "n", "arch": "sm_90"}, "any"),
    ],
)
def test_the_most_special_speaks_whatever_the_order(asked: dict[str, object], speaks: str) -> None:
    base: dict[str, object] = {
        "variant": "v", "runtime": Runtime.VLLM, "image": "i", "version": "0.33.0", "method": Method.MTP, "drafter": "",
    }  # fmt: skip
    shuffled = list(ALL)
    for seed in range(5):
        random.Random(seed).shuffle(shuffled)
        best = choosing.best(shuffled, **{**base, **asked})  # type: ignore[arg-type]
        assert best is not None
        assert best.id == speaks


def test_what_is_known_of_another_version_speaks_where_nothing_else_does() -> None:
    asked: dict[str, object] = {
        "model": "m", "variant": "v", "runtime": Runtime.VLLM, "image": "i", "version": "0.33.0", "arch": "sm_86",
        "method": Method.MTP, "drafter": "",
    }  # fmt: skip
    only = known("versioned", versions="==0.27.1")
    assert choosing.best([only], **asked) is only  # type: ignore[arg-type]
    assert choosing.worth(only, "0.33.0", None) is Evidence.UNTRIED
    assert choosing.worth(only, "0.27.1", None) is Evidence.PROVEN
    assert choosing.best([], **asked) is None  # type: ignore[arg-type]


def test_a_proof_ends_and_a_refutation_does_not() -> None:
    ends = dt.date(2026, 12, 31)
    for evidence, after in ((Evidence.PROVEN, Evidence.UNTRIED), (Evidence.REFUTED, Evidence.REFUTED)):
        one = known("one", evidence=evidence, expires=ends)
        assert choosing.worth(one, None, ends) is evidence
        assert choosing.worth(one, None, ends + dt.timedelta(days=1)) is after
        assert choosing.worth(one, None, None) is evidence

"""Looking for a size: few are looked at, and what is taken is what all of them would have given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import catalogue
from orchestrator.kinds import Backend, KvType
from orchestrator.memory_fit import Demand, forecast, vllm_layout
from orchestrator.models import Runtime
from orchestrator.plan import Method
from orchestrator.planner import sizes

SHIPPED = catalogue.shipped()
SHAPES = [v.shape for m in SHIPPED.models for v in m.variants if v.shape is not None]
CONTEXTS = sizes.contexts(None, least=1024, most=131072)


@given(
    limit=st.integers(0, 1 << 21), fixed=st.integers(0, 1 << 16), parallels=st.sampled_from([(4, 2, 1), (8,), (3, 1)])
)
@settings(max_examples=300, deadline=None)
def test_the_size_taken_is_the_most_worthy_of_all_that_fit(limit: int, fixed: int, parallels: tuple[int, ...]) -> None:
    def look(context: int, parallel: int) -> tuple[int, int] | None:
        return (context, parallel) if parallel * (context + fixed) <= limit else None

    every = [found for p in parallels for c in CONTEXTS if (found := look(c, p)) is not None]
    taken = sizes.largest(CONTEXTS, parallels, look)
    assert (taken is None) == (not every)
    if taken is not None:
        assert sizes.worth(*taken) == max(sizes.worth(*found) for found in every)


def test_sizes_that_would_be_worth_no_more_are_not_looked_at() -> None:
    looked: list[tuple[int, int]] = []

    def look(context: int, parallel: int) -> bool | None:
        looked.append((context, parallel))
        return True if context * parallel <= 4 * 8192 else None

    assert sizes.largest(CONTEXTS, (4, 2, 1), look)
    assert len(looked) <= 14
    best = sizes.worth(8192, 4)
    assert all(sizes.worth(c, p) > best for c, p in looked if p < 4)


@pytest.mark.parametrize("method", [Method.NONE, Method.MTP])
@pytest.mark.parametrize("state_bits", [16, 32])
def test_what_sizes_have_in_common_changes_no_forecast(method: Method, state_bits: int) -> None:
    for shape in SHAPES:
        base = Demand(
            20 << 30, shape, 0, 0, method=method, draft_tokens=3, backend=Backend.CUDA, kv=KvType.BF16, batch=2048,
            state_bits=state_bits, tensor_parallel=2,
        )  # fmt: skip
        layout = vllm_layout(base)
        for context, parallel in ((1024, 1), (8192, 4), (131072, 2)):
            sized = base.sized(context, parallel)
            assert sized == replace(base, context=context, parallel=parallel)
            assert forecast(Runtime.VLLM, sized, layout=layout) == forecast(Runtime.VLLM, sized)
        assert (base.context, base.parallel) == (0, 0)

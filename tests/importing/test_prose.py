"""A page of text around its commands."""

from __future__ import annotations

from orchestrator.catalogue import shipped
from orchestrator.importing import Here, read

HERE = Here(shipped())


def test_a_page_around_commands_is_told_in_few_words() -> None:
    above = "Deployment\n\nOperations of a server\n\n"
    below = "\n\nSome more words.\nAnd more.\n\nvlm serve x\nls\n"
    text = f"{above}vllm serve Qwen/Qwen3-8B{below}"
    items = read(text, HERE).items
    assert [(i.what, i.line) for i in items] == [("text", 1), ("vllm", 5), ("text", 7), ("shell", 11)]
    reason = items[2].reason
    assert reason is not None
    assert "from line 7 to 10" in reason.text


def test_an_export_far_above_is_not_repeated_with_every_step() -> None:
    items = read("export A=1\ngit clone https://host/x\nvllm serve Qwen/Qwen3-8B\n", HERE).items
    assert [i.text.startswith("A=1 ") for i in items if i.what != "shell"] == [False, True]

"""model pull, model verify, model ls, start --pull: what they ask the daemon for, and what they say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli import fake
from tests.cli.conftest import Call


def pull_job(state: str = "running", **changes: Any) -> dict[str, Any]:
    return fake.job(state, kind="model_pull", detail="f32: m.gguf (file 1 of 1), 4.0 of 8.0 MB, 1.0 MB/s", **changes)


@pytest.fixture
def pulling(daemon: fake.Script) -> fake.Script:
    daemon.on("POST", "/pulls", fake.Answer(pull_job(), 202))
    daemon.on("GET", "/jobs/j1", pull_job(), pull_job("done"))
    return daemon


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (("smollm2",), {"model": "smollm2", "drafters": None}),
        (("m", "--variant", "q4", "--drafter", "a"), {"model": "m", "variant": "q4", "drafters": ["a"]}),
        (("m", "--all-drafters", "--revision", "v2"), {"model": "m", "all_drafters": True, "revision": "v2"}),
        (
            ("Org/Repo@v1", "--file", "*Q4*.gguf", "--name", "m", "--alias", "A"),
            {"repository": "Org/Repo", "revision": "v1", "file": "*Q4*.gguf", "name": "m", "aliases": ["A"]},
        ),
        (("Org/Repo:Q4_K_M", "--name", "m"), {"repository": "Org/Repo:Q4_K_M", "name": "m"}),
    ],
)  # fmt: skip
def test_what_is_asked_for(call: Call, pulling: fake.Script, words: tuple[str, ...], body: dict[str, Any]) -> None:
    said = call("model", "pull", *words)
    assert said.code == 0
    assert "m.gguf (file 1 of 1), 4.0 of 8.0 MB, 1.0 MB/s" in said.err
    assert said.out.startswith("pulled smollm2: ")
    assert pulling.asked_for("POST", "/pulls")[0].body == {k: v for k, v in body.items() if v is not None}


def test_model_add_from_the_hub_is_a_pull(call: Call, pulling: fake.Script) -> None:
    words = ("--repository", "org/repo", "--file", "m.gguf", "--revision", "v1", "--parallel", "2", "--no-wait")
    assert (
        call("model", "add", "m", *words).out
        == "pulling smollm2: job j1; `outrider model pull smollm2` shows how far it is\n"
    )
    assert pulling.asked[0].body == {
        "repository": "org/repo", "file": "m.gguf", "revision": "v1", "name": "m", "parallel": 2,
    }  # fmt: skip
    assert call("model", "add", "m", "--repository", "org/repo", "--path", "x").code == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("org/repo", "--file", "x.gguf"), "needs a name"),
        (("plain", "--name", "m"), "is no repository"),
        (("org/repo@a", "--name", "m", "--revision", "b"), "said twice"),
        (("m", "--alias", "n"), "for a new model"),
    ],
)
def test_wrong_calls(call: Call, pulling: fake.Script, words: tuple[str, ...], text: str) -> None:
    said = call("model", "pull", *words)
    assert said.code == 2
    assert text in said.err


def test_ctrl_c_cancels_and_says_that_it_goes_on(
    call: Call, pulling: fake.Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float = 0) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("api.cli.processes.pause", interrupt)
    pulling.on("DELETE", "/jobs/j1", pull_job("cancelled"))
    said = call("model", "pull", "m")
    assert said.code == 130
    assert "goes on where" in said.err
    assert len(pulling.asked_for("DELETE", "/jobs/j1")) == 1


def test_a_dry_run(call: Call, daemon: fake.Script) -> None:
    preview = {
        "subject": "m", "total_bytes": 3 * 10**9, "have_bytes": 10**9, "fetch_bytes": 2 * 10**9, "free_bytes": 10**9,
        "fits": False, "problem": "it needs 2 GB", "hint": "outrider prune",
        "parts": [{"what": "q4", "repository": "o/r", "revision": "main", "commit": "c" * 40, "folder": "/x", "files": [
            {"path": "a.gguf", "size": 2 * 10**9, "state": "fetch", "partial": 0},
            {"path": "b.gguf", "size": 10**9, "state": "here", "partial": 0}]}],
    }  # fmt: skip
    daemon.on("POST", "/pulls/preview", preview)
    said = call("model", "pull", "m", "--dry-run")
    assert "3.00 GB in all, 1.00 GB of it here, 2.00 GB to fetch" in said.out
    assert "it would be refused: it needs 2 GB\nhint: outrider prune\n" in said.err
    assert call("model", "pull", "m", "--dry-run", "--json").document == preview


def test_verify(call: Call, daemon: fake.Script) -> None:
    files = [{"path": "/s/a", "size": 9, "ok": True, "detail": "right"}]
    bad = {"path": "/s/b", "size": 9, "ok": False, "detail": "differs"}
    daemon.on("POST", "/models/m/verify", fake.Answer(fake.job(kind="model_verify"), 202))
    daemon.on("GET", "/jobs/j1", fake.job("done", result={"ok": True, "files": files}))
    said = call("model", "verify", "m", "--json")
    assert (said.code, said.document["ok"]) == (0, True)
    daemon.on("GET", "/jobs/j1", fake.job("done", result={"ok": False, "files": [*files, bad]}))
    said = call("model", "verify", "m", "--json")
    assert (said.code, said.document["ok"]) == (1, False)
    said = call("model", "verify", "m")
    assert said.code == 1
    assert "BAD" in said.out
    assert "error[digest_mismatch]: 1 of 2 files" in said.err


def test_ls_shows_where_and_which(call: Call, daemon: fake.Script) -> None:
    rows = [fake.weights(), fake.weights("missing", name="bf16"), fake.weights(checked_ok=False, name="bad")]
    daemon.on("GET", "/models", [fake.model(weights=rows)])
    said = call("model", "ls")
    assert "98.0 MB" in said.out
    assert "ffffffffffff" in said.out
    assert "BAD" in said.out
    assert "bf16" not in said.out
    assert "`outrider model pull smollm2`" in call("model", "ls", "--all").out
    assert len(call("model", "ls", "--json").document[0]["weights"]) == 3


@pytest.mark.parametrize(("there", "pulls"), [(True, 0), (False, 1)])
def test_start_pulls_what_is_missing(call: Call, pulling: fake.Script, there: bool, pulls: int) -> None:
    rows = [fake.weights("here" if there else "missing")]
    pulling.on("GET", "/models", [fake.model(files_ok=there, weights=rows)])
    pulling.on("PUT", "/deployments/SmolLM2/desired", fake.view("loading"))
    assert call("start", "SmolLM2", "--pull").code == 0
    asked = pulling.asked_for("POST", "/pulls")
    assert [a.body for a in asked] == [{"model": "SmolLM2"}] * pulls
    assert pulling.asked[-1].method == "PUT"


def test_show_says_what_the_files_say(call: Call, daemon: fake.Script) -> None:
    facts = {
        "architecture": "qwen35", "quantisation": "Q4_K", "context": 262144, "layers": 64, "mtp_head": "missing",
        "chat_template": False, "vision_bytes": 927607488, "method": None, "draft_tokens": None, "pairs": {},
        "unclear": None,
    }  # fmt: skip
    drafts = {**facts, "mtp_head": "none", "vision_bytes": None, "method": "dflash", "draft_tokens": 15}
    pairs = {"q4-1": None, "q8": "d.gguf was made for width 4096, the target has 5120"}
    rows = [
        fake.weights(facts=facts),
        fake.weights("missing", name="bf16", facts=None),
        fake.weights(name="d", kind="drafter", facts={**drafts, "pairs": pairs}),
    ]
    daemon.on("GET", "/models", [fake.model(weights=rows)])
    said = call("model", "show", "SmolLM2")
    assert said.out.splitlines() == [
        "smollm2, also SmolLM2, from /etc/outrider/models.d/smollm2.toml",
        "  variant q4-1: gguf, 98.0 MB, here",
        "    qwen35, Q4_K, 64 layers, trained for 262144 tokens",
        "    MTP head: declared, but its weights are not there",
        "    vision: 927.6 MB",
        "    no chat template",
        "  variant bf16: gguf, 98.0 MB, missing",
        "  drafter d: gguf, 98.0 MB, here",
        "    qwen35, Q4_K, 64 layers, trained for 262144 tokens",
        "    drafts of up to 15 tokens with dflash",
        "    belongs to q4-1",
        "    does not belong to q8: d.gguf was made for width 4096, the target has 5120",
    ]
    assert call("model", "show", "smollm2", "--json").document["name"] == "smollm2"
    assert call("model", "show", "other").code == 3

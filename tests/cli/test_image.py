"""`outrider image pull|pin|ls|rm` against a scripted daemon."""

from __future__ import annotations

from typing import Any

import pytest

from api.cli.client import rebuilt
from containers.errors import ImageUnnamed
from orchestrator import errors
from tests.cli import fake
from tests.cli.conftest import Call

NAME = "ghcr.io/ggml-org/llama.cpp:server-cuda"
DIGEST = "sha256:" + "1" * 64
NEEDS = {
    "vendor": "nvidia",
    "arch": [],
    "machine": ["amd64"],
    "driver": "525.60.13",
    "cuda": "12.8",
    "kernel": None,
    "compressed_bytes": None,
    "size_bytes": None,
    "source": "s",
}
VIEW: dict[str, Any] = {
    "reference": NAME,
    "id": "sha256:" + "2" * 64,
    "digest": DIGEST,
    "size": 9 * 2**30,
    "pinned": {"reference": NAME, "digest": DIGEST, "author": "a", "at": 1.0},
    "used_by": ["m"],
    "catalogue": ["llama-cpp-cuda"],
    "built_here": False,
    "needs": NEEDS,
}


def job(state: str, done: int | None = None, error: object = None) -> dict[str, Any]:
    return {
        "id": "j1",
        "kind": "image_pull",
        "subject": NAME,
        "state": state,
        "detail": f"{NAME} is here" if state == "done" else "pulling, 1 of 2 layers",
        "started_at": 1.0,
        "done_bytes": done,
        "total_bytes": 100 * 2**20,
        "error": error,
    }


def test_ls(call: Call, daemon: fake.Script) -> None:
    absent = {**VIEW, "reference": "r.io/x:1", "id": None, "size": None, "pinned": None, "used_by": [], "needs": None}
    daemon.on("GET", "/images", [VIEW, absent])
    said = call("image", "ls")
    head, here, away = said.out.splitlines()
    assert head.split() == ["IMAGE", "ID", "SIZE", "PINNED", "USED", "BY", "NEEDS"]
    assert here.split()[:4] == [NAME, "2" * 12, "9.66", "GB"]
    assert here.endswith("nvidia, amd64, driver 525.60.13, CUDA 12.8")
    assert "not here" in away
    assert call("image", "ls", "--json").document == [VIEW, absent]


def test_pull_shows_how_far_it_is_and_says_what_came(call: Call, daemon: fake.Script) -> None:
    daemon.on("POST", "/images/pull", fake.Answer(job("running", 0), 202))
    daemon.on("GET", "/jobs/j1", job("running", 50 * 2**20), job("done", 100 * 2**20))
    said = call("image", "pull", NAME)
    assert (said.code, said.out) == (0, f"{NAME} is here\n")
    assert f"{NAME}: pulling, 1 of 2 layers" in said.err
    assert daemon.asked_for("POST", "/images/pull")[0].body == {"image": NAME}
    assert (
        call("image", "pull", NAME, "--no-wait").out
        == f"pulling {NAME}: job j1; `outrider image pull {NAME}` shows how far it is\n"
    )


def test_a_pull_that_fails(call: Call, daemon: fake.Script) -> None:
    why = {"code": "auth_failed", "text": "no", "hint": "`podman login ghcr.io`"}
    daemon.on("POST", "/images/pull", fake.Answer(job("running"), 202))
    daemon.on("GET", "/jobs/j1", job("failed", error=why))
    said = call("image", "pull", NAME)
    assert said.code == 4
    assert said.err.endswith("error[auth_failed]: no\nhint: `podman login ghcr.io`\n")


def test_pin_and_unpin(call: Call, daemon: fake.Script) -> None:
    daemon.on("PUT", "/images/pin", VIEW["pinned"])
    daemon.on("DELETE", "/images/pin", fake.Answer(None, 204))
    assert call("image", "pin", NAME).out == f"{NAME} is pinned to {DIGEST}\n"
    assert call("image", "pin", NAME, "--digest", DIGEST, "--json").document["digest"] == DIGEST
    assert [a.body for a in daemon.asked_for("PUT", "/images/pin")] == [
        {"image": NAME, "digest": None},
        {"image": NAME, "digest": DIGEST},
    ]
    assert call("image", "pin", NAME, "--unpin").out == f"{NAME} is no longer pinned\n"
    assert "image=ghcr.io" in daemon.asked_for("DELETE", "/images/pin")[0].query
    assert call("image", "pin", NAME, "--unpin", "--digest", DIGEST).code == 2


def test_rm(call: Call, daemon: fake.Script) -> None:
    daemon.on("DELETE", "/images", fake.problem(409, "refused", "is used by m", hint="`outrider stop m` first"), VIEW)
    said = call("image", "rm", NAME)
    assert said.code == 4
    assert "is used by m" in said.err
    assert call("image", "rm", NAME, "--force").out == f"removed {NAME}  9.66 GB\n"
    assert [a.query.rpartition("=")[2] for a in daemon.asked_for("DELETE", "/images")] == ["false", "true"]


def test_a_digest_that_is_none_is_said_before_anybody_is_asked(call: Call, daemon: fake.Script) -> None:
    said = call("image", "pin", NAME, "--digest", "sha256:12")
    assert said.code == 2
    assert "error[usage]: 'sha256:12' is no digest: sha256: and 64 hexadecimal digits" in said.err
    assert daemon.asked == []


@pytest.mark.parametrize(
    ("code", "exit_code", "retryable"),
    [("source_failed", 1, True), ("arch_mismatch", 4, False), ("disk_full", 4, True), ("auth_failed", 4, False)],
)
def test_a_job_s_error_is_what_it_was(
    call: Call, daemon: fake.Script, code: str, exit_code: int, retryable: bool
) -> None:
    why = {"code": code, "text": "no", "hint": "look"}
    daemon.on("POST", "/images/pull", fake.Answer(job("failed", error=why), 202))
    done = call("image", "pull", NAME, "--json")
    assert done.code == exit_code
    error = done.document["error"]
    assert (error["code"], error["retryable"], error["hint"]) == (code, retryable, "look")


def test_a_name_that_is_none_is_a_mistake_of_who_asks() -> None:
    error = ImageUnnamed("no image")
    assert (errors.status(error), errors.exit_code(error)) == (400, 2)
    assert errors.exit_code(rebuilt("image_unnamed", "no image", status=400)) == 2

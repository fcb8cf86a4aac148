"""Errors: each has one shape, whoever says it, and none shows the inside."""

from __future__ import annotations

import json
import logging
import re

import httpx
import pytest

from api.control.problems import MEDIA_TYPE, Problem, from_error, problem
from containers.errors import PodmanTimeout
from orchestrator.errors import (
    Conflict,
    DaemonUnreachable,
    DoesNotFit,
    EngineFailed,
    ModelFileError,
    NotFound,
    OutriderError,
    SwitchTooCostly,
    TimedOut,
    UsageError,
)
from tests.control.conftest import Served
from tests.control.memory_facade import GIB, bad_file, failing


def check(answer: httpx.Response, status: int, code: str) -> dict[str, object]:
    """An answer that is a whole problem document."""
    assert answer.headers["content-type"] == MEDIA_TYPE
    document: dict[str, object] = answer.json()
    assert (answer.status_code, document["status"], document["code"]) == (status, status, code)
    assert document["type"] == f"urn:outrider:{code}"
    assert set(document) - {"instance"} == {
        "type",
        "title",
        "status",
        "detail",
        "code",
        "hint",
        "retryable",
        "evidence",
    }
    return document


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (UsageError("no"), 400, "usage", None),
        (bad_file(), 400, "config_invalid", None),
        (NotFound("no"), 404, "not_found", None),
        (Conflict("no"), 409, "conflict", None),
        (DoesNotFit("no"), 409, "too_big", None),
        (SwitchTooCostly("no"), 409, "switch_too_costly", None),
        (ModelFileError("no"), 422, "model_file", None),
        (TimedOut("no"), 504, "timed_out", "5"),
        (PodmanTimeout("no", evidence={"retry_after_s": 1.2}), 503, "podman_timeout", "2"),
        (DaemonUnreachable("no"), 503, "daemon_unreachable", "5"),
        (EngineFailed("bad_flag", "no", retryable=False), 500, "bad_flag", None),
        (OutriderError("no"), 500, "internal", None),
    ],
)
async def test_the_error_tree(served: Served, error: OutriderError, status: int, code: str, retry: str | None) -> None:
    error.hint = "do this"
    served.facade.fail = failing("deployments", error)
    answer = await served.unix.get("/api/v1/deployments")
    document = check(answer, status, code)
    assert document["detail"] == error.detail
    assert document["hint"] == "do this"
    assert document["retryable"] is (retry is not None)
    assert answer.headers.get("retry-after") == retry
    assert "instance" not in document


async def test_evidence_comes_along(served: Served) -> None:
    document = check(await served.unix.post("/api/v1/plans", json={"model": "huge"}), 409, "too_big")
    assert document["evidence"] == {"need_bytes": 900 * GIB}
    document = check(await served.unix.get("/api/v1/deployments/none"), 404, "not_found")
    assert document["hint"] == "see `outrider model ls`"
    served.facade.fail = failing("reload", bad_file())
    document = check(await served.unix.post("/api/v1/reload"), 400, "config_invalid")
    assert document["evidence"] == {"file": "/etc/outrider/outrider.toml", "key": "gateway.listen"}


async def test_a_defect_shows_nothing_but_where_to_look(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.facade.fail = failing("deployments", ZeroDivisionError("secret inside"))
    answer = await served.unix.get("/api/v1/deployments")
    document = check(answer, 500, "internal")
    assert "secret" not in answer.text
    assert "ZeroDivision" not in answer.text
    instance = str(document["instance"])
    assert re.fullmatch(r"urn:outrider:request:[0-9a-f]{16}", instance)
    (record,) = [r for r in caplog.records if instance in r.getMessage()]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert [r for r in caplog.records if r.name.startswith("uvicorn")] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("PUT", "/api/v1/deployments/smollm2/desired", {"state": "flying"}, "body.state"),
        ("PUT", "/api/v1/deployments/smollm2/desired", {}, "body.state"),
        ("PUT", "/api/v1/deployments/smollm2/desired", {"state": "stopped", "typo": "s3cret"}, "body.typo"),
        ("PUT", "/api/v1/deployments/smollm2/desired", None, "body"),
        ("POST", "/api/v1/plans", {"model": ""}, "body.model"),
        ("POST", "/api/v1/plans", {"model": "m", "what_if": "s3cret"}, "body.what_if"),
        ("POST", "/api/v1/models", ["s3cret"], "body"),
        ("POST", "/api/v1/reload", {"dry_run": "s3cret"}, "body.dry_run"),
        ("POST", "/api/v1/gateway/report", {"gateway_id": "g"}, "body.uptime_s"),
        ("GET", "/api/v1/events?since=-1", None, "query.since"),
        ("GET", "/api/v1/events?since=s3cret", None, "query.since"),
        ("GET", "/api/v1/events?limit=100000", None, "query.limit"),
        ("GET", "/api/v1/deployments/smollm2/logs?tail=-1", None, "query.tail"),
        ("GET", "/api/v1/deployments/-rm", None, "path.name"),
        ("GET", "/api/v1/jobs/a%20b", None, "path.job_id"),
    ],
)
async def test_calls_of_the_wrong_shape(
    served: Served, method: str, path: str, body: object | None, field: str
) -> None:
    answer = await served.unix.request(method, path, json=body)
    evidence = check(answer, 400, "usage")["evidence"]
    assert isinstance(evidence, dict)
    assert field in [found["path"] for found in evidence["fields"]]
    assert "s3cret" not in answer.text


async def test_paths_and_methods_that_are_not_there(served: Served) -> None:
    check(await served.unix.get("/api/v2/host"), 404, "no_such_route")
    check(await served.unix.get("/"), 404, "no_such_route")
    check(await served.unix.get("/docs"), 404, "no_such_route")
    answer = await served.unix.delete("/api/v1/host")
    check(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET"


def test_evidence_that_is_not_plain_json() -> None:
    odd = problem(500, "x", "y", evidence={"nan": float("nan"), "path": object, "bytes": b"ab", "set": {1}})
    document = json.loads(odd.body)
    assert document["evidence"]["nan"] is None
    assert document["evidence"]["set"] == [1]


@pytest.mark.parametrize(("seconds", "header"), [(0, 1), (0.2, 1), (7.01, 8), (-3, 5), (1e9, 5), ("x", 5), (None, 5)])
def test_retry_after_is_whole_and_sane(seconds: object, header: int) -> None:
    made: Problem = from_error(TimedOut("late", evidence={"retry_after_s": seconds}))
    assert made.retry_after == header


def test_a_code_has_one_title() -> None:
    assert problem(409, "too_big", "a").title == problem(409, "too_big", "b").title == "Too big"

"""Errors as `application/problem+json` (RFC 9457): one value, one mapping, one writer.

Every refusal of the control API has this form, whoever says it: the daemon
(`OutriderError`), the guard in front of the routes, the router, or the HTTP
protocol itself. Programs match on `code`; people read `detail` and `hint`.
"""

from __future__ import annotations

import http
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from orchestrator.errors import OutriderError, status

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER = 5
"""Seconds. Said when an error is retryable and its evidence knows no better (`retry_after_s`)."""
LONGEST_RETRY_AFTER = 3600.0


@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong, for programs (`code`, `status`, `retryable`) and for people.

    `type` is `urn:outrider:<code>`; `hint` is the next step; `evidence` holds small facts;
    `instance` names one occurrence, to be found again in the daemon's log.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str | None = None
    retryable: bool = False
    evidence: Mapping[str, Any] = field(default_factory=dict)
    instance: str | None = None

    @property
    def body(self) -> bytes:
        """The JSON document, in one line; `instance` only where there is one."""
        data: dict[str, Any] = {
            "type": self.type,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "hint": self.hint,
            "retryable": self.retryable,
            "evidence": dict(self.evidence),
        }
        if self.instance is not None:
            data["instance"] = self.instance
        return json_bytes(data)

    @property
    def retry_after(self) -> int | None:
        """Whole seconds for Retry-After, or None when trying again does not help."""
        if not self.retryable:
            return None
        known = self.evidence.get("retry_after_s")
        if isinstance(known, int | float) and 0 <= known <= LONGEST_RETRY_AFTER:
            return max(1, math.ceil(known))
        return RETRY_AFTER


def json_bytes(value: Any) -> bytes:
    """JSON in one line: dataclasses and enums as their plain forms, NaN and infinity as null."""
    return to_json(value, inf_nan_mode="null", fallback=str)


def problem(
    status_code: int,
    code: str,
    detail: str,
    *,
    hint: str | None = None,
    retryable: bool = False,
    evidence: Mapping[str, Any] | None = None,
    instance: str | None = None,
) -> Problem:
    """A problem; type and title follow from the code, so that they are always the same for it."""
    return Problem(
        type=f"urn:outrider:{code}",
        title=code.replace("_", " ").capitalize(),
        status=status_code,
        detail=detail,
        code=code,
        hint=hint,
        retryable=retryable,
        evidence=evidence or {},
        instance=instance,
    )


def from_error(error: OutriderError) -> Problem:
    """The one mapping from the error tree to HTTP."""
    return problem(
        status(error),
        error.code,
        error.detail,
        hint=error.hint,
        retryable=error.retryable,
        evidence=error.evidence,
    )


def internal(instance: str) -> Problem:
    """A defect of ours. It shows nothing of the inside but where to look for it."""
    return problem(
        500,
        "internal",
        "the daemon failed to answer because of a defect in it",
        hint=f"its log has the details under {instance}",
        instance=instance,
    )


def from_validation(errors: Iterable[Mapping[str, Any]]) -> Problem:
    """400 for a call of the wrong shape: where each mistake is and what is expected there.

    The values that were sent are not echoed: they may be secrets, or large.
    """
    fields = [_mistake(error) for error in list(errors)[:20]]
    first = fields[0] if fields else {"path": "request", "text": "not valid"}
    more = f" (and {len(fields) - 1} more)" if len(fields) > 1 else ""
    return problem(
        400,
        "usage",
        f"{first['path']}: {first['text']}{more}",
        hint="see /openapi.json for the shape of this call",
        evidence={"fields": fields},
    )


def _mistake(error: Mapping[str, Any]) -> dict[str, str]:
    """Where one mistake is, and what it is. A body that is no JSON is wrong at a position, not at a key."""
    where = [str(part) for part in error.get("loc", ())]
    if error.get("type") == "json_invalid":
        said = dict(error.get("ctx") or {}).get("error", "it cannot be parsed")
        return {"path": "body", "text": f"not JSON: {said} (at character {where[-1] if where else '?'})"}
    return {"path": ".".join(where), "text": str(error.get("msg", ""))}


class ProblemResponse(Response):
    """A problem as an HTTP response, Retry-After included where trying again can help."""

    media_type = MEDIA_TYPE

    def __init__(self, what: Problem, headers: Mapping[str, str] | None = None) -> None:
        merged = dict(headers or {})
        if what.retry_after is not None:
            merged["retry-after"] = str(what.retry_after)
        super().__init__(what.body, status_code=what.status, headers=merged)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's `responses` of an operation: these statuses as problems (see `openapi.py`)."""
    return {
        code: {
            "description": http.HTTPStatus(code).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for code in statuses
    }

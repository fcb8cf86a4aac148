"""What a hub's refusals mean: status and headers to one error each, with the next step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.errors import (
    AuthFailed,
    AuthGated,
    FetchError,
    NotOffered,
    RateLimited,
    SourceFailed,
)

_RATE = re.compile(r"\bt=(\d+)")
LONGEST_WAIT = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked of which hub. `endpoint` is its address without a slash at the end."""

    endpoint: str
    repository: str
    revision: str
    file: str | None = None
    token: str | None = None
    """What the token's place is called; None without a token."""

    @property
    def page(self) -> str:
        """The repository's page, where its licence is accepted."""
        return f"{self.endpoint}/{self.repository}"


def refusal(status: int, headers: Mapping[str, str], asked: Asked) -> FetchError:
    """The error for an answer that is none of 2xx and 3xx. `headers` compares names without case."""
    code, said = headers.get("x-error-code") or "", headers.get("x-error-message") or ""
    evidence: dict[str, object] = {"status": status, "repository": asked.repository}
    if code == "GatedRepo":
        return _gated(asked, evidence)
    if status in (401, 403):
        return _unauthorized(status, said, asked, evidence)
    if status == 404 or code in ("RepoNotFound", "RevisionNotFound", "EntryNotFound") or status == 410:
        return _absent(code, asked, evidence)
    if said == "Access to this resource is disabled.":
        return NotOffered(f"{asked.repository} was disabled by the hub", hint=f"see {asked.page}", evidence=evidence)
    if status == 429:
        wait = retry_after(headers)
        when = "" if wait is None else f" within {wait:.0f} s"
        return RateLimited(
            f"the hub wants to be asked less often: no more{when} for {asked.repository}",
            hint="pull again later: what is here stays; a token of your own has a higher limit",
            evidence={**evidence, "retry_after_s": wait},
        )
    if status == 416:
        return SourceFailed(f"the hub has no byte there of {_what(asked)} (416)", hint=_again(), evidence=evidence)
    return SourceFailed(f"the hub answered {status} for {_what(asked)}", hint=_again(), evidence=evidence)


def _gated(asked: Asked, evidence: dict[str, object]) -> AuthGated:
    if asked.token is None:
        then = "then put a token of that account into a file, name it as `[hub] token_file`, `outrider reload`"
        then += " (or set HF_TOKEN for the daemon)"
    else:
        then = f"with the account whose token is in {asked.token}; if that was done, its owner has yet to agree"
    return AuthGated(
        f"{asked.repository} is gated: its licence has to be accepted first",
        hint=f"accept it at {asked.page}, {then}; then pull again",
        evidence={**evidence, "page": asked.page},
    )


def _unauthorized(status: int, said: str, asked: Asked, evidence: dict[str, object]) -> AuthFailed:
    if asked.token is None:
        text = f"{asked.repository} is not there, or is private: the hub shows it to nobody without a token"
        hint = "check the name; for a private one put a token into a file and name it as `[hub] token_file`"
        return AuthFailed(
            text, hint=f"{hint}, then `outrider reload` (or set HF_TOKEN for the daemon)", evidence=evidence
        )
    if status == 401 and "invalid" in said.lower():
        text = f"the hub does not know the token in {asked.token}"
        return AuthFailed(
            text, hint=f"make a new one at {asked.endpoint}/settings/tokens and put it there", evidence=evidence
        )
    text = f"the token in {asked.token} may not read {asked.repository}"
    return AuthFailed(text, hint=f"give it read access at {asked.endpoint}/settings/tokens", evidence=evidence)


def _absent(code: str, asked: Asked, evidence: dict[str, object]) -> NotOffered:
    if code == "RevisionNotFound":
        text = f"{asked.repository} has no revision {asked.revision}"
        return NotOffered(text, hint=f"its revisions are at {asked.page}/commits/main", evidence=evidence)
    if code == "EntryNotFound" or (asked.file is not None and not code):
        text = f"{asked.repository} has no file {asked.file} at {asked.revision[:12]}"
        return NotOffered(text, hint=f"its files are at {asked.page}/tree/main", evidence=evidence)
    return NotOffered(f"the hub has no repository {asked.repository}", hint="check its name", evidence=evidence)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait: `Retry-After`, else the reset of the `RateLimit` header; None where neither says."""
    text = (headers.get("retry-after") or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_WAIT)
    found = _RATE.search(headers.get("ratelimit") or "")
    return None if found is None else min(float(found[1]), LONGEST_WAIT)


def _what(asked: Asked) -> str:
    return asked.repository if asked.file is None else f"{asked.file} of {asked.repository}"


def _again() -> str:
    return "pull again: it goes on where it stopped; https://status.huggingface.co tells of the public hub's troubles"

"""What Podman says when a pull fails, turned into Outrider's errors. Pure.

Podman answers 200 and puts one sentence into the stream, made by three libraries; the words were
read off 4.3.1 and 5.4 with a real registry that misbehaves (`tests/images`).
"""

from __future__ import annotations

import re

from containers import registries
from containers.errors import (
    AuthFailed,
    DigestMismatch,
    DiskFull,
    DiskReadOnly,
    NotOffered,
    OutriderError,
    PodmanFailed,
    RateLimited,
    SourceFailed,
)
from containers.references import Reference

_FULL = re.compile(r"no space left on device|disk quota exceeded|ENOSPC", re.IGNORECASE)
_READ_ONLY = re.compile(r"read-only file ?system|EROFS", re.IGNORECASE)
_LIMITED = re.compile(r"toomanyrequests|too many requests|\b429\b", re.IGNORECASE)
_DIGEST = re.compile(
    r"does not match (expected|provided manifest digest)|digest did not match|digest mismatch"
    r"|digest invalid|checksum mismatch|does not match config'?s diff|layers from manifest don't match"
    r"|(gzip|flate|zlib|zstd)\S*: (invalid|corrupt)|invalid checksum|archive/tar: invalid",
    re.IGNORECASE,
)
_NOT_OFFERED = re.compile(
    r"manifest unknown|name unknown|repository .{0,200}not found|\b404 \(Not Found\)|StatusCode: 404"
    r"|no image found in (manifest list|image index)",
    re.IGNORECASE,
)
_AUTH = re.compile(
    r"unauthorized|authentication required|access to the resource is denied|\bdenied\b|invalid username/password"
    r"|\b40[13] \((Unauthorized|Forbidden)\)|StatusCode: 40[13]|unable to retrieve auth token",
    re.IGNORECASE,
)
_SOURCE = re.compile(
    r"pinging container registry|dial tcp|no such host|connection (refused|reset)|i/o timeout|TLS handshake|x509"
    r"|unexpected EOF|\bEOF\b|invalid status code|StatusCode: |unexpected end of JSON|invalid character"
    r"|manifest invalid|MANIFEST_INVALID|happened during read|received unexpected HTTP|server gave HTTP response"
    r"|initializing source|unsupported (schema|MIME|manifest)|context deadline|network is unreachable|broken pipe",
    re.IGNORECASE,
)
_NOISE = re.compile(r'docker://|initializing source |\bstoring blob to file \\?"[^"]*"?: ')
LONGEST = 400
_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), "?")


def classify(text: str, reference: Reference, status: int | None = None) -> OutriderError:
    """The error for what Podman said about pulling `reference`; `status` is its HTTP status where that is no 200.

    4.3.1 says 200 to everything; from 5 on a refusal before the first byte has the registry's own status.
    """
    said = plain(" ".join(_NOISE.sub("", text).split()), LONGEST)
    detail = f"pulling {reference}: {said}"
    evidence: dict[str, object] = {"image": str(reference), "registry": reference.registry}
    if _FULL.search(text):
        return DiskFull(
            detail,
            hint="`outrider prune --dry-run` shows what can go; `podman info` names storage and temporary folder",
            evidence=evidence,
        )
    if _READ_ONLY.search(text):
        return DiskReadOnly(
            detail,
            hint="`findmnt -T` on the storage's folder (`podman info`) shows why it is read-only",
            evidence=evidence,
        )
    if status == 429 or _LIMITED.search(text):
        return rate_limited(detail, reference)
    if _DIGEST.search(text):
        return DigestMismatch(
            detail,
            hint="what came was thrown away; a mirror or proxy that keeps a damaged copy is the usual cause",
            evidence=evidence,
        )
    if status == 404 or _NOT_OFFERED.search(text):
        return not_offered(detail, reference)
    if status in (401, 403) or _AUTH.search(text):
        return auth_failed(detail, reference)
    if _SOURCE.search(text):
        return source_failed(detail, reference)
    return PodmanFailed(detail, hint="`journalctl -u podman` may say more", evidence=evidence)


def plain(text: str, longest: int) -> str:
    """A stranger's words for an error, which is shown on terminals and kept in journals: short, without controls."""
    return text[:longest].translate(_CONTROLS)


def auth_failed(detail: str, reference: Reference) -> AuthFailed:
    """The registry wants another login. Registries also say so of what does not exist."""
    return AuthFailed(
        detail,
        hint=f"`podman login {reference.registry}`, then again; or check the name: a private image and one that is"
        " not there look alike",
        evidence={"image": str(reference), "registry": reference.registry},
    )


def not_offered(detail: str, reference: Reference) -> NotOffered:
    """The registry answers, and has no such image."""
    return NotOffered(
        detail,
        hint=f"check the spelling; `podman search --list-tags {reference.name}` lists what there is",
        evidence={"image": str(reference), "registry": reference.registry},
    )


def rate_limited(detail: str, reference: Reference, retry_after: float | None = None) -> RateLimited:
    """The registry wants to be left alone for a while."""
    when = "later" if retry_after is None else f"in {retry_after:g} s"
    evidence: dict[str, object] = {"image": str(reference), "registry": reference.registry}
    if retry_after is not None:
        evidence["retry_after_s"] = retry_after
    return RateLimited(
        detail,
        hint=f"it is tried again {when}; `podman login {reference.registry}` raises the limit, a mirror in"
        " `[images] mirrors` avoids it",
        evidence=evidence,
    )


def source_failed(detail: str, reference: Reference) -> SourceFailed:
    """The registry is not reachable, broke off, or answered what it must not."""
    host = registries.api_host(reference.registry)
    return SourceFailed(
        detail,
        hint=f"`curl -sSI https://{host}/v2/` shows whether it can be reached; a proxy belongs into"
        " the environment of podman.service",
        evidence={"image": str(reference), "registry": reference.registry},
    )

"""What podman-py and Podman throw, turned into Outrider's error tree.

Podman's status codes differ between versions (a missing image is 500 on 4.3.1 and
404 from 4.8 on; a name in use is 500 everywhere), so its text decides where the
code does not.
"""

from __future__ import annotations

import re

import requests
import urllib3
from podman.errors import APIError

from containers.errors import (
    ContainerError,
    ContainerMissing,
    DeviceUnavailable,
    ImageMissing,
    ImageUnnamed,
    NameInUse,
    PodmanFailed,
    PodmanTimeout,
    PodmanUnreachable,
)

_NAME = re.compile(r"name .*is already in use|name is in use", re.IGNORECASE)
_IMAGE = re.compile(r"image not known|no such image|does not resolve to an image", re.IGNORECASE)
_REFERENCE = re.compile(r"invalid reference format|invalid checksum digest|must be lowercase", re.IGNORECASE)
_CONTAINER = re.compile(r"no such container|container not known|no container with", re.IGNORECASE)
_DEVICE = re.compile(r"\bCDI\b|stat /dev/|/dev/\S+: no such (file|device)|not a device node", re.IGNORECASE)

SERVICE_HINT = "is the Podman service running? systemctl status podman.socket"


def refused(status: int, text: str, doing: str) -> ContainerError:
    """The error for an answer of Podman's: an HTTP status of 400 or above and its text."""
    detail = f"{doing}: {text}"
    evidence = {"status": status}
    if _NAME.search(text):
        return NameInUse(detail, evidence=evidence)
    if _CONTAINER.search(text):
        return ContainerMissing(detail, evidence=evidence)
    if _REFERENCE.search(text):
        hint = "an image is named as in `registry/name:tag` or `name@sha256:...`, in lower case, or by its id"
        return ImageUnnamed(detail, hint=hint, evidence=evidence)
    if _IMAGE.search(text):
        return ImageMissing(detail, hint="build or load the image first", evidence=evidence)
    if _DEVICE.search(text):
        return DeviceUnavailable(
            detail,
            hint="does the device exist, and is its CDI file fresh and of a version this Podman reads?",
            evidence=evidence,
        )
    return PodmanFailed(detail, evidence=evidence)


def unreachable(doing: str, socket: str, cause: object) -> PodmanUnreachable:
    """Nobody answered, or the connection broke."""
    return PodmanUnreachable(f"{doing}: no answer from {socket}: {cause}", hint=SERVICE_HINT)


def timed_out(doing: str, limit: float) -> PodmanTimeout:
    """The deadline of a call passed; Podman may still carry it out."""
    return PodmanTimeout(
        f"{doing}: no answer within {limit:g} s",
        hint="`podman info` shows whether Podman answers at all; it waits for a slow disk, or for another command",
        evidence={"limit_s": limit},
    )


def translate(error: OSError, doing: str, socket: str, limit: float) -> ContainerError:
    """The error for an exception out of podman-py.

    requests' errors are OSErrors, and podman-py wraps those of the transport in an
    APIError without a status.
    """
    if isinstance(error, APIError) and error.status_code is not None:
        return refused(error.status_code, str(error.explanation or error.args[0]), doing)
    chain: BaseException | None = error
    root: BaseException = error
    while chain is not None:
        if isinstance(chain, (requests.Timeout, urllib3.exceptions.TimeoutError, TimeoutError)):
            return timed_out(doing, limit)
        root = chain
        chain = chain.__cause__ or chain.__context__
    cause: object = error.__cause__ or error
    if isinstance(root, OSError) and root.strerror:
        cause = root.strerror.lower()  # "connection refused", without the three exceptions around it
    return unreachable(doing, socket, cause)

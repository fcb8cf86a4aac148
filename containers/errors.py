"""The root of Outrider's one error tree, and the branch that belongs to containers.

The root lives here because `containers` may import nothing above itself, and
`orchestrator.errors` re-exports it together with the rest of the tree::

    OutriderError
      ContainerError
        PodmanUnreachable     podman_unreachable   retryable
        PodmanTimeout         podman_timeout       retryable
        ImageMissing          image_missing
        ImageUnnamed          image_unnamed
        NameInUse             name_in_use          retryable (under another name)
        ContainerMissing      container_missing    retryable
        DeviceUnavailable     device_unavailable
        GroupsUnmapped        groups_unmapped
        SpecRefused           spec_refused
        PodmanFailed          podman_failed        retryable
      FetchError              fetch_failed         (weights and images on their way)
        AuthGated             auth_gated
        AuthFailed            auth_failed
        NotOffered            not_offered
        RateLimited           rate_limited         retryable
        SourceFailed          source_failed        retryable
        DigestMismatch        digest_mismatch      retryable
      DiskError               disk_failed
        DiskFull              disk_full            retryable
        DiskReadOnly          disk_read_only
      (orchestrator.errors holds the others)
"""

from __future__ import annotations

from collections.abc import Mapping


class OutriderError(Exception):
    """An error with a stable machine code, a hint, and whether trying again can help.

    `detail` is a sentence for people; `hint` is the next step; `evidence` holds
    small JSON-able facts. None of them may carry a secret.
    """

    code = "internal"
    retryable = False

    def __init__(
        self,
        detail: str,
        *,
        hint: str | None = None,
        evidence: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        self.evidence: dict[str, object] = dict(evidence or {})

    def __str__(self) -> str:
        return self.detail if self.hint is None else f"{self.detail} ({self.hint})"


class ContainerError(OutriderError):
    """Something about Podman, an image or a container."""

    code = "container"


class PodmanUnreachable(ContainerError):
    """Nobody answers on Podman's API socket."""

    code = "podman_unreachable"
    retryable = True


class PodmanTimeout(ContainerError):
    """Podman took longer than the deadline of the call."""

    code = "podman_timeout"
    retryable = True


class ImageMissing(ContainerError):
    """The image is not in local storage."""

    code = "image_missing"


class ImageUnnamed(ContainerError):
    """What should name an image is no reference at all."""

    code = "image_unnamed"


class NameInUse(ContainerError):
    """Another container, or the ghost of one, holds this name."""

    code = "name_in_use"
    retryable = True


class ContainerMissing(ContainerError):
    """No container has this id (any more)."""

    code = "container_missing"
    retryable = True


class DeviceUnavailable(ContainerError):
    """A device node or CDI name cannot be resolved on this host."""

    code = "device_unavailable"


class GroupsUnmapped(ContainerError):
    """The groups that own a device cannot be had in a container of this Podman."""

    code = "groups_unmapped"


class SpecRefused(ContainerError):
    """The validator of container specs turned a spec down."""

    code = "spec_refused"


class PodmanFailed(ContainerError):
    """Podman answered with an error that has no class of its own: often a passing one."""

    code = "podman_failed"
    retryable = True


class FetchError(OutriderError):
    """Weights or an image could not be brought here."""

    code = "fetch_failed"


class AuthGated(FetchError):
    """The owner of a repository asks for a licence to be accepted first; the hint has the page."""

    code = "auth_gated"


class AuthFailed(FetchError):
    """The login or token is missing, wrong, or not enough."""

    code = "auth_failed"


class NotOffered(FetchError):
    """There is no such repository, revision, file, image or tag there."""

    code = "not_offered"


class RateLimited(FetchError):
    """The source wants to be asked less often; `evidence["retry_after_s"]` where it says when."""

    code = "rate_limited"
    retryable = True


class SourceFailed(FetchError):
    """The source is not reachable, broke off, or answered what it must not."""

    code = "source_failed"
    retryable = True


class DigestMismatch(FetchError):
    """What came is not what was promised. It has been removed."""

    code = "digest_mismatch"
    retryable = True


class DiskError(OutriderError):
    """A disk does not take what is to be written to it."""

    code = "disk_failed"


class DiskFull(DiskError):
    """Not enough space, by the disk or by a quota."""

    code = "disk_full"
    retryable = True


class DiskReadOnly(DiskError):
    """The store cannot be written to."""

    code = "disk_read_only"

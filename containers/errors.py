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
        SpecRefused           spec_refused
        PodmanFailed          podman_failed        retryable
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


class SpecRefused(ContainerError):
    """The validator of container specs turned a spec down."""

    code = "spec_refused"


class PodmanFailed(ContainerError):
    """Podman answered with an error that has no class of its own: often a passing one."""

    code = "podman_failed"
    retryable = True

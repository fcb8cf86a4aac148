"""What can go wrong while the embedded engine's image is made."""

from __future__ import annotations

from containers.errors import ContainerError


class ImageBuildFailed(ContainerError):
    """The image of the embedded engine cannot be made on this machine."""

    code = "image_build_failed"

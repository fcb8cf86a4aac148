"""What names an image: `registry/repository:tag`, `...@sha256:...`, short names written out. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from containers.errors import ImageUnnamed

DOCKER = "docker.io"
LOCAL = "localhost"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_REFERENCE = re.compile(
    rf"^(?:(?P<registry>{_HOST})/)?(?P<path>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?$"
)
_ID = re.compile(r"^(sha256:)?[0-9a-f]{64}$")


@dataclass(frozen=True, slots=True)
class Reference:
    """An image's full name. A tag, a digest, or both; where both are given the digest counts."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def name(self) -> str:
        """`registry/repository`."""
        return f"{self.registry}/{self.repository}"

    @property
    def local(self) -> bool:
        """Whether it is of an image that is made on this machine, which no registry has."""
        return self.registry == LOCAL

    @property
    def manifest(self) -> str:
        """What a registry is asked for: the digest, else the tag."""
        return self.digest or self.tag or "latest"

    @property
    def exact(self) -> str:
        """`name@digest`, else `name:tag`: one way to write it, for comparing and for Podman."""
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag or 'latest'}"

    def pinned(self, digest: str) -> Reference:
        """The same repository at this digest."""
        return Reference(self.registry, self.repository, None, digest)

    def __str__(self) -> str:
        return self.exact


def is_id(text: str) -> bool:
    """Whether it is an image's id, which names a local image and nothing that can be pulled."""
    return _ID.fullmatch(text) is not None


def parse(text: str) -> Reference:
    """Read a reference as Docker does: the first part is a registry if it looks like a host.

    >>> str(parse("vllm/vllm-openai:v0.33.0"))
    'docker.io/vllm/vllm-openai:v0.33.0'

    Raises `ImageUnnamed`.
    """
    found = None if is_id(text) else _REFERENCE.fullmatch(text)
    if found is None or (found["registry"] is not None and not _host(found["registry"]) and text.lower() != text):
        raise ImageUnnamed(
            f"{text!r} names no image that could be pulled",
            hint="an image is named as in `registry/name:tag` or `registry/name@sha256:...`, in lower case",
            evidence={"image": text[:200]},
        )
    registry, path = found["registry"], found["path"]
    if registry is not None and not _host(registry):
        registry, path = None, f"{registry}/{path}"
    if registry in (None, DOCKER, "index.docker.io"):
        registry = DOCKER
        path = path if "/" in path else f"library/{path}"
    tag, digest = found["tag"], found["digest"]
    if tag is None and digest is None:
        tag = "latest"
    return Reference(registry or DOCKER, path, tag, digest)


def _host(text: str) -> bool:
    return "." in text or ":" in text or text == LOCAL

"""Names for what has none yet: a model's public name, a variant's, a quantisation read off a repository. Pure."""

from __future__ import annotations

import re

_QUANTISATIONS = (
    (r"w4a16", "W4A16"), (r"w8a8", "W8A8"), (r"nvfp4", "NVFP4"), (r"mxfp4", "MXFP4"), (r"awq", "AWQ"),
    (r"gptq", "GPTQ"), (r"autoround", "INT4 (AutoRound)"), (r"int4|4[-_]?bit", "INT4"), (r"int8|8[-_]?bit", "INT8"),
    (r"fp8", "FP8"), (r"bf16", "BF16"),
)  # fmt: skip
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(?::[\w.-]{1,64})?")


def slug(text: str, fallback: str = "model") -> str:
    """A public name out of any text: lower case, digits, dots, dashes, underscores; at most 63 characters."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")[:63].rstrip("-._")
    return plain if re.match(r"[a-z0-9]", plain) else fallback


def quantisation(repository: str, tag: str | None) -> str:
    """The quantisation that a name says; a repository that says none is taken to hold what it was trained in."""
    if tag:
        return tag
    base = repository.rpartition("/")[2].lower()
    return next((word for pattern, word in _QUANTISATIONS if re.search(pattern, base)), "BF16")


def is_path(text: str) -> bool:
    """Whether a model is named by a path and not by a repository."""
    return text.startswith(("/", "./", "../", "~", "$")) or (text.endswith(".gguf") and ":" not in text)


def full_name(image: str) -> str:
    """An image with its registry: Docker's own where none is said, as `docker run` takes it."""
    first, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    return image if "." in first or ":" in first or first == "localhost" else f"docker.io/{image}"

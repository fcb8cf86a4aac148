"""What ships with Outrider: models, drafters, images, known combinations, and known bugs and limits, as TOML files.

Every size, shape and claim names its source. The owner's files are laid over it by name (`reading.laid_over`,
`Catalogue.overlay`). Pinning images to digests and repositories to revisions happens on the host.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from orchestrator.catalogue.reading import catalogue as _catalogue
from orchestrator.catalogue.types import EMBEDDED_IMAGE, Catalogue, Combination, ImageEntry, in_range

__all__ = ["EMBEDDED_IMAGE", "Catalogue", "Combination", "ImageEntry", "files", "in_range", "shipped"]

SHIPPED = "catalogue"
"""What is said of where a model comes from that ships."""


def files() -> tuple[Path, ...]:
    """The files that ship, by name."""
    folder = Path(str(resources.files(__package__))) / "data"
    return tuple(sorted(folder.glob("*.toml")))


def shipped() -> Catalogue:
    """The catalogue in this package. Blocking (a dozen small files); raises `ConfigError`."""
    return _catalogue(files(), SHIPPED)

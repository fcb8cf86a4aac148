"""XIDs: the numbers under which NVIDIA's driver reports errors, and whose fault each is.

The classes are those that NVIDIA's own Kubernetes device plugin and DRA driver use; the words are
those of NVIDIA's XID catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class XidClass(StrEnum):
    """What an XID says about the GPU."""

    APPLICATION = "application"
    """A program did something wrong; the GPU is well."""
    HARDWARE = "hardware"
    """The GPU, its memory or its firmware failed."""
    LOST = "lost"
    """The GPU answers nothing more until it is reset or the machine boots again."""
    UNKNOWN = "unknown"
    """Not in the table: shown, and acted on only if the GPU fails too."""


_APPLICATION = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "channels cleaned up before their time",
    68: "video processor exception",
    109: "context switch timeout",
}
_HARDWARE = {
    48: "double bit ECC error",
    63: "ECC page retirement or row remapping recorded",
    64: "ECC page retirement or row remapping failed",
    74: "NVLink error",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP firmware did not answer in time",
    120: "GSP firmware error",
    140: "unrecovered ECC error",
}
_LOST = {
    79: "GPU has fallen off the bus",
    154: "GPU needs a reset or a reboot",
}
NAMES: Mapping[int, str] = {**_APPLICATION, **_HARDWARE, **_LOST}


def classify(number: int | None) -> XidClass:
    """Whose fault this XID is."""
    if number in _APPLICATION:
        return XidClass.APPLICATION
    if number in _HARDWARE:
        return XidClass.HARDWARE
    return XidClass.LOST if number in _LOST else XidClass.UNKNOWN


def describe(number: int | None) -> str:
    """`XID 79 (GPU has fallen off the bus)`; of one that is not in the table it says so."""
    if number is None:
        return "an XID without a number"
    return f"XID {number} ({NAMES.get(number, 'which Outrider does not know')})"

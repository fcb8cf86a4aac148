"""What Podman makes of a CDI name (`nvidia.com/gpu=0`): which specifications it reads, and where names can fail. Pure.

A name is passed as a device; Podman looks it up at each start in /etc/cdi and /var/run/cdi, and ignores a
specification that is newer than the library it was built with: the name is then `unresolvable`, without a reason.
"""

from __future__ import annotations

import re

NEWEST: tuple[tuple[tuple[int, ...], str], ...] = (
    ((6,), "1.1.0"),
    ((5, 5), "1.0.0"),
    ((5, 2), "0.8.0"),
    ((5, 1), "0.7.0"),
    ((4, 7), "0.6.0"),
    ((4, 3), "0.5.0"),
    ((4, 1), "0.4.0"),
)
"""The newest CDI version by Podman release, from the library that each vendors (tags 4.1.0 to 6.0.0-rc1). Podman 4.3.1
was seen to ignore 0.6.0 and later whole. Older Podman knows no CDI at all."""

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
_NAME = re.compile(r"[^/]+/[^/=]+=[^/]+")


def is_cdi(device: str) -> bool:
    """Whether a device is a CDI name, not a node."""
    return _NAME.fullmatch(device) is not None


def reads(podman: str | None) -> str | None:
    """The newest CDI version that a Podman release reads; None for one that is unknown or too old for CDI."""
    found = _NUMBERS.match(podman or "")
    version = tuple(int(part) for part in found[0].split(".")) if found else ()
    return next((cdi for oldest, cdi in NEWEST if version and version >= oldest), None)


def hint(podman: str) -> str:
    """What to do about a name that this Podman does not resolve."""
    newest = reads(podman)
    if newest is None:
        return f"Podman {podman} knows no CDI: install Podman 4.3 or later"
    return (
        "`outrider doctor` tells which CDI file is missing, stale or too new: "
        f"Podman {podman} reads CDI up to {newest}; "
        "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` writes NVIDIA's anew"
    )

"""The kernel's boot id: what was true before another boot is void."""

from __future__ import annotations

import re

from hosts.reading import read_text
from hosts.roots import Roots

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def boot_id(roots: Roots | None = None) -> str | None:
    """`<proc>/sys/kernel/random/boot_id`, or None where the kernel does not say it."""
    text = read_text((roots or Roots()).proc / "sys/kernel/random/boot_id", 128)
    return text if text is not None and _UUID.fullmatch(text) else None

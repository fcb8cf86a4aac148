"""The kernel's last lines about GPUs and about memory that ran out."""

from __future__ import annotations

import os
import re
import stat
import time
from collections import deque

from orchestrator.doctor.sources.look import Look, Unseen

_ABOUT = re.compile(
    r"NVRM|nvidia|nouveau|amdgpu|amdkfd|\bkfd|\bdrm\b|\bttm\b|\bMES\b|Xid|vfio|AER:|oom-kill|Out of memory|iommu",
    re.IGNORECASE,
)
_MOST = 200
_RECORD = 8192
_SECONDS = 2.0


def lines(look: Look, most: int = _MOST) -> list[str]:
    """The last of them, with the seconds since boot. Raises `Unseen` where the log may not be read."""
    path = look.at("/dev/kmsg")
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise Unseen(f"the kernel's log cannot be read: {error.strerror}") from error
    found: deque[str] = deque(maxlen=most)
    try:
        if stat.S_ISREG(os.fstat(log).st_mode):
            records = os.read(log, 8 * 1024 * 1024).split(b"\n")
            found.extend(line for record in records if (line := _line(record)) is not None)
            return list(found)
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            try:
                record = os.read(log, _RECORD)
            except BlockingIOError:
                break  # the end of the log
            except BrokenPipeError:
                continue  # overwritten while it was read: the next read goes on with the oldest there is
            except OSError as error:
                raise Unseen(f"the kernel's log cannot be read: {error.strerror}") from error
            if not record:
                break
            if (line := _line(record)) is not None:
                found.append(line)
    finally:
        os.close(log)
    return list(found)


def _line(record: bytes) -> str | None:
    """`6,1234,98765432,-;text` as `[   98.765432] text`, if it is about what matters here."""
    head, semicolon, text = record.decode(errors="replace").partition(";")
    text = text.partition("\n")[0]
    if not semicolon or not _ABOUT.search(text):
        return None
    words = head.split(",")
    at = int(words[2]) / 1e6 if len(words) > 2 and words[2].isdigit() else 0.0
    return f"[{at:12.6f}] {text[:500]}"

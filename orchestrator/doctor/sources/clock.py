"""The wall clock, and whether something keeps it right: timedatectl, chrony, else the kernel itself."""

from __future__ import annotations

import ctypes
import re

from orchestrator.clock import SystemClock
from orchestrator.doctor.machine import Time
from orchestrator.doctor.sources.look import Look, Unseen

_UNSYNCHRONISED = 0x0040  # STA_UNSYNC, adjtimex(2)
_ERROR = 5  # TIME_ERROR
_SERVICES = ("systemd-timesyncd", "chronyd", "chrony", "ntpd", "ntpsec")


def clock(look: Look, now: float | None = None) -> Time:
    """`now` is for trees: Unix seconds that stand for the wall clock."""
    wall = SystemClock().wall() if now is None else now
    services = tuple(name for name in _SERVICES if _installed(look, name))
    for ask in (_timedatectl, _chrony, _kernel):
        try:
            return Time(wall, ask(look), ask.__name__.strip("_"), services)
        except Unseen:
            continue
    return Time(wall, None, None, services)


def _timedatectl(look: Look) -> bool:
    pairs = dict(line.split("=", 1) for line in look.said("timedatectl", "show").splitlines() if "=" in line)
    if pairs.get("NTPSynchronized") not in {"yes", "no"}:
        raise Unseen("timedatectl does not say it")
    return pairs["NTPSynchronized"] == "yes"


def _chrony(look: Look) -> bool:
    match = re.search(r"^Leap status\s*:\s*(.+)$", look.said("chronyc", "-n", "tracking"), re.MULTILINE)
    if match is None:
        raise Unseen("chronyc does not say it")
    return match[1].strip() != "Not synchronised"


class _Timex(ctypes.Structure):
    """The head of `struct timex`; what follows is never read, only written by the kernel."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("maximum_error", ctypes.c_long),
        ("estimated_error", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    )


def _kernel(look: Look) -> bool:
    """Asks and sets nothing (`modes` 0)."""
    if not look.real:
        raise Unseen("a tree has no clock")
    timex = _Timex()
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError) as error:
        raise Unseen(str(error)) from error
    if state < 0:
        raise Unseen("adjtimex is not allowed here")
    return state != _ERROR and not timex.status & _UNSYNCHRONISED


def _installed(look: Look, name: str) -> bool:
    folders = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
    return any(look.at(f"{folder}/{name}.service").exists() for folder in folders)

"""What a GPU's text says: how many, which memory, which backend. Sizes of named cards are data with what is usable.

A card offers less than its nominal size: what CUDA reports of an RTX 3090 is 23.56 to 23.58 GiB, of a 5090 31.4, of an
RTX PRO 4500 31.38, of an A10G 22.07 (start-up logs). A size with decimals is taken as what an engine printed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.kinds import Backend
from orchestrator.models import Runtime

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Card:
    """A product: sizes it is sold with (GiB), and the usable GiB of each."""

    pattern: str
    sizes: tuple[tuple[int, float], ...]
    backend: Backend = Backend.CUDA
    unified: bool = False


_CARDS = (
    # notebooks first: they share a number with a desktop card of another size
    Card(r"5090 ?(laptop|m(obile)?\b)", ((24, 23.5),)), Card(r"4090 ?(laptop|m(obile)?\b)", ((16, 15.6),)),
    Card(r"5080 ?(laptop|m(obile)?\b)", ((16, 15.5),)), Card(r"4080 ?(laptop|m(obile)?\b)", ((12, 11.7),)),
    Card(r"5070 ?ti ?(laptop|m(obile)?\b)", ((12, 11.5),)), Card(r"3060 ?(laptop|m(obile)?\b)", ((6, 5.8),)),
    Card(r"(30|40|50)[67]0 ?(ti ?)?(laptop|m(obile)?\b)", ((8, 7.7),)),
    Card(r"3080 ?(ti ?)?(laptop|m(obile)?\b)", ((16, 15.7), (8, 7.7))),
    Card(r"5090", ((32, 31.37),)), Card(r"4090", ((24, 23.55),)), Card(r"3090", ((24, 23.57),)),
    Card(r"5080", ((16, 15.5),)), Card(r"4080", ((16, 15.7),)), Card(r"5070 ?ti", ((16, 15.5),)),
    Card(r"4070 ?ti ?super", ((16, 15.6),)), Card(r"[54]070\b|4070 ?(ti|super)", ((12, 11.75),)),
    Card(r"[54]060 ?ti", ((16, 15.5), (8, 7.7))), Card(r"[54]060\b|[32]070\b|3060 ?ti|2080\b(?! ?ti)", ((8, 7.7),)),
    Card(r"3080 ?ti", ((12, 11.75),)),
    Card(r"3080", ((10, 9.77), (12, 11.75))), Card(r"3060\b", ((12, 11.75),)),
    Card(r"2080 ?ti", ((11, 10.75), (22, 21.5))), Card(r"1080 ?ti", ((11, 10.9),)), Card(r"titan rtx", ((24, 23.6),)),
    Card(r"pro 6000", ((96, 94.97),)), Card(r"pro 5000", ((48, 47.0),)), Card(r"pro 4500", ((32, 31.38),)),
    Card(r"6000 ?ada|\ba6000|rtx 8000", ((48, 47.4),)), Card(r"\bl40s?\b|\ba40\b|\bl20\b", ((48, 44.4),)),
    Card(r"\ba5000\b|5000 ?ada", ((24, 23.67), (32, 31.5))), Card(r"\ba4500\b", ((20, 19.7),)),
    Card(r"\ba4000\b", ((16, 15.7),)), Card(r"\ba2000\b", ((12, 11.53), (6, 5.8))), Card(r"\ba30\b", ((24, 23.5),)),
    Card(r"\ba10g?\b", ((24, 22.07),)), Card(r"\bl4\b", ((24, 22.05),)), Card(r"\bt4\b", ((16, 14.6),)),
    Card(r"\bp40\b", ((24, 23.9),)), Card(r"v100", ((32, 31.7), (16, 15.8))),
    Card(r"a[18]00(?!\d)", ((80, 79.2), (40, 39.5))), Card(r"h100 nvl", ((94, 93.1),)), Card(r"h[18]00", ((80, 79.2),)),
    Card(r"gh200", ((96, 94.5), (141, 139.8))), Card(r"h200", ((141, 139.8),)),
    Card(r"h20\b", ((96, 95.1), (141, 139.8))), Card(r"\bg?b200", ((180, 178.4),)),
    Card(r"gb10|dgx spark", ((128, 119.7),), unified=True), Card(r"7900 ?xtx", ((24, 23.98),), Backend.ROCM),
    Card(r"7900 ?xt\b", ((20, 19.98),), Backend.ROCM), Card(r"90[67]0 ?xt|9070\b", ((16, 15.9),), Backend.ROCM),
    Card(r"7800 ?xt|6[89][05]0 ?xt|6800\b", ((16, 15.98),), Backend.ROCM),
    Card(r"mi[56]0\b", ((32, 31.98), (16, 15.98)), Backend.ROCM), Card(r"mi100\b", ((32, 31.98),), Backend.ROCM),
    Card(r"mi2[15]0", ((64, 63.98),), Backend.ROCM), Card(r"mi325x", ((256, 255.5),), Backend.ROCM),
    Card(r"mi300x", ((192, 191.5),), Backend.ROCM), Card(r"r9700", ((32, 31.9),), Backend.ROCM),
    Card(r"strix halo|gfx1151|8060s|ai max\+? 395", ((128, 120.0),), Backend.ROCM, unified=True),
    Card(r"b70\b", ((32, 31.0),), Backend.VULKAN), Card(r"b580", ((12, 11.6),), Backend.VULKAN),
    Card(r"\ba770\b", ((16, 15.6),), Backend.VULKAN),
    Card(r"apple|\bm[1-5]\b( pro| max| ultra)?|metal", (), Backend.VULKAN, unified=True),
)  # fmt: skip
_COUNT = re.compile(r"^\s*(\d{1,3})\s*[x\u00d7*]\s*(?=[a-z(])|[a-z0-9)]\s+\(?[x\u00d7*]\s*(\d{1,3})\)?\s*$")
"""`2x RTX 3090`, `2*RTX 3090`, `RTX 3090 (x2)`."""
_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?(mib|gib|gb|g)\b")
_OTHERS = re.compile(r"\bfree\b|\bafter\b|\bload\b")
METAL_SHARE = 0.75
"""Of the memory, what macOS lets a GPU wire by default."""
_NOMINAL = 0.985
"""Usable share of a nominal size, for a card that is not in the table."""


@dataclass(frozen=True, slots=True)
class Device:
    """One of the devices. `usable` None: its memory is not known."""

    count: int
    usable: int | None
    backend: Backend
    unified: bool
    how: str
    """`printed`, `card` (a named card's usable size), `nominal`, `assumed` or `unknown`."""
    nominal: float | None = None
    """GiB it is sold with."""
    smallest: int | None = None
    """Usable bytes of the smallest card of that name, where the size is assumed."""
    per_device: bool = False
    """Whether the row says that its figures are of one device."""
    each: tuple[int, ...] = ()
    """Sizes of devices that differ, as the text gives them."""
    metal: bool = False
    """Apple's: llama.cpp maps the whole file for the device."""


@lru_cache(maxsize=4096)
def device(gpu: str | None, memory: int | None, runtime: Runtime, version: str | None = None) -> Device:
    """Read a row's GPU text and memory (bytes)."""
    low = (gpu or "").lower()
    hint = f"{low} {(version or '').lower()}"
    card = next((c for c in _CARDS if re.search(c.pattern, low)), None)
    counted = _COUNT.search(low)
    count = int(counted[1] or counted[2]) if counted else 2 if low.startswith("dual ") else 1
    if " + " in low:
        count += low.count(" + ")
    backend = _backend(hint, card, runtime)
    unified = (card is not None and card.unified) or "unified" in low or "jetson" in low or "orin" in low
    per_device = "per gpu" in low
    sizes = _sizes(low)
    each = sizes if len(sizes) > 1 else ()
    if unified and "vulkan" not in low and re.search(r"apple|metal|\bm[1-5]\b", low):
        whole = memory if memory is not None else min(sizes, default=None)
        usable = None if whole is None else int(whole * METAL_SHARE)
        return Device(count, usable, backend, True, "nominal" if usable else "unknown", metal=True)
    if backend is Backend.CPU:
        return Device(count, memory, backend, False, "printed" if memory else "unknown", per_device=per_device)
    if memory is not None:
        usable, how, nominal = _usable(_each(memory, count, card), card)
        return Device(count, usable, backend, unified, how, nominal, None, per_device, each)
    if sizes and " x " not in low:
        text_has_decimals = re.search(r"\d\.\d+ ?gib|\d+ ?mib", low) is not None
        usable, how, nominal = (min(sizes), "printed", None) if text_has_decimals else _usable(min(sizes), card)
        return Device(count, usable, backend, unified, how, nominal, None, per_device, each)
    if card is None or not card.sizes or " + " in low:  # cards that differ are no row of equal ones
        return Device(count, None, backend, unified, "unknown", per_device=per_device)
    nominal, usable_gib = card.sizes[0]
    smallest = int(min(usable for _, usable in card.sizes) * GIB) if len(card.sizes) > 1 else None
    how = "assumed" if smallest is not None else "card"
    return Device(count, int(usable_gib * GIB), backend, unified, how, nominal, smallest, per_device)


def _each(memory: int, count: int, card: Card | None) -> int:
    """Bytes of one device, where a row gives those of all: 48 GiB for two cards that are sold with 24."""
    sold = {nominal for nominal, _ in card.sizes} if card is not None else set()
    gib = memory / GIB
    return memory // count if count > 1 and gib not in sold and gib / count in sold else memory


def _sizes(low: str) -> tuple[int, ...]:
    if _OTHERS.search(low):
        return ()
    units = {"mib": MIB, "gib": GIB, "gb": GIB, "g": GIB}
    return tuple(int(float(n) * units[unit]) for n, unit in _MEMORY.findall(low))


def _usable(memory: int, card: Card | None) -> tuple[int, str, float | None]:
    gib = memory / GIB
    if gib != int(gib):
        return memory, "printed", None
    if card is not None:
        for nominal, usable in card.sizes:
            if nominal == gib:
                return int(usable * GIB), "card", gib
        if card.unified:
            return memory, "nominal", gib
    return int(memory * _NOMINAL), "nominal", gib


def _backend(hint: str, card: Card | None, runtime: Runtime) -> Backend:
    if re.search(r"\bcpu only\b|^cpu\b", hint):
        return Backend.CPU
    if "vulkan" in hint or "radv" in hint:
        return Backend.VULKAN
    if "rocm" in hint or "radeon" in hint or "instinct" in hint:
        return Backend.ROCM
    if "intel" in hint or "arc " in hint:
        return Backend.VULKAN if runtime is Runtime.LLAMA_CPP else Backend.ROCM
    return card.backend if card is not None else Backend.CUDA

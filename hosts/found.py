"""What the probe of one vendor yields."""

from __future__ import annotations

from dataclasses import dataclass

from hosts.facts import Accelerator, Problem


@dataclass(frozen=True, slots=True)
class Found:
    """GPUs, and what is to be said about them or about their absence."""

    accelerators: tuple[Accelerator, ...] = ()
    problems: tuple[Problem, ...] = ()

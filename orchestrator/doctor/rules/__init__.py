"""The rules, one a file. Adding one is adding a file here, and a planted fault in `tests/doctor/faults.py`.

A rule's module has

* `CODE`, its stable name, the same as the file's, and `SEVERITY`, unless a fault says otherwise;
* `SOURCE`, what taught it;
* `NEEDS`, the sources (`collect.SOURCES`) without which it can say nothing;
* `SUPERSEDES`, optional: the probe's codes that it explains better, so that nobody hears them twice;
* `check(machine)`, which yields a `Fault` for each thing that is wrong. Pure; what is unknown is no fault.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection
from functools import cache

from orchestrator.doctor.findings import Rule


@cache
def load() -> tuple[Rule, ...]:
    """Every rule, by code."""
    modules = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    return tuple(_rule(name) for name in modules)


def chosen(codes: Collection[str] | None = None) -> tuple[Rule, ...]:
    """The rules of these codes, all of them without any. Raises KeyError for a code that no rule has."""
    rules = {rule.code: rule for rule in load()}
    if not codes:
        return tuple(rules.values())
    return tuple(rules[code] for code in dict.fromkeys(codes))


def superseded() -> frozenset[str]:
    """The probe's codes that a rule of its own explains."""
    return frozenset[str]().union(*(rule.supersedes for rule in load()))


def _rule(name: str) -> Rule:
    module = importlib.import_module(f"{__name__}.{name}")
    return Rule(
        code=module.CODE,
        severity=module.SEVERITY,
        source=module.SOURCE,
        needs=tuple(module.NEEDS),
        supersedes=frozenset(getattr(module, "SUPERSEDES", ())),
        check=module.check,
    )

"""What a person should look at: one rule a file, found by its name. Adding one is adding a file here, and a case in
`tests/telling/test_issue_rules.py`.

A rule's module has

* `CODE`, its stable name, the same as the file's;
* `detect(sight)`, which yields a `Found` for each thing that holds now: what it is (`text`), what to do about it
  (`hint`), and the numbers. Pure; what is unknown is no issue;
* `withdraw(subject)`, the sentence for the moment when it no longer holds.

Nobody dismisses an issue: it goes when its rule no longer finds it (`orchestrator.issue_watch`). Who watches one thing
more closely than once a round opens and closes its issues itself (`orchestrator.issues`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from orchestrator.issue_rules._sight import Found, Sight


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    code: str
    detect: Callable[[Sight], Iterable[Found]]
    withdraw: Callable[[str], str]


@cache
def load() -> tuple[Rule, ...]:
    """Every rule, by code."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    return tuple(_rule(name) for name in names)


def _rule(name: str) -> Rule:
    module = importlib.import_module(f"{__name__}.{name}")
    return Rule(module.CODE, module.detect, module.withdraw)

"""Whatever the product writes into its journal has its part in a story, and its reasons have words: the codes are
looked for in the source."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from orchestrator import adoption
from orchestrator.deployment import TURN
from orchestrator.errors import DeviceMissing
from orchestrator.loading_marks import CODE as CRASHED
from orchestrator.restarting.rule import Next
from orchestrator.telling.amounts import count
from orchestrator.telling.parts import PARTS, Part, part
from orchestrator.telling.words import _FOUND_REASONS, ENDINGS
from orchestrator.views import Desired, Event

REPOSITORY = Path(__file__).parents[2]
OPEN_KINDS = {"issue", "podman", "weights", "config"}
"""Kinds whose codes are an issue's or an error's own."""
BY_HAND: Mapping[str, frozenset[str]] = {
    "decision.action.value": frozenset(a.value for a in adoption.Adoption),
    "f'would_{decision.action.value}'": frozenset({"would_drop", "would_resume"}),
    "f'would_{action.value}'": frozenset({f"would_{a.value}" for a in Next if a is not Next.PARK}),
    "f'desired_{desired}'": frozenset(f"desired_{d.value}" for d in Desired),
    "found.reason": frozenset({"host_slept", "daemon_stopped", "clock_set"}),
    "event.kind": frozenset(),  # what drivers say: any of kind `device` is something found
}
"""What an expression in the source can be."""


Entry = tuple[str, frozenset[str] | None, str]
"""Kind (empty where a function of its own says it), the codes that it can have (None: not to be read), its place."""


def _values(node: ast.expr, module: object) -> frozenset[str] | None:
    """The texts that an expression can be; None where that cannot be read from it."""
    match node:
        case ast.Constant(value=str(text)):
            return frozenset({text})
        case ast.IfExp(body=one, orelse=other):
            first, second = _values(one, module), _values(other, module)
            return None if first is None or second is None else first | second
        case ast.Name(id=name) if isinstance(getattr(module, name, None), str):
            return frozenset({getattr(module, name)})
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            found = getattr(getattr(module, name, None), attribute, None)
            return frozenset({found}) if isinstance(found, str) else BY_HAND.get(ast.unparse(node))
        case _:
            return BY_HAND.get(ast.unparse(node))


def _codes(file: Path) -> Iterator[Entry]:
    """The entries that a file writes."""
    tree = ast.parse(file.read_text())
    module = importlib.import_module(".".join(file.relative_to(REPOSITORY).with_suffix("").parts))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    passing = {"emit": 0}
    """Functions that hand a code on, with its place among their arguments."""
    for function in functions:
        names = [argument.arg for argument in function.args.args if argument.arg != "self"]
        if "code" in names and any(_is_journal(node) for node in ast.walk(function)):
            passing[function.name] = names.index("code")
    for function in functions:
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            place = f"{file.relative_to(REPOSITORY)}:{node.lineno}: {ast.unparse(node)[:80]}"
            if _is_journal(node):
                kind, code = "".join(_values(node.args[0], module) or ()), node.args[1]
            elif node.func.attr in passing and len(node.args) > passing[node.func.attr]:
                kind, code = "", node.args[passing[node.func.attr]]
            else:
                continue
            yield kind, _assigned(function, module) if _is_code(code) else _values(code, module), place


def _is_code(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "code"


def _assigned(function: ast.FunctionDef | ast.AsyncFunctionDef, module: object) -> frozenset[str]:
    """What a function gives the name `code`; where that is an argument, its callers are read."""
    found = set[str]()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and "code" in re.split(r"\W+", ast.unparse(node.targets[0])):
            found |= {str(one.value) for one in ast.walk(node.value) if isinstance(one, ast.Constant)}
            if ast.unparse(node.value).startswith("CODES["):
                found |= set(getattr(module, "CODES", {}).values())
    return frozenset(code for code in found if re.fullmatch(r"[a-z_]+", code))


def _is_journal(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "emit"
        and "journal" in ast.unparse(node.func.value).lower()
    )


def _all() -> list[Entry]:
    files = sorted((REPOSITORY / "orchestrator").rglob("*.py"))
    return [
        entry for file in files if re.search(r"journal\.emit|_hands\.emit", file.read_text()) for entry in _codes(file)
    ]


def test_every_code_of_the_journal_has_its_part() -> None:
    entries = [entry for entry in _all() if entry[0] not in OPEN_KINDS]
    unread = [place for _, codes, place in entries if codes is None]
    assert not unread, "what these write cannot be read from the source: put it into BY_HAND"
    written = {code for _, codes, _ in entries for code in codes or ()}
    assert len(written) > 80, "the search finds what it looks for"
    assert not {code: place for _, codes, place in entries for code in codes or () if code not in PARTS}
    errors = {"weights_pulled", "weights_moved", "reloaded", "podman_back", "podman_unreachable", "switch_too_costly"}
    assert not set(PARTS) - written - errors, "nobody writes these any more"


def test_every_reason_of_an_end_has_words() -> None:
    """`stopped` says why an engine went: a reason of the lifecycle's table, or of whoever unloads it."""
    reasons = {"failed", "wedged", "daemon_ends", "restart", "switch", TURN, CRASHED, DeviceMissing.code}
    for file in ("lifecycle.py", "switch_step.py"):
        for node in ast.walk(ast.parse((REPOSITORY / "orchestrator" / file).read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.args[0] if node.args else node) == "Step.STOP":
                reasons |= {str(one.value) for one in node.args[1:2] if isinstance(one, ast.Constant)}
    for path in (REPOSITORY / "orchestrator" / "demand").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Leaving":
                reasons |= {str(one.value) for one in node.args[:1] if isinstance(one, ast.Constant)}
    assert {"idle_unload", "evicted", "superseded", "stop_unfinished", "plan_changed", "desired_stopped"} <= reasons
    assert reasons == set(ENDINGS)


def test_every_reason_of_a_removal_has_words() -> None:
    source = "".join((REPOSITORY / "orchestrator" / file).read_text() for file in ("adoption.py", "adopting.py"))
    reasons = set(re.findall(r'Adoption\.REMOVE, "(\w+)"', source))
    assert "not_running" in reasons
    assert reasons == set(_FOUND_REASONS)


@pytest.mark.parametrize(
    ("kind", "code", "found"),
    [
        ("ladder", "would_retry_same", Part.FOUND),
        ("health", "ready_again", Part.WELL),
        ("issue", "gateway_away", Part.TROUBLE),
        ("issue", "gateway_away_over", Part.WELL),
        ("podman", "podman_timeout", Part.TROUBLE),
        ("device", "amdgpu_reset", Part.FOUND),
        ("of_another_version", "unheard_of", Part.DONE),
    ],
)
def test_the_part_of_an_entry(kind: str, code: str, found: Part) -> None:
    assert part(Event(1, 0.0, "h", "b", kind, code, "text", "m", {})) is found


_ONE = r" (times|failures|problems|warnings|things|entries|engines|requests|models|images|days|hours|minutes)\b"
MANY = {
    "not_coming_up.py": "three at least",
    "device_health.py": "three at least",
    "text.py": "two at least",
    "checking.py": "two at least",
    "desk.py": "says one otherwise",
    "ranking.py": "says one otherwise",
    "problem.py": "says one otherwise",
    "vllm_speculation.py": "the limit of an argument",
    "choosing.py": "two at least",
    "governing.py": "a rate",
    "cdi_stale.py": "no number",
    "config_shape.py": "two at least",
    "installation.py": "says one otherwise",
}
"""Files whose numbers before such a word are never 1, and why."""


def test_one_is_not_told_as_many() -> None:
    """A number before a word in the plural goes through `count`: an engine did not fail 1 times."""
    wrong = []
    for folder in ("api", "orchestrator", "hosts", "containers"):
        for file in sorted((REPOSITORY / folder).rglob("*.py")):
            if file.name in MANY or not re.search(rf"}}{_ONE}", text := file.read_text()):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.JoinedStr):
                    for number, behind in itertools.pairwise(node.values):
                        words = behind.value if isinstance(behind, ast.Constant) else ""
                        if isinstance(number, ast.FormattedValue) and re.match(_ONE, str(words)):
                            wrong.append(f"{file.relative_to(REPOSITORY)}:{node.lineno}: {ast.unparse(node)[:100]}")
    assert not wrong
    assert (count(1, "time"), count(2, "time"), count(1, "entry", "entries")) == ("1 time", "2 times", "1 entry")

"""Reads off vLLM wheels which words each knows: `python -m tests.runtimes.vllm.surfaces WHEEL...`.

Nothing is installed and nothing of the wheel is run: its sources are parsed. What was found in the wheels from
0.20.0 to 0.33.0 is in `surfaces.json`: for each kind and word the versions that know it, and each wheel's SHA-256.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

FILE = Path(__file__).with_name("surfaces.json")
Surface = Mapping[str, frozenset[str]]
"""Kind (flags, keys, methods, kv, attention, environment, moe, rejection) to words."""

KINDS = ("flags", "keys", "methods", "kv", "attention", "environment", "moe", "rejection")
_VERSION = re.compile(r"^vllm-(\d+\.\d+\.\d+)-")


def read(wheel: Path) -> Surface:
    """What one wheel knows."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]

        def text(path: str) -> str:
            return archive.read(f"vllm/{path}").decode()

        arguments = ["vllm/engine/arg_utils.py", *(n for n in names if n.endswith("/cli_args.py"))]
        flags: set[str] = set()
        for name in arguments:
            source = archive.read(name).decode()
            flags |= set(re.findall(r'"(--[a-z0-9-]+)"', source))
            if name.endswith("/cli_args.py"):
                flags |= {f"--{field.replace('_', '-')}" for field in _fields(source, None)}
        speculative, cache = text("config/speculative.py"), text("config/cache.py")
        literals = _literals(speculative)
        registry = next(n for n in names if n.endswith("attention/backends/registry.py"))
        envs = text("envs.py")
        return {
            "flags": frozenset(flags),
            "keys": frozenset(_fields(speculative, "SpeculativeConfig")),
            "methods": frozenset().union(*(literals[n] for n in literals if n.endswith(("Types", "Method"))))
            - literals["RejectionSampleMethod"]
            - literals.get("DraftSampleMethod", frozenset()),
            "kv": _literals(cache)["CacheDType"],
            "attention": frozenset(re.findall(r"^    ([A-Z0-9_]+) = ", archive.read(registry).decode(), re.MULTILINE)),
            "environment": frozenset(re.findall(r'"(VLLM_[A-Z0-9_]+)"', envs)),
            "moe": _literals(text("config/kernel.py"))["MoEBackend"],
            "rejection": literals["RejectionSampleMethod"],
        }


def known() -> tuple[tuple[str, ...], Mapping[str, Mapping[str, frozenset[str]]]]:
    """Versions, oldest first; for each kind and word, the versions that know it."""
    data = json.loads(FILE.read_text())
    versions = tuple(data["wheels"])
    words = {
        kind: {word: frozenset(_spread(span, versions)) for word, span in found.items()}
        for kind, found in data["words"].items()
    }
    return versions, words


def _fields(source: str, name: str | None) -> Iterable[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and name in (None, node.name):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id


def _literals(source: str) -> dict[str, frozenset[str]]:
    found = re.finditer(r"^(\w+) = Literal\[(.*?)\n?\]\n", source, re.DOTALL | re.MULTILINE)
    return {match[1]: frozenset(re.findall(r'"([A-Za-z0-9_]+)"', match[2])) for match in found}


def _spread(span: str, versions: tuple[str, ...]) -> Iterable[str]:
    for part in span.split(","):
        first, _, last = part.partition("..")
        yield from versions[versions.index(first) : versions.index(last or first) + 1]


def _span(having: list[bool], versions: tuple[str, ...]) -> str:
    """`0.24.0..0.33.0`, several with commas between them."""
    spans: list[tuple[int, int]] = []
    for place, has in enumerate(having):
        if has and spans and spans[-1][1] == place - 1:
            spans[-1] = (spans[-1][0], place)
        elif has:
            spans.append((place, place))
    return ",".join(versions[a] if a == b else f"{versions[a]}..{versions[b]}" for a, b in spans)


def record(wheels: Iterable[Path]) -> None:
    """Write `surfaces.json` anew from these wheels."""
    read_off: dict[str, tuple[str, Surface]] = {}
    for wheel in wheels:
        match = _VERSION.match(wheel.name)
        if match is None:
            raise ValueError(f"{wheel.name} is no wheel of vllm")
        read_off[match[1]] = (hashlib.sha256(wheel.read_bytes()).hexdigest(), read(wheel))
    versions = tuple(sorted(read_off, key=lambda v: [int(part) for part in v.split(".")]))
    words = {
        kind: {
            word: _span([word in read_off[v][1][kind] for v in versions], versions)
            for word in sorted(frozenset().union(*(read_off[v][1][kind] for v in versions)))
        }
        for kind in KINDS
    }
    data = {"wheels": {v: read_off[v][0] for v in versions}, "words": words}
    FILE.write_text(json.dumps(data, indent=0, sort_keys=False) + "\n")


if __name__ == "__main__":
    record(Path(word) for word in sys.argv[1:])

"""Where an image is to be asked for: registries.conf, read as Podman reads it, as far as a question needs it.

Podman goes by its own reading when it pulls; this is for asking a registry beforehand (digest, size)
at the same places.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers.references import DOCKER, Reference

SYSTEM = Path("/etc/containers/registries.conf")
_DOCKER_API = "registry-1.docker.io"


@dataclass(frozen=True, slots=True)
class Place:
    """One place that may have an image: `host` (with a port where it has one) and the repository there."""

    host: str
    repository: str
    insecure: bool = False

    @property
    def url(self) -> str:
        """The root of the repository in the registry's API."""
        scheme = "http" if self.insecure else "https"
        return f"{scheme}://{api_host(self.host)}/v2/{self.repository}"

    @property
    def name(self) -> str:
        return f"{self.host}/{self.repository}"


def api_host(registry: str) -> str:
    """Where a registry's API is."""
    return _DOCKER_API if registry == DOCKER else registry


def places(reference: Reference, rules: Iterable[Mapping[str, Any]] | None = None) -> tuple[Place, ...]:
    """Mirrors first, then the registry itself. Blocking where `rules` (tables `[[registry]]`) must be read."""
    known = tuple(load() if rules is None else rules)
    rule = _rule(known, reference.name)
    if rule is None:
        return (_place(known, reference.name),)
    prefix = str(rule.get("prefix") or rule.get("location") or "")
    rest = reference.name[len(prefix) :]
    # "digest-only" and "tag-only" mirrors are Podman's to weigh; here one that lacks the image is passed over
    mirrors = (m for m in rule.get("mirror") or () if m.get("location"))
    itself = {"location": rule.get("location") or prefix, "insecure": rule.get("insecure")}
    return tuple(_placed(f"{m['location']}{rest}", insecure=bool(m.get("insecure"))) for m in (*mirrors, itself))


def load(environ: Mapping[str, str] | None = None) -> list[Mapping[str, Any]]:
    """The `[[registry]]` tables of this process's registries.conf; what is not TOML counts as empty. Blocking."""
    env = os.environ if environ is None else environ
    named = env.get("CONTAINERS_REGISTRIES_CONF") or env.get("REGISTRIES_CONFIG_PATH")
    main = Path(named) if named else SYSTEM
    files = [main]
    if not named:
        user = Path(env.get("HOME") or "/root") / ".config/containers/registries.conf"
        if os.getuid() != 0 and user.exists():
            files = [user]
        extra = files[0].with_name(files[0].name + ".d")
        files += sorted(extra.glob("*.conf")) if extra.is_dir() else []
    rules: dict[str, Mapping[str, Any]] = {}
    for file in files:
        for rule in _tables(file):
            rules[str(rule.get("prefix") or rule.get("location"))] = rule
    return list(rules.values())


def _tables(file: Path) -> list[Mapping[str, Any]]:
    try:
        data = tomllib.loads(file.read_text())
    except (OSError, ValueError):
        return []
    found = data.get("registry")
    return [r for r in found if isinstance(r, dict)] if isinstance(found, list) else []


def _rule(rules: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """The rule with the longest prefix that covers this name; patterns (`*.example`) are not looked at."""
    covering = [
        (len(prefix), rule)
        for rule in rules
        if (prefix := str(rule.get("prefix") or rule.get("location") or ""))
        and (name == prefix or name.startswith((f"{prefix}/", f"{prefix}:", f"{prefix}@")))
    ]
    return max(covering, key=lambda pair: pair[0])[1] if covering else None


def _place(rules: Iterable[Mapping[str, Any]], name: str) -> Place:
    rule = _rule(rules, name)
    return _placed(name, insecure=bool(rule and rule.get("insecure")))


def _placed(name: str, *, insecure: bool) -> Place:
    host, _, repository = name.partition("/")
    return Place(host, repository, insecure)

"""Compose files: each service as a container. A file of our size and depth only; nothing of it is run. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from orchestrator.importing import shell
from orchestrator.importing.container import Container
from orchestrator.importing.values import ImportUnreadable

MOST_EVENTS = 20_000
MOST_ALIASES = 64
DEEPEST = 24
_STARTS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_ENDS = (yaml.MappingEndEvent, yaml.SequenceEndEvent)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?[^}]*\}|([A-Za-z_]\w*))")
_IGNORED = frozenset({
    "image", "command", "entrypoint", "environment", "ports", "expose", "volumes", "ipc", "shm_size", "devices",
    "gpus", "deploy", "runtime", "env_file", "secrets", "build", "extends",
})  # fmt: skip


def looks(text: str) -> bool:
    """Whether a text is a compose file."""
    return re.search(r"^services:\s*(?:#.*)?$", text, re.MULTILINE) is not None


def services(text: str) -> dict[str, Container]:
    """Each service by its name. Raises `ImportUnreadable` for what is no compose file, or a bomb."""
    _measured(text)
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ImportUnreadable("the file is no YAML") from error
    found = data.get("services") if isinstance(data, Mapping) else None
    if not isinstance(found, Mapping) or not found:
        raise ImportUnreadable("a compose file has `services`, one mapping each")
    return {str(name): _service(str(name), _extended(str(name), found, ())) for name in found}


def _extended(name: str, services: Mapping[Any, Any], seen: tuple[str, ...]) -> Any:
    """A service with what it takes over from another one of the same file."""
    own = services.get(name)
    if not isinstance(own, Mapping):
        return own
    extends = own.get("extends")
    base = extends.get("service") if isinstance(extends, Mapping) else extends
    if base is None or (isinstance(extends, Mapping) and extends.get("file") is not None):
        return own  # another file is not read; `_service` says so
    if base in seen or base == name or base not in services:
        raise ImportUnreadable(f"services.{name}.extends: {str(base)[:80]!r} is no other service of the file")
    under = _extended(str(base), services, (*seen, name))
    if not isinstance(under, Mapping):
        return own
    merged: dict[Any, Any] = {**under, **own}
    for key in ("volumes", "ports", "devices", "env_file"):
        if key in under and key in own:
            merged[key] = [*_list(under[key]), *_list(own[key])]
    if "environment" in merged:
        merged["environment"] = {**_environment(under.get("environment")), **_environment(own.get("environment"))}
    return merged


def _measured(text: str) -> None:
    """Count before anything is built: an alias of an alias of an alias is a gigabyte in a line."""
    depth = events = aliases = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            events += 1
            aliases += isinstance(event, yaml.AliasEvent)
            depth += isinstance(event, _STARTS) - isinstance(event, _ENDS)
            if events > MOST_EVENTS or aliases > MOST_ALIASES or depth > DEEPEST:
                mark = event.start_mark
                raise ImportUnreadable("the file is too large, too deep or has too many aliases", line=mark.line + 1)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        problem = str(getattr(error, "problem", None) or "it cannot be read")[:120]  # the line itself may hold a secret
        raise ImportUnreadable(f"the file is no YAML: {problem}", line=line) from None
    except (ValueError, RecursionError) as error:
        raise ImportUnreadable("the file is no YAML") from error


def _service(name: str, value: Any) -> Container:
    if not isinstance(value, Mapping):
        raise ImportUnreadable(f"services.{name} must be a mapping")
    container = Container()
    image = value.get("image")
    container.image = None if image is None else _text(image, container)
    if "build" in value:
        container.change(
            "build", f"services.{name}.build", None, "images are named, and built by `outrider image build`"
        )
    extends = value.get("extends")
    if isinstance(extends, Mapping) and extends.get("file") is not None:
        why = "another file is not read: give one file that says everything (`docker compose config`)"
        container.change("extends", f"services.{name}.extends", None, why)
    for key, inner in _environment(value.get("environment")).items():
        container.set(key, None if inner is None else _text(inner, container))
    for port in _list(value.get("ports")):
        container.publish(str(port.get("published", port)) if isinstance(port, Mapping) else str(port))
    for volume in _list(value.get("volumes")):
        if isinstance(volume, Mapping):
            container.mount(f"{volume.get('source', '')}:{volume.get('target', '')}")
        else:
            container.mount(_text(volume, container))
    _host(container, value)
    entry = _words(value.get("entrypoint"), container)
    container.entrypoint = entry[0] if entry else None
    container.words = (*entry[1:], *_words(value.get("command"), container))
    for key in sorted(map(str, value.keys() - _IGNORED)):
        why = "Outrider decides what a container is given, and keeps it running"
        container.change("not_carried", f"services.{name}.{key}", None, why)
    return container


def _host(container: Container, value: Mapping[str, Any]) -> None:
    if value.get("ipc"):
        container.shared_memory(f"ipc: {value['ipc']}")
    if value.get("shm_size"):
        container.shared_memory(f"shm_size: {value['shm_size']}")
    for device in _list(value.get("devices")):
        container.device(str(device))
    if value.get("gpus"):
        container.device(f"gpus: {value['gpus']}"[:80])
    deploy = value.get("deploy")
    if isinstance(deploy, Mapping) and "gpu" in str(deploy)[:2000]:
        container.device(f"deploy.resources: {_reserved(deploy)}")
    if value.get("runtime"):
        container.device(f"runtime: {value['runtime']}"[:80])
    for _ in _list(value.get("env_file")):
        container.change("env_file", "env_file", None, "the file is not read: it may hold secrets")
    for _ in _list(value.get("secrets")):
        container.change("secret", "secrets", None, "an engine is given no secrets")


def _reserved(deploy: Mapping[Any, Any]) -> str:
    """Which GPUs a `deploy` asks for, in a few words."""
    part: Any = deploy
    for key in ("resources", "reservations", "devices"):
        part = part.get(key) if isinstance(part, Mapping) else None
    for device in _list(part):
        if isinstance(device, Mapping) and (device.get("device_ids") or device.get("count")):
            return str(device.get("device_ids") or f"count {device['count']}")[:80]
    return "all"


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value)[:1000] if isinstance(value, list) else [value]


def _environment(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {str(key): inner for key, inner in value.items()}
    pairs = (str(item).partition("=") for item in _list(value))
    return {name: text if equals else None for name, equals, text in pairs}


def _words(value: Any, container: Container) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(_text(word, container) for word in value[:2000])
    if value is None:
        return ()
    found = shell.commands(_text(value, container).replace("\\\n", " ").replace("\n", " "))
    return found[0].words if found else ()


def _text(value: Any, container: Container) -> str:
    """A scalar, with `${NAME:-default}` taken from the file's own environment or its default."""

    def put(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return container.env.get(name, match[2] if match[2] is not None else match[0])

    return _VARIABLE.sub(put, str(value).replace("$$", "\0")).replace("\0", "$")

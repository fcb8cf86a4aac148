"""Quadlet's `.container` units, and systemd's `.service` units that start a server or a container. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from orchestrator.importing import container as containers
from orchestrator.importing import shell
from orchestrator.importing.container import Container
from orchestrator.importing.values import Change, Command, ImportUnreadable

_SECTION = re.compile(r"^\[(\w[\w-]*)\]\s*$")
_LEFT = {
    "ContainerName": ("kept_running", "containers are named by the daemon"),
    "Network": ("least_power", "an engine has no network, or one loopback port where it serves no socket"),
    "SecurityLabelDisable": ("least_power", "the image's security profile says what is relaxed, and why"),
    "SeccompProfile": ("least_power", "the image's security profile says what is relaxed, and why"),
    "AddCapability": ("least_power", "every capability is dropped"),
    "User": ("least_power", "the image's security profile says as whom it runs"),
    "GroupAdd": ("named_device", "a device brings its group's number with it"),
    "Secret": ("secret", "an engine is given no secrets"),
    "EnvironmentFile": ("env_file", "the file is not read: it may hold secrets"),
    "AutoUpdate": ("image_latest", "images are pinned: `outrider image pin` moves them when you say so"),
}


def looks(text: str) -> bool:
    """Whether a text is a `.container` or `.service` unit."""
    return re.search(r"^\[Container\]\s*$|^ExecStart=", text, re.MULTILINE) is not None


def service(text: str) -> tuple[Command, tuple[Change, ...]] | None:
    """What a `.service` unit starts, and what of it is different here; None for a `.container` unit."""
    started: Command | None = None
    container = Container()
    for number, key, value in _lines(text):
        if key == "[" and value == "Container":
            return None
        if key == "ExecStart":
            found = shell.commands(value.lstrip("-@:+!|"))
            started = None if not found else replace(found[0], line=number)
        elif key == "Environment":
            _variables(container, value)
        elif key == "EnvironmentFile":
            container.change("env_file", key, None, "the file is not read: it may hold secrets")
        elif key in ("Restart", "TimeoutStartSec", "RestartSec", "ExecStop", "ExecStopPost", "Type", "PIDFile"):
            why = "the daemon keeps a deployment running, and knows how long a load may take"
            container.change("kept_running", f"{key}={value}"[:200], None, why)
    if started is None:
        raise ImportUnreadable("the unit has no ExecStart=", hint="a `.service` unit says what it starts")
    return replace(started, env={**container.env, **started.env}), tuple(container.changes)


def unit(text: str) -> Container:
    """The unit's container. Raises `ImportUnreadable` for what is none."""
    container = Container()
    section, exec_line = "", ""
    for number, key, value in _lines(text):
        if key == "[":
            section = value
        elif section == "Container":
            exec_line = _entry(container, key, value, exec_line)
        elif section == "Service" and key in ("Restart", "TimeoutStartSec", "RestartSec"):
            why = "the daemon keeps a deployment running, and knows how long a load may take"
            container.change("kept_running", f"{key}={value}", None, why)
        elif not section:
            raise ImportUnreadable("a unit begins with a section", line=number)
    if container.image is None:
        raise ImportUnreadable("the unit has no Image=", hint="a `.container` unit names its image")
    found = shell.commands(exec_line)
    container.words = found[0].words if found else ()
    return container


def _lines(text: str) -> list[tuple[int, str, str]]:
    """(line, key, value) of each assignment; ("[", name) of each section."""
    found: list[tuple[int, str, str]] = []
    pending, begin = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not pending and (not line or line[0] in "#;"):
            continue
        begin = begin or number
        pending += line[:-1] + " " if line.endswith("\\") else line
        if line.endswith("\\"):
            continue
        section = _SECTION.match(pending)
        key, equals, value = pending.partition("=")
        if section is not None:
            found.append((begin, "[", section[1]))
        elif equals:
            found.append((begin, key.strip(), value.strip()))
        else:
            raise ImportUnreadable("the line is no KEY=VALUE", line=begin)  # unquoted: it may hold a secret
        pending, begin = "", 0
    return found


def _entry(container: Container, key: str, value: str, exec_line: str) -> str:
    match key:
        case "Image":
            container.image = value
        case "Exec":
            return value
        case "Environment":
            _variables(container, value)
        case "PublishPort":
            container.publish(value)
        case "Volume" | "Mount":
            container.mount(value)
        case "AddDevice":
            container.device(f"AddDevice={value}")
        case "ShmSize":
            container.shared_memory(f"ShmSize={value}")
        case "Entrypoint":
            container.entrypoint = value
        case "PodmanArgs":
            _arguments(container, value)
        case _:
            code, why = _LEFT.get(key, ("not_carried", "Outrider decides what a container is given"))
            container.change(code, f"{key}=***" if code == "secret" else f"{key}={value}"[:200], None, why)
    return exec_line


def _variables(container: Container, value: str) -> None:
    for command in shell.commands(f"x {value}"):
        for word in command.words[1:]:
            name, _, text = word.partition("=")
            container.set(name, text)


def _arguments(container: Container, value: str) -> None:
    """The arguments of `podman run`, without an image of their own."""
    for command in shell.commands(value):
        made = containers.run(command.words)
        container.changes += [c for c in made.changes if c not in container.changes]
        container.mounts.update(made.mounts)
        container.env.update(made.env)
        container.entrypoint = made.entrypoint or container.entrypoint

"""The bundle of `outrider probe --report`: what an owner attaches to a bug. One JSON document, redacted as a whole.

One file that a person can read before it is sent; an archive would have to be unpacked first.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hosts.reading import children, read_text
from orchestrator.doctor.collect import Question
from orchestrator.doctor.findings import Report
from orchestrator.doctor.machine import Machine
from orchestrator.doctor.redact import Redactor
from orchestrator.doctor.sources.kernel_log import lines as kernel_lines
from orchestrator.doctor.sources.look import Look, Unseen

SCHEMA = 1
_LONGEST_SPEC = 128 * 1024
_PACKAGES = ("nvidia-ml-py", "amdsmi", "podman", "aiohttp", "httptools", "uvicorn", "pydantic")
_PROGRAMS = {"podman": "--version", "crun": "--version", "runc": "--version", "conmon": "--version",
             "netavark": "--version", "nvidia-ctk": "--version", "systemctl": "--version"}  # fmt: skip
_PLAN_SECONDS = 3.0


def gather(
    question: Question,
    machine: Machine,
    report: Report,
    plans: Callable[[], Iterator[Any]],
    redact: Redactor | None = None,
) -> dict[str, Any]:
    """Everything, redacted. `plans` yields a summary for each model; no more are taken after three seconds. With
    another document's redactor both call a thing by the same pseudonym."""
    look = question.look
    document = {
        "bundle": SCHEMA,
        "outrider": version("outrider"),
        "python": platform.python_version(),
        "facts": _without_host(machine),
        "doctor": report.to_dict(),
        "machine": _machine(machine),
        "versions": dict(_versions(look)),
        "podman_info": _podman_info(look),
        "cdi": dict(_specifications(look, machine)),
        "kernel_log": _kernel_log(look),
        "plans": _in_time(plans()),
    }
    redacted: dict[str, Any] = (redact or redactor(look, machine)).document(document)
    return redacted


def redactor(look: Look, machine: Machine) -> Redactor:
    """Knows this machine's names: the host's, its users', and those of its proxies and mirrors."""
    hosts = {
        machine.facts.host,
        look.text("/proc/sys/kernel/hostname", 1024) or "",
        look.text("/etc/hostname", 1024) or "",
    }
    if look.real:
        hosts.add(platform.node())
    for proxy in machine.proxies:
        hosts.add(proxy.host or "")
        if proxy.name == "no_proxy":
            hosts.update(word.strip().lstrip("*.") for word in proxy.value.split(","))
    hosts.update(registry.partition(":")[0] for registry in machine.wanted.registries)
    users = {look.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")} | {machine.who.operator or ""}
    homes = {Path(line.split(":")[5]).name for line in _people(look)}
    users |= {line.partition(":")[0] for line in _people(look)} | homes
    return Redactor(hosts=hosts, users=users)


def write(document: Mapping[str, Any], path: Path) -> int:
    """The bundle as a file of 0600, whole or not at all; its bytes. Raises OSError."""
    text = json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n"
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    return len(text.encode(errors="replace"))


def _people(look: Look) -> list[str]:
    """Lines of the user database that are people."""
    lines = (look.text("/etc/passwd", 4 * 1024 * 1024) or "").splitlines()
    fields = ((line, line.split(":")) for line in lines)
    return [line for line, f in fields if len(f) >= 7 and f[2].isdigit() and 1000 <= int(f[2]) < 60000]


def _without_host(machine: Machine) -> dict[str, Any]:
    facts = machine.facts.to_dict()
    del facts["host"]
    return facts


def _machine(machine: Machine) -> dict[str, Any]:
    """What the rules saw, but for who is in which group."""
    data = {f.name: getattr(machine, f.name) for f in dataclasses.fields(machine)}
    del data["facts"], data["accounts"], data["who"]
    plain = {name: _plain(value) for name, value in data.items()}
    groups = {group.name: group.gid for group in machine.accounts.groups.values() if group.gid < 1000}
    return {**plain, "root": machine.who.root, "groups": groups}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _versions(look: Look) -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield f"python:{name}", version(name)
        except PackageNotFoundError:
            continue
    for name, option in _PROGRAMS.items():
        try:
            said = look.ask(name, option)
        except Unseen:
            continue
        yield name, (said.out or said.err).strip().partition("\n")[0][:200]


def _podman_info(look: Look) -> Any:
    try:
        data = json.loads(look.said("podman", "info", "--format", "json", seconds=5.0))
    except (Unseen, ValueError, RecursionError) as error:
        return {"error": str(error)}
    if isinstance(data, dict) and isinstance(data.get("host"), dict):
        for key in ("hostname", "idMappings"):
            data["host"].pop(key, None)
    return data


def _specifications(look: Look, machine: Machine) -> Iterator[tuple[str, str]]:
    for folder in sorted({file.folder for file in machine.cdi.files}):
        for path in children(look.at(folder)):
            if path.suffix in {".json", ".yaml", ".yml"}:
                yield f"{folder}/{path.name}", read_text(path, _LONGEST_SPEC) or "(empty or unreadable)"


def _kernel_log(look: Look) -> list[str]:
    try:
        return kernel_lines(look)
    except Unseen as error:
        return [f"({error})"]


def _in_time(plans: Iterator[Any]) -> list[Any]:
    end = time.monotonic() + _PLAN_SECONDS
    found = []
    for plan in plans:
        found.append(plan)
        if time.monotonic() > end:
            found.append("(no more: three seconds are over)")
            break
    return found

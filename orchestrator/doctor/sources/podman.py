"""Podman as it describes itself, its socket, and NVIDIA's toolkit beside it."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from hosts.reading import children, number, words
from orchestrator.doctor.machine import Podman, Toolkit
from orchestrator.doctor.sources.look import Look, Unseen

_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?(?:[-~+.\w]*)")
_HOOK_FOLDERS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d")
_INFO_SECONDS = 5.0
_PING_SECONDS = 2.0


def podman(look: Look, sockets: Sequence[str] = ()) -> Podman:
    """Never raises for a Podman that fails: that is a finding. `sockets` are where its API may be listening."""
    if look.program("podman") is None:
        return Podman()
    path, state = _socket(look, sockets)
    try:
        said = look.ask("podman", "--version")
        version = _VERSION.search(said.out)
        info = look.ask("podman", "info", "--format", "json", seconds=_INFO_SECONDS)
        if info.code != 0 and path is not None and state == "answers":
            # A daemon in systemd's sandbox has not the rights that Podman wants for looking by itself; its
            # service has them, and is what starts the engines.
            info = look.ask("podman", "--url", f"unix://{path}", "info", "--format", "json", seconds=_INFO_SECONDS)
    except Unseen as error:
        return Podman(installed=True, complaint=str(error), socket=state, socket_path=path)
    plain = version[0] if version else None
    if info.code != 0:
        return Podman(True, plain, info.complaint, socket=state, socket_path=path)
    try:
        data = json.loads(info.out)
    except (ValueError, RecursionError):
        return Podman(True, plain, "`podman info` does not print JSON", socket=state, socket_path=path)
    return _described(look, plain, data if isinstance(data, Mapping) else {}, path, state)


def _described(look: Look, version: str | None, data: Mapping[str, Any], path: str | None, state: str | None) -> Podman:
    host, store = _table(data, "host"), _table(data, "store")
    security = _table(host, "security")
    profile = words(security.get("seccompProfilePath"))
    controllers = host.get("cgroupControllers")
    cgroups = words(host.get("cgroupVersion"))
    return Podman(
        installed=True,
        version=words(_table(data, "version").get("Version")) or version,
        rootless=_switch(security.get("rootless")),
        runtime=words(_table(host, "ociRuntime").get("name")),
        cgroup_manager=words(host.get("cgroupManager")),
        cgroup_version=number(cgroups.lstrip("v")) if cgroups else None,
        cgroup_controllers=tuple(str(c) for c in controllers) if isinstance(controllers, list) else None,
        seccomp=_switch(security.get("seccompEnabled")),
        seccomp_profile=profile,
        seccomp_profile_exists=look.at(profile).exists() if profile and profile.startswith("/") else None,
        selinux=_switch(security.get("selinuxEnabled")),
        driver=words(store.get("graphDriverName")),
        root=words(store.get("graphRoot")),
        network=words(host.get("networkBackend")),
        socket=state,
        socket_path=path,
    )


def toolkit(look: Look) -> Toolkit:
    """NVIDIA's container toolkit: its program, its refresh unit, and what is left of its old hook."""
    hook = next(
        (f"{folder}/{p.name}" for folder in _HOOK_FOLDERS for p in children(look.at(folder)) if _is_hook(p.name)), None
    )
    refresh = any(
        look.at(f"{folder}/nvidia-cdi-refresh.service").exists()
        for folder in ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
    )
    path = look.program("nvidia-ctk")
    if path is None:
        return Toolkit(refresh=refresh, hook=hook)
    try:
        match = _VERSION.search(look.said("nvidia-ctk", "--version"))
    except Unseen:
        match = None
    return Toolkit(path, match[0] if match else None, refresh, hook)


def _is_hook(name: str) -> bool:
    return name.endswith(".json") and "nvidia" in name


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def _switch(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _socket(look: Look, paths: Sequence[str]) -> tuple[str | None, str | None]:
    """The first socket that is there, and whether Podman answers on it."""
    for path in paths:
        place = look.at(path)
        if place.is_socket():
            return path, ping(str(place))
    return None, None


def ping(path: str) -> str:
    """`answers`, `refuses` (nobody listens, or we may not) or `silent`."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PING_SECONDS)
            connection.connect(path)
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: podman\r\n\r\n")
            return "answers" if b" 200 " in connection.recv(256) else "silent"
    except TimeoutError:
        return "silent"
    except OSError:
        return "refuses"

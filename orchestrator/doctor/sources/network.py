"""Proxies that Podman's service would use for pulls, and variables that change how engines run."""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from orchestrator.doctor.machine import Proxy, Setting, Units
from orchestrator.doctor.sources import units as unit_files
from orchestrator.doctor.sources.look import Look

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
WATCHED = ("HSA_OVERRIDE_GFX_VERSION", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
SHELL = "this shell"
SERVICE = "podman.service"
_CONNECT_SECONDS = 1.5
_DEFAULT_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_ENGINE_ENV = re.compile(r"^\s*env\s*=\s*\[([^\]]*)\]", re.MULTILINE)


def proxies(look: Look, units: Units) -> tuple[Proxy, ...]:
    """What podman.service is told and what this shell has. Proxies are tried with one connection each."""
    found = [_proxy(place, name, value) for place, name, value in _told(look, units) if name.lower() in PROXIES]
    addresses = {(p.host, p.port) for p in found if p.host is not None and p.name != "no_proxy" and p.place != SHELL}
    reached = _reach({(host, port) for host, port in addresses if host is not None and port is not None})
    return tuple(_with(p, reached.get((p.host or "", p.port or 0))) for p in dict.fromkeys(found))


def environment(look: Look, units: Units) -> tuple[Setting, ...]:
    """Watched variables of this process, of the units, of /etc/environment and of containers.conf."""
    places = [*_told(look, units), *(("/etc/environment", n, v) for n, v in _file(look, "/etc/environment"))]
    return tuple(dict.fromkeys(Setting(place, name, value) for place, name, value in places if name in WATCHED))


def _told(look: Look, units: Units) -> Iterator[tuple[str, str, str]]:
    for unit in units.files.values():
        for place, name, value in unit_files.environment(look, unit):
            yield (SERVICE if unit.name == SERVICE and name.lower() in PROXIES else place), name, value
    if SERVICE in units.files:
        for name, value in _manager(look):
            yield SERVICE, name, value
        for file in ("/etc/containers/containers.conf",):
            match = _ENGINE_ENV.search(look.text(file) or "")
            for text in re.findall(r'["\']([^"\']*)["\']', match[1]) if match else ():
                for name, value in unit_files.assignments(f'"{text}"'):
                    yield file, name, value
    for name, value in look.environ.items():
        yield SHELL, name, value


def _manager(look: Look) -> Iterator[tuple[str, str]]:
    """`DefaultEnvironment=` of systemd itself, which every service gets."""
    for line in (look.text("/etc/systemd/system.conf") or "").splitlines():
        key, _, value = line.strip().partition("=")
        if key == "DefaultEnvironment":
            yield from unit_files.assignments(value)


def _file(look: Look, path: str) -> Iterator[tuple[str, str]]:
    for line in (look.text(path) or "").splitlines():
        if not line.lstrip().startswith("#"):
            yield from unit_files.assignments(line)


def _proxy(place: str, name: str, value: str) -> Proxy:
    name = name.lower()
    if name == "no_proxy":
        return Proxy(place, name, value)
    try:
        parts = urlsplit(value if "//" in value else f"http://{value}")
        host, port = parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return Proxy(place, name, "(no address)", why="it is no address")
    if host is None:
        return Proxy(place, name, "(no address)", why="it is no address" if value else "it is empty")
    return Proxy(place, name, f"{parts.scheme}://{host}:{port}", host, port)


def is_loopback(host: str) -> bool:
    """Whether a proxy is on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _with(proxy: Proxy, answer: tuple[bool | None, str | None] | None) -> Proxy:
    if answer is None:
        return proxy
    return Proxy(proxy.place, proxy.name, proxy.value, proxy.host, proxy.port, *answer)


def _reach(addresses: set[tuple[str, int]]) -> Mapping[tuple[str, int], tuple[bool | None, str | None]]:
    """Whether somebody listens there. A name that is still being looked up at the end is unknown, not absent."""
    found: dict[tuple[str, int], tuple[bool | None, str | None]] = {}

    def connect(address: tuple[str, int]) -> None:
        try:
            socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
            found[address] = (True, None)
        except TimeoutError:
            found[address] = (False, f"no answer within {_CONNECT_SECONDS:g} s")
        except (OSError, UnicodeError) as error:
            found[address] = (False, getattr(error, "strerror", None) or str(error))

    threads = [threading.Thread(target=connect, args=(a,), daemon=True) for a in sorted(addresses)[:8]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_CONNECT_SECONDS + 0.5)
    return dict(found)

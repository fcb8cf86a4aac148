"""The configuration: `outrider.toml`, `models.d/*.toml` and `catalog.d/*.toml`, as one frozen, typed value.

Files say what models, variants and policies *are*; what is to run (`desired`) is
never read from them. A missing file means defaults. Whatever is wrong is found in
one go and raised as one `ConfigProblems`, each problem with its file, key, what
was found and a hint, so that nobody repairs a file one error at a time.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from orchestrator.catalogue import Catalogue
from orchestrator.catalogue.reading import Layer, files_in, laid_over
from orchestrator.catalogue.reading import read as read_catalogue
from orchestrator.config_diff import diff
from orchestrator.config_files import clashes, read_toml, validated
from orchestrator.config_problems import ConfigProblems, Problem
from orchestrator.demand.groups import Group
from orchestrator.models import Frozen, ModelEntry
from orchestrator.paths import Paths

__all__ = [
    "ApiSettings",
    "Config",
    "ConfigProblems",
    "EngineDefaults",
    "GatewaySettings",
    "HostSettings",
    "ModelsFile",
    "PodmanSettings",
    "Problem",
    "SettingsFile",
    "StoreSettings",
    "TimingSettings",
    "client_url",
    "diff",
    "exposure",
    "load",
    "model_files",
    "split_listen",
]

_HOST_NAME = re.compile(r"^(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9-]{1,63})*$")
_LISTEN_HINT = 'write host:port, such as "127.0.0.1:8080" or "[::1]:8080"'


def split_listen(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as (host, port); raises ValueError saying what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError("has no port" if not colon else "has no host")
    if not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= 65535:
        raise ValueError(f"port {port!r} is not a number from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        ipaddress.IPv6Address(host)  # raises ValueError
    elif ":" in host:
        raise ValueError("an IPv6 address needs brackets")
    elif re.fullmatch(r"[0-9.]+", host):
        ipaddress.IPv4Address(host)
    elif not _HOST_NAME.match(host):
        raise ValueError(f"{host!r} is no host name")
    return host, int(port)


def client_url(listen: str) -> str:
    """How a client on this host reaches a listener: a wildcard address is reached over loopback."""
    host, port = split_listen(listen)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen(text: str) -> str:
    try:
        split_listen(text)
    except ValueError as error:
        raise PydanticCustomError(
            "listen_address", "{why}", {"why": f"is no address to listen on: {error}", "hint": _LISTEN_HINT}
        ) from error
    return text


def _is_loopback(listen: str) -> bool:
    host, _ = split_listen(listen)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def exposure(config: Config) -> str | None:
    """What it means that the gateway can be reached from other machines; None when it cannot."""
    listen = config.gateway.listen
    if _is_loopback(listen):
        return None
    return (
        f"[gateway] listen is {listen}, which other machines can reach, and the gateway asks for no key: "
        "whoever reaches it can use every model; a firewall or a proxy in front has to say who may"
    )


def _loopback(text: str) -> str:
    if not _is_loopback(text):
        raise PydanticCustomError(
            "listen_loopback",
            "is not a loopback address, and the control API speaks no TLS",
            {"hint": "use 127.0.0.1:PORT, and reach it from elsewhere through an SSH tunnel"},
        )
    return text


Listen = Annotated[str, AfterValidator(_listen)]
Registry = Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?$")]
"""A registry's host, with a port where it has one of its own."""
Mirror = Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._/-]*[a-z0-9])?$")]
LoopbackListen = Annotated[str, AfterValidator(_listen), AfterValidator(_loopback)]


class HostSettings(Frozen):
    """`[host]`: this machine."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,62}$")] | None = None
    """What the host is called in views, labels and headers; None takes the system's host name."""
    engine_memory: int | None = Field(default=None, gt=0)
    """Bytes of system memory that all engines together may take; None leaves it to what is free."""


class GatewaySettings(Frozen):
    """`[gateway]`: where clients connect, and how much may wait. Read when the gateway starts."""

    listen: Listen = "127.0.0.1:8080"
    ops_listen: Listen = "127.0.0.1:8082"
    """For load balancers and scrapers: /metrics, /healthz, /ready/{model}."""
    max_waiting: int = Field(default=256, ge=0, le=100_000)
    """Requests a model that may wait while its engine loads; more get 503 with Retry-After."""
    hold_s: float = Field(default=600.0, ge=0)
    """Seconds the longest of them waits."""
    max_body_bytes: int = Field(default=32 * 2**20, ge=1024)


class ApiSettings(Frozen):
    """`[api]`: the control API over TCP. The unix socket is always there."""

    listen: LoopbackListen = "127.0.0.1:8081"
    enabled: bool = True


class PodmanSettings(Frozen):
    """`[podman]`: whose service runs the containers."""

    socket: Annotated[str, Field(pattern=r"^/")] | None = None
    """The path of Podman's API socket; None looks at the usual places and starts a service if there is none."""


class StoreSettings(Frozen):
    """`[store]`: where weights may lie. The store in the state folder always counts."""

    folders: tuple[Annotated[str, Field(pattern=r"^/.*[^/]$")], ...] = ()
    """Folders of the owner's own, absolute, that engines may have mounted, read-only."""
    quota_bytes: int | None = Field(default=None, gt=0)
    """Bytes that the store's weights together may have; None leaves it to the disk."""
    low_water: float = Field(default=0.05, ge=0, lt=1)
    """The part of a disk below which nothing more is pulled onto it. Engines go on."""


class ImageSettings(Frozen):
    """`[images]`: where engines' images come from."""

    pull: Literal["missing", "never"] = "missing"
    """What a start does about an image that is not here: pull it, or say so."""
    mirrors: Mapping[Registry, Mirror] = Field(default_factory=dict)
    """Registry to the place that has its images too, such as `"docker.io" = "mirror.lan:5000/hub"`."""
    auth_file: Annotated[str, Field(pattern=r"^/")] | None = None
    """Logins of registries in the form of `podman login --authfile`; None looks at the usual places."""


class HubSettings(Frozen):
    """`[hub]`: where weights come from."""

    endpoint: Annotated[str, Field(pattern=r"^https?://[^/]+")] | None = None
    """The hub's address; None takes HF_ENDPOINT from the environment, else the library's own."""
    token_file: Annotated[str, Field(pattern=r"^/")] | None = None
    """A file that holds the token and nothing else; None takes HF_TOKEN, else the file that `hf auth login` writes."""
    cache: Annotated[str, Field(pattern=r"^/")] | None = None
    """A Hugging Face cache whose files are used instead of being fetched again; None takes the usual place."""


class GuardSettings(Frozen):
    """`[guard]`: against a host that freezes because its memory, which GPU and system share, is full."""

    enabled: bool = True
    reserve_bytes: int | None = Field(default=None, gt=0)
    """Bytes that must stay available; None takes half of what the planner leaves alone."""
    pressure: float = Field(default=20.0, gt=0, le=100)
    """Percent of the last ten seconds in which all tasks waited for memory (`full avg10`): above it, engines go."""


class DemandSettings(Frozen):
    """`[demand]`: models that are loaded by the first request for them."""

    by_default: bool = False
    """Whether models of `models.d` that nobody has started or stopped yet are there on demand."""
    ttl_s: float | None = Field(default=None, gt=0)
    """Seconds without a request after which such a model is unloaded; None waits until another needs its room."""
    residence_s: float = Field(default=30.0, ge=0)
    """Seconds that a model stays loaded at least before it makes way for another."""
    turn_s: float = Field(default=30.0, ge=0)
    """Seconds for which a request waits for a model in use; then that one admits no more and makes way."""


class LogSettings(Frozen):
    """`[logs]`: how large logs may become."""

    engine_bytes: int = Field(default=16 * 2**20, ge=65536)
    """Of one engine's container."""
    daemon_bytes: int = Field(default=16 * 2**20, ge=65536)
    """Of each log file in the state folder, where there is no journal of systemd's; one older file is kept beside it.
    The gateway reads this when it starts."""


class TimingSettings(Frozen):
    """`[timing]`: periods and policies times `scale`; deadlines of other people's work stay."""

    scale: float = Field(default=1.0, gt=0, le=10)


class EngineDefaults(Frozen):
    """`[engine]`: what a model gets that does not say otherwise; None leaves it to the planner."""

    context: int | None = Field(default=None, gt=0)
    parallel: int | None = Field(default=None, gt=0, le=256)
    threads: int | None = Field(default=None, gt=0)
    image: str | None = Field(default=None, min_length=1)


class _Tables(Frozen):
    """The tables that the file and the whole configuration have alike."""

    host: HostSettings = HostSettings()
    gateway: GatewaySettings = GatewaySettings()
    api: ApiSettings = ApiSettings()
    podman: PodmanSettings = PodmanSettings()
    store: StoreSettings = StoreSettings()
    images: ImageSettings = ImageSettings()
    hub: HubSettings = HubSettings()
    guard: GuardSettings = GuardSettings()
    demand: DemandSettings = DemandSettings()
    logs: LogSettings = LogSettings()
    timing: TimingSettings = TimingSettings()
    group: tuple[Group, ...] = ()
    """Models that may not all be loaded at the same time."""


class Config(_Tables):
    """All of it. `origins` maps a model's name to the file that defines it."""

    defaults: EngineDefaults = EngineDefaults()
    models: tuple[ModelEntry, ...] = ()
    origins: Mapping[str, str] = Field(default_factory=dict)
    catalogue: Layer = Layer()
    """What the files of `catalog.d` add to the catalogue, replace and drop."""

    def laid_over(self, shipped: Catalogue) -> Catalogue:
        """The catalogue in force: what ships, under `catalog.d`, under `models.d`."""
        return laid_over(shipped, self.catalogue).overlay(self.models, self.origins)

    def model(self, name: str) -> ModelEntry | None:
        """The model of this public name or alias."""
        return next((m for m in self.models if name == m.name or name in m.aliases), None)


class SettingsFile(_Tables):
    """What `outrider.toml` may hold."""

    engine: EngineDefaults = EngineDefaults()


class ModelsFile(Frozen):
    """What a file of `models.d` may hold: one or more `[[model]]` tables."""

    model: tuple[ModelEntry, ...] = ()


def load(paths: Paths) -> Config:
    """Read everything. Raises `ConfigProblems` with every problem found; touches nothing."""
    problems: list[Problem] = []
    settings = _settings(paths.config_file, problems)
    models: list[ModelEntry] = []
    taken: dict[str, tuple[str, str]] = {}
    origins: dict[str, str] = {}
    for file in model_files(paths, problems):
        data = read_toml(file, problems)
        if data is None:
            continue
        found = validated(ModelsFile, data, file, problems)
        problems.extend(clashes(file, data, taken))
        if found is not None:
            models.extend(found.model)
            origins.update((entry.name, str(file)) for entry in found.model)
    layer = read_catalogue(files_in(paths.catalog_d, problems), problems, taken)
    if problems:
        raise ConfigProblems(problems)
    return Config(
        **{table: getattr(settings, table) for table in _Tables.model_fields},
        defaults=settings.engine,
        models=tuple(models),
        origins=origins,
        catalogue=layer,
    )


def model_files(paths: Paths, problems: list[Problem] | None = None) -> tuple[Path, ...]:
    """The files of `models.d` that count, sorted by name: `*.toml`, no dot files, no editors' backups."""
    try:
        names = sorted(os.listdir(paths.models_d))
    except FileNotFoundError:
        return ()
    except OSError as error:
        found = Problem(str(paths.models_d), None, f"cannot be read: {error.strerror}", "it must be a readable folder")
        if problems is None:
            raise ConfigProblems([found]) from error
        problems.append(found)
        return ()
    return tuple(paths.models_d / n for n in names if n.endswith(".toml") and not n.startswith((".", "#", "~")))


def _settings(file: Path, problems: list[Problem]) -> SettingsFile:
    if not file.exists() and not file.is_symlink():
        return SettingsFile()
    data = read_toml(file, problems)
    if data is None:
        return SettingsFile()
    settings = validated(SettingsFile, data, file, problems)
    if settings is None:
        return SettingsFile()
    problems.extend(_shared_addresses(file, settings))
    problems.extend(_groups_twice(file, settings))
    return settings


def _groups_twice(file: Path, settings: SettingsFile) -> Iterable[Problem]:
    """A group is known by its name: in the journal, in `ps`, in a reload."""
    names = [group.name for group in settings.group]
    for name in sorted({n for n in names if names.count(n) > 1}):
        hint = "one name means one group: rename one of them, or put their members together"
        yield Problem(str(file), f"group[{name}].name", f"{name!r} is the name of {names.count(name)} groups", hint)


def _shared_addresses(file: Path, settings: SettingsFile) -> Iterable[Problem]:
    """Two listeners cannot have one address."""
    listeners = {"gateway.listen": settings.gateway.listen, "gateway.ops_listen": settings.gateway.ops_listen}
    if settings.api.enabled:
        listeners["api.listen"] = settings.api.listen
    seen: dict[tuple[str, int], str] = {}
    for key, address in listeners.items():
        where = split_listen(address)
        if where in seen:
            hint = "each listener needs a port of its own"
            yield Problem(str(file), key, f"{address!r} is also {seen[where]}", hint)
        seen.setdefault(where, key)

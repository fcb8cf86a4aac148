"""What a container is to be: plain frozen values, checked by `containers.validator` before use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

ENGINE_UID = 65523
"""Who engines run as: nobody on the host. Without user namespaces a uid in the container is that uid on the
host, and whoever has it may read the engine's environment, its key included, and reach its socket through
`/proc/PID/root`; 1000 is the first person with an account. 65520-65533 are given to nobody (systemd's table
of uids, Debian's policy), and fit into the 65536 sub-uids of a user's own Podman."""


class Network(StrEnum):
    """How an engine is reached."""

    NONE = "none"
    """No network at all; the engine listens on a unix socket in a mounted folder."""
    BRIDGE = "bridge"
    """A bridge with one port published on 127.0.0.1, for runtimes without a socket."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount. `source` is a path on the host, `target` a path in the container."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class CacheVolume:
    """A named volume, allowed for compile caches only."""

    name: str
    target: str


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Everything Podman needs to create one engine's container.

    `image` is an image id or a reference with a digest. `devices` are CDI names
    (`nvidia.com/gpu=0`) or device nodes. `groups` are numeric host gids.
    `memory_limit`, `shm_size` and `log_bytes` are bytes, `stop_timeout` is seconds.
    """

    name: str
    image: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    caches: tuple[CacheVolume, ...] = ()
    devices: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    network: Network = Network.NONE
    host_port: int | None = None
    container_port: int | None = None
    user: str = f"{ENGINE_UID}:{ENGINE_UID}"
    umask: str = "0000"
    memory_limit: int | None = None
    shm_size: int | None = None
    profile: str = "strict"
    stop_timeout: float = 10.0
    log_bytes: int = 16 << 20
    """What the log may have; when it is full Podman begins it anew."""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """What Podman and `/proc` say about one container.

    `state` is Podman's word (created, running, stopping, exited, removing, ...).
    `pid` is the workload's pid on the host, or None when there is none.
    `alive` is whether that pid exists in `/proc` with a live process behind it:
    Podman goes on saying `running` after its conmon died, `/proc` does not.
    `started_at` is Unix time in seconds.
    """

    id: str
    name: str
    state: str
    labels: Mapping[str, str]
    image_id: str
    pid: int | None
    conmon_pid: int | None
    conmon_alive: bool
    alive: bool
    exit_code: int | None
    started_at: float | None
    oom_killed: bool = False
    """Podman's word that the kernel killed it for want of memory. False says nothing: `containers.memory_kills`."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of an engine's log; `stream` is stdout or stderr."""

    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class ImageUser:
    """Something that holds an image: `image` is its id, None when Podman does not say which."""

    name: str
    image: str | None
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Storage:
    """Where Podman keeps images and containers, and where what it pulls lies first: paths on its machine."""

    graph_root: str
    temporary: str


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """A local image: its id (`sha256:...`), its names, its digest and size in bytes.

    `digests` are all that it is known by, `name@sha256:...`; `architecture` is an image's word (`amd64`),
    None where the listing does not say it.
    """

    id: str
    names: tuple[str, ...]
    digest: str | None
    size: int
    labels: Mapping[str, str]
    digests: tuple[str, ...] = ()
    architecture: str | None = None

"""The one check that every container spec passes before Podman, which is root, sees it.

It says what a container may be, not what it may not be: whatever is not allowed by name
is refused, whoever wrote the spec. `SpecRefused` names the exact reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from containers import labels, security
from containers.errors import SpecRefused
from containers.ports import PORTS
from containers.spec import ContainerSpec, Mount, Network

MODEL_TARGET = "/models"
SOCKET_TARGET = "/run/engine"
DEVICES = (
    r"nvidia\.com/gpu=([0-9]{1,2}|all|GPU-[0-9a-f-]{36}|MIG-[0-9a-f-]{36})",
    r"amd\.com/gpu=([0-9]{1,2}|all)",
    r"/dev/kfd",
    r"/dev/dri/renderD[0-9]{3}",
)
"""Devices an engine may get, as patterns of the whole name. `/dev/dri` itself would bring the displays along."""

MOST_DEVICES = 17
"""16 GPUs, and /dev/kfd."""

LEAST_LOG = 65536
"""Bytes. Below it a log holds too little of what went wrong; 0 or less would be a log without end."""

_DIGEST = r"sha256:[0-9a-f]{64}"
_IMAGE = re.compile(rf"(?:[a-z0-9][a-zA-Z0-9._:/-]{{0,254}}@)?{_DIGEST}")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_LABEL = re.compile(r"[^\x00-\x1f\x7f]*")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_USER = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")
_UMASK = re.compile(r"0[0-7]{3}")
_VOLUME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_NUMBER = re.compile(r"-[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_LONGEST_LABEL = 256
_LONGEST_PLAN = 256 * 1024
_LONGEST_ARGUMENT = 64 * 1024
_LARGEST_ID = 2**31

_HOST_FOLDERS = ("/boot", "/dev", "/etc", "/proc", "/root/.ssh", "/sys", "/usr")
"""Never mounted, and nothing below them, whatever the configuration calls a model folder."""
_TOO_WIDE = ("/", "/bin", "/home", "/lib", "/lib64", "/mnt", "/opt", "/root", "/run", "/sbin", "/srv", "/tmp", "/var")  # noqa: S108
"""Never mounted themselves: something below them may be."""
_CONTAINER_FOLDERS = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")
"""No cache volume goes over these or below."""

_ENV_PREFIXES = ("CONTAINER", "DOCKER_", "GCONV_", "GLIBC_", "LD_", "MALLOC_", "NVIDIA_", "PODMAN_", "PYTHON")
_ENV_NAMES = frozenset(
    {"BASH_ENV", "ENV", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "IFS", "LOCPATH", "NOTIFY_SOCKET", "PATH", "TMPDIR"}
)
"""What changes which code runs, what Podman and its hooks read (NVIDIA_VISIBLE_DEVICES hands out
devices on its own), and hub tokens, which no engine has. A profile may allow a name."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What one engine's container may be at most.

    `socket_folder` is the engine's own; only it may be writable. `allowed_args` are the flag
    names that the runtime's adapter emits; None leaves arguments unchecked and is for images
    that have no adapter. `devices` are patterns of whole names.
    """

    model_folders: tuple[str, ...]
    socket_folder: str | None = None
    allowed_args: frozenset[str] | None = None
    cache_prefix: str = "outrider-"
    name_prefix: str = "outrider-"
    devices: tuple[str, ...] = DEVICES
    profiles: Mapping[str, security.Profile] = field(default_factory=lambda: security.PROFILES)


def validate(spec: ContainerSpec, rules: Rules) -> None:
    """Raise `SpecRefused` unless the rules allow the spec."""
    profile = rules.profiles.get(spec.profile)
    if profile is None:
        raise SpecRefused(f"no security profile is called {spec.profile!r}")
    _check_names(spec, rules)
    _check_user(spec, profile)
    _check_arguments(spec, rules.allowed_args)
    _check_environment(spec.env, profile)
    _check_mounts(spec, rules)
    _check_caches(spec, rules)
    _check_targets([*(m.target for m in spec.mounts), *(c.target for c in spec.caches)], profile)
    _check_devices(spec, rules)
    _check_network(spec)
    _check_limits(spec)


def _refuse(reason: str, value: object = None) -> SpecRefused:
    return SpecRefused(reason if value is None else f"{reason}: {str(value)[:200]!r}")


def _check_names(spec: ContainerSpec, rules: Rules) -> None:
    if _NAME.fullmatch(spec.name) is None or not spec.name.startswith(rules.name_prefix):
        raise _refuse(f"the name must begin with {rules.name_prefix!r} and be of letters, digits, `_.-`", spec.name)
    if _IMAGE.fullmatch(spec.image) is None:
        raise _refuse("the image must be an id or have a digest, since a tag can change its meaning", spec.image)
    if labels.OWNER not in spec.labels:
        raise _refuse(f"the label {labels.OWNER} is missing, without which nobody would find the container again")
    for key, value in spec.labels.items():
        if key not in labels.ALLOWED:
            raise _refuse("a label that is none of Outrider's", key)
        if len(value) > (_LONGEST_PLAN if key == labels.PLAN_JSON else _LONGEST_LABEL):
            raise _refuse("the value of a label is too long", key)
        if _LABEL.fullmatch(value) is None:
            raise _refuse("the value of a label has control characters", key)


def _check_user(spec: ContainerSpec, profile: security.Profile) -> None:
    match = _USER.fullmatch(spec.user)
    if match is None:
        raise _refuse("the user must be numeric, uid:gid", spec.user)
    uid, gid = int(match[1]), int(match[2])
    if max(uid, gid) >= _LARGEST_ID:
        raise _refuse("no such uid or gid", spec.user)
    if not profile.root_user and (uid == 0 or gid == 0):
        raise _refuse(f"the profile {profile.name} does not allow root", spec.user)
    if _UMASK.fullmatch(spec.umask) is None:
        raise _refuse("the umask must be four octal digits", spec.umask)
    for group in spec.groups:
        if isinstance(group, bool) or not 0 < group < _LARGEST_ID:
            raise _refuse("not a group to be given", group)


def _check_arguments(spec: ContainerSpec, allowed: frozenset[str] | None) -> None:
    for argument in spec.argv:
        if not isinstance(argument, str) or "\0" in argument or len(argument) > _LONGEST_ARGUMENT:
            raise _refuse("not an argument", argument)
        if allowed is None or not argument.startswith("-") or _NUMBER.fullmatch(argument):
            continue
        if argument.partition("=")[0] not in allowed:
            raise _refuse("an argument that the runtime's adapter does not emit", argument)


def _check_environment(env: Mapping[str, str], profile: security.Profile) -> None:
    for name, value in env.items():
        if _ENV.fullmatch(name) is None:
            raise _refuse("not a name of an environment variable", name)
        if not isinstance(value, str) or "\0" in value or len(value) > _LONGEST_ARGUMENT:
            raise _refuse("not a value of an environment variable", name)
        if name in profile.env_allowed:
            continue
        if name in _ENV_NAMES or name.startswith(_ENV_PREFIXES):
            raise _refuse(f"the profile {profile.name} does not allow the environment variable", name)


def _check_mounts(spec: ContainerSpec, rules: Rules) -> None:
    roots = [os.path.realpath(folder) for folder in rules.model_folders]
    own = None if rules.socket_folder is None else os.path.realpath(rules.socket_folder)
    for mount in spec.mounts:
        _check_source(mount)
        source = _real(mount.source)
        if _below(mount.target, SOCKET_TARGET):
            _check_socket_folder(mount, source, own, spec)
        elif _below(mount.target, MODEL_TARGET):
            if not mount.read_only:
                raise _refuse("a model folder must be mounted read-only", mount.source)
            if source in _TOO_WIDE or any(_below(source, folder) for folder in _HOST_FOLDERS):
                raise _refuse("a folder of the system is no model folder", mount.source)
            if not any(_below(source, root) for root in roots):
                refusal = _refuse("a mount from outside the model folders", f"{mount.source} -> {source}")
                refusal.hint = (
                    "`outrider model add` copies a file into the store; or name its folder in `[store] folders`"
                )
                raise refusal
        else:
            raise _refuse(f"a mount goes to {MODEL_TARGET} or {SOCKET_TARGET} and nowhere else", mount.target)


def _check_source(mount: Mount) -> None:
    for path in (mount.source, mount.target):
        if not _plain(path):
            raise _refuse("a path must be absolute and plain, without `..`, `//` or control characters", path)


def _check_socket_folder(mount: Mount, source: str, own: str | None, spec: ContainerSpec) -> None:
    if mount.target != SOCKET_TARGET:
        raise _refuse(f"only the socket folder itself is mounted, at {SOCKET_TARGET}", mount.target)
    if own is None or source != own or os.path.islink(mount.source):
        raise _refuse("a socket folder that is not the engine's own", mount.source)
    if spec.labels.get(labels.ENGINE) != Path(own).name:
        raise _refuse(f"the socket folder is not the one that the label {labels.ENGINE} names", mount.source)


def _check_caches(spec: ContainerSpec, rules: Rules) -> None:
    for cache in spec.caches:
        if _VOLUME.fullmatch(cache.name) is None or not cache.name.startswith(rules.cache_prefix):
            raise _refuse(f"a named volume must be a compile cache of ours, {rules.cache_prefix}...", cache.name)
        if not _plain(cache.target):
            raise _refuse("a path must be absolute and plain, without `..`, `//` or control characters", cache.target)
        if any(_below(cache.target, folder) for folder in (*_CONTAINER_FOLDERS, MODEL_TARGET)):
            raise _refuse("a cache must not cover a folder of the system or of models", cache.target)


def _check_targets(targets: list[str], profile: security.Profile) -> None:
    """Nothing over the root or a tmpfs, and no mount in another: its mount point would be made in a host's folder."""
    for number, target in enumerate(targets):
        if target == "/" or any(_below(t.path, target) for t in profile.tmpfs):
            raise _refuse("a mount would cover a folder that the container needs", target)
        if any(_below(target, other) or _below(other, target) for other in targets[:number]):
            raise _refuse("a mount would lie over or in another", target)


def _check_devices(spec: ContainerSpec, rules: Rules) -> None:
    """Several are for a model that is shared between GPUs: each once, by name or all."""
    for device in spec.devices:
        if not any(re.fullmatch(pattern, device) for pattern in rules.devices):
            raise _refuse("a device that no rule allows", device)
    if len(spec.devices) > MOST_DEVICES:
        raise _refuse(f"more than {MOST_DEVICES} devices", len(spec.devices))
    if len(set(spec.devices)) < len(spec.devices):
        raise _refuse("a device twice", spec.devices)
    if len(spec.devices) > 1 and any(device.endswith("=all") for device in spec.devices):
        raise _refuse("all devices, and one of them besides", spec.devices)


def _check_network(spec: ContainerSpec) -> None:
    match spec.network:
        case Network.NONE:
            if spec.host_port is not None or spec.container_port is not None:
                raise _refuse("without a network there is no port to publish")
        case Network.BRIDGE:
            if spec.host_port is None or spec.container_port is None:
                raise _refuse("with a network exactly one port is published")
            if spec.host_port not in PORTS:
                raise _refuse(f"the port on the host must be in {PORTS.start}-{PORTS.stop - 1}", spec.host_port)
            if not 1024 <= spec.container_port < 65536:
                raise _refuse("the port in the container must be in 1024-65535", spec.container_port)
        case _:
            raise _refuse("no such network", spec.network)


def _check_limits(spec: ContainerSpec) -> None:
    for name, value in (("memory_limit", spec.memory_limit), ("shm_size", spec.shm_size)):
        if value is not None and (isinstance(value, bool) or value <= 0):
            raise _refuse(f"{name} must be above zero", value)
    if isinstance(spec.log_bytes, bool) or spec.log_bytes < LEAST_LOG:
        raise _refuse(f"the log must be capped, at {LEAST_LOG} bytes or more", spec.log_bytes)
    if not 0 <= spec.stop_timeout <= 3600:
        raise _refuse("stop_timeout must be within an hour", spec.stop_timeout)


def _plain(path: str) -> bool:
    """Absolute, normal as written, and free of control characters."""
    return (
        path.startswith("/")
        and not path.startswith("//")
        and os.path.normpath(path) == path
        and _LABEL.fullmatch(path) is not None
    )


def _real(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError as error:  # a link that only its owner may read, as in /proc
        raise _refuse(f"a path that cannot be followed ({error.strerror})", path) from error


def _below(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or in it, by whole components."""
    return path == folder or path.startswith(folder + "/")

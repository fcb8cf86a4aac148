"""From a container spec to podman-py's keyword arguments, and from Podman's JSON to our values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from containers import proc, security
from containers.errors import SpecRefused
from containers.spec import ContainerSpec, ContainerState, ImageInfo, ImageUser, Network

_FRACTION = re.compile(r"\.(\d+)")
KEEP_GROUPS = "run.oci.keep_original_groups"
_ENDED = frozenset({"exited", "stopped"})


def create_keywords(
    spec: ContainerSpec,
    profiles: Mapping[str, security.Profile] = security.PROFILES,
    *,
    keep_groups: bool = False,
) -> dict[str, Any]:
    """The keyword arguments of podman-py's `containers.create` for a spec.

    `keep_groups` is for a Podman without root: groups are then those of who runs it, for a number of the host's
    means another group, or none, in the container. The command line's `--group-add keep-groups` is sugar of that
    program; this is what it sends (honoured by crun only).
    Raises `SpecRefused` for a security profile that does not exist. Everything else
    about the spec is `containers.validator`'s business.
    """
    profile = profiles.get(spec.profile)
    if profile is None:
        raise SpecRefused(f"no security profile is called {spec.profile!r}", evidence={"known": sorted(profiles)})
    words = security.keywords(profile)
    words["mounts"] += [
        {"type": "bind", "source": m.source, "target": m.target, "read_only": m.read_only} for m in spec.mounts
    ]
    words |= {
        "image": spec.image,
        "command": list(spec.argv),
        "name": spec.name,
        "environment": {**profile.env, **spec.env},
        "labels": dict(spec.labels),
        "volumes": {c.name: {"bind": c.target, "mode": "rw"} for c in spec.caches},
        "devices": list(spec.devices),
        "group_add": [] if keep_groups else [str(g) for g in spec.groups],
        "user": spec.user,
        "umask": spec.umask,
        "stop_timeout": math.ceil(spec.stop_timeout),
        "network_mode": spec.network.value,
        "ipc_mode": "private",  # containers.conf could make it the host's, or open it to other containers
        "pid_mode": "private",
        "uts_mode": "private",
        # What Podman would otherwise take from the host or the image on its own.
        "env_host": False,
        "use_config_proxy": False,
        "image_volume_mode": "ignore",
        "systemd": "false",
        "restart_policy": {"Name": "no"},  # the daemon restarts engines, with back-off; Podman has none
        # conmon begins the file anew when it is full. `max-size` among the options, which the command
        # line has, is silently ignored here, by Podman 4.3 and 5.4 alike
        "log_config": {"Type": "k8s-file", "Config": {"size": spec.log_bytes}},
    }
    if spec.network is Network.BRIDGE and spec.host_port is not None and spec.container_port is not None:
        words["ports"] = {f"{spec.container_port}/tcp": ("127.0.0.1", spec.host_port)}
    if keep_groups:
        words["annotations"] = {KEEP_GROUPS: "1"}
    if spec.memory_limit is not None:
        words["mem_limit"] = spec.memory_limit
    if spec.shm_size is not None:
        words["shm_size"] = spec.shm_size
    return words


def image_id(text: str) -> str:
    """An image's id with its `sha256:`, which Podman leaves away."""
    return text if text.startswith("sha256:") else f"sha256:{text}"


def image_info(data: Mapping[str, Any]) -> ImageInfo:
    """An image from Podman's inspect or list."""
    names = data.get("RepoTags") or data.get("Names") or ()
    return ImageInfo(
        id=image_id(data["Id"]),
        names=tuple(name for name in names if "<none>" not in name),
        digest=data.get("Digest") or None,
        size=int(data.get("Size") or 0),
        labels=dict(data.get("Labels") or {}),
        digests=tuple(data.get("RepoDigests") or ()),
        architecture=data.get("Architecture") or data.get("Arch") or None,
    )


def image_user(data: Mapping[str, Any]) -> ImageUser:
    """A container, or another program's, from Podman's list."""
    names = data.get("Names") or ()
    image = str(data.get("ImageID") or "")
    return ImageUser(
        name=str(names[0]) if names else str(data["Id"])[:12],
        image=image_id(image) if image else None,
        labels=dict(data.get("Labels") or {}),
    )


def unix_time(text: str | None) -> float | None:
    """A time of Podman's (RFC 3339, up to nanoseconds) as Unix seconds; None for Go's zero time."""
    if not text or text.startswith("0001-"):
        return None
    exact = _FRACTION.sub(lambda m: "." + m[1][:6].ljust(6, "0"), text, count=1)
    return datetime.fromisoformat(exact).timestamp()


def container_state(data: Mapping[str, Any], *, root: Path = proc.PROC) -> ContainerState:
    """A container from Podman's inspect, checked against `/proc`.

    An exit code counts only once Podman knows that the workload ended: before that, and
    for a container whose conmon was killed, it says 0.
    """
    state = data["State"]
    word = str(state["Status"])
    pid = int(state.get("Pid") or 0) or None
    conmon = int(state.get("ConmonPid") or 0) or None
    container = str(data["Id"])
    return ContainerState(
        id=container,
        name=str(data["Name"]).lstrip("/"),
        state=word,
        labels=dict(data.get("Config", {}).get("Labels") or {}),
        image_id=image_id(str(data["Image"])),
        pid=pid,
        conmon_pid=conmon,
        conmon_alive=proc.conmon_alive(conmon, container, root=root),
        alive=proc.workload_alive(pid, conmon, container, root=root),
        exit_code=int(state["ExitCode"]) if word in _ENDED else None,
        started_at=unix_time(state.get("StartedAt")),
        oom_killed=bool(state.get("OOMKilled")),
    )

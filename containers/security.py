"""Security profiles: what an engine's container may do, as data.

`strict` is the rule. Every other profile is `strict` plus relaxations, and each
relaxation says why it is there and who taught it, so that it can be taken back
when the reason has gone. What no profile can give: privileged mode, the host's
network, capabilities beyond the profile's, a writable root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One step away from `strict`: what, why, and where the need was seen."""

    what: str
    reason: str
    source: str


@dataclass(frozen=True, slots=True)
class Tmpfs:
    """A writable folder in memory. `size` is bytes; it counts against the memory limit.

    runc 1.1 gives it the mode of the image's own folder there, whatever is asked for: an
    image's `/tmp` must be 1777, or be absent.
    """

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Profile:
    """What a container of this profile may do.

    `env` are defaults that a spec's own values override. `env_allowed` are names that the
    validator otherwise refuses. `seccomp` None is Podman's default filter.
    """

    name: str
    tmpfs: tuple[Tmpfs, ...] = (Tmpfs("/tmp", 64 * MIB),)  # noqa: S108 - a path in the container
    cap_add: tuple[str, ...] = ()
    seccomp: str | None = None
    root_user: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    env_allowed: frozenset[str] = frozenset()
    relaxations: tuple[Relaxation, ...] = ()


_SELINUX = Relaxation(
    "SELinux label separation is off",
    "model folders are the user's and are never relabelled, and an unlabelled folder cannot be read with it on",
    "design decision; without SELinux it changes nothing",
)
_HOME = {"HOME": "/tmp"}  # noqa: S108 - a user without an entry in /etc/passwd gets `/`, which is read-only

STRICT = Profile("strict", relaxations=(_SELINUX,))

VLLM_CUDA = Profile(
    "vllm-cuda",
    tmpfs=(Tmpfs("/tmp", 4096 * MIB),),  # noqa: S108
    env=_HOME,
    relaxations=(
        _SELINUX,
        Relaxation(
            "4 GiB of temporary folder instead of 64 MiB",
            "Triton and the compiler behind torch.compile unpack, build and load shared objects there",
            "TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR default to places below the temporary folder or HOME",
        ),
    ),
)

ROCM = Profile(
    "rocm",
    tmpfs=(Tmpfs("/tmp", 4096 * MIB),),  # noqa: S108
    seccomp="unconfined",
    env=_HOME,
    relaxations=(
        _SELINUX,
        Relaxation(
            "4 GiB of temporary folder instead of 64 MiB",
            "HIP compiles kernels at run time and loads them from there",
            "as for vllm-cuda",
        ),
        Relaxation(
            "no seccomp filter",
            "ROCm's runtime places memory with mbind and its kin, which the default filter denies without CAP_SYS_NICE",
            "AMD's container instructions: --security-opt seccomp=unconfined",
        ),
    ),
)

PROFILES: Mapping[str, Profile] = {p.name: p for p in (STRICT, VLLM_CUDA, ROCM)}


def keywords(profile: Profile) -> dict[str, Any]:
    """The profile in podman-py's words (for `containers.create`).

    podman-py's own traps: `security_opt=["seccomp=..."]` is silently ignored, the filter
    is `seccomp_profile_path`; `tmpfs=` raises TypeError, a mount of type tmpfs does it;
    any ulimit of ours would make Podman 4 drop all the host's defaults, so none is set;
    the `mounts` list is built anew at each call, for podman-py may change what it is given.
    """
    words: dict[str, Any] = {
        "read_only": True,
        "read_write_tmpfs": False,
        "cap_drop": ["ALL"],
        "no_new_privileges": True,
        "privileged": False,
        "security_opt": ["disable"],
        "mounts": [
            {"type": "tmpfs", "source": "tmpfs", "target": t.path, "size": str(t.size), "mode": "1777"}
            for t in profile.tmpfs
        ],
    }
    if profile.cap_add:
        words["cap_add"] = list(profile.cap_add)
    if profile.seccomp is not None:
        words["seccomp_profile_path"] = profile.seccomp
    return words

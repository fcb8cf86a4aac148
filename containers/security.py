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
class Withheld:
    """What instructions for such images commonly ask for, what is given instead, and why that does."""

    what: str
    instead: str
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
    withheld: tuple[Withheld, ...] = ()


_SELINUX = Relaxation(
    "SELinux label separation is off",
    "model folders are the user's and are never relabelled, and an unlabelled folder cannot be read with it on; a "
    "GPU's nodes could not be opened either, unless the host has `setsebool container_use_devices on`",
    "podman-run(1) label=disable, container-selinux; without SELinux it changes nothing",
)
_IPC = Withheld(
    "--ipc=host",
    "a /dev/shm of the engine's own, as large as its image and the number of its GPUs need: the host's would show "
    "every other program's shared memory",
    "docs.vllm.ai deployment/docker: --ipc=host or --shm-size",
)
_MEMLOCK = Withheld(
    "--ulimit memlock=-1",
    "the host's own limit: any ulimit that is given makes Podman 4 drop all the others of the host",
    "Podman 4.3.1, tried: nproc became 1048576 beside a given memlock",
)
_VIDEO = Withheld(
    "--group-add video --group-add render",
    "the numbers of the groups that own the nodes on this host: an image has other groups of these names, or none",
    "Podman 4.3.1, tried: a name that the image lacks fails the start; vllm-toolboxes#6",
)
_HOME = {"HOME": "/tmp"}  # noqa: S108 - a user without an entry in /etc/passwd gets `/`, which is read-only

STRICT = Profile("strict", relaxations=(_SELINUX,))
"""For engines that compile nothing: llama.cpp on a CPU, Vulkan or CUDA."""

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
    withheld=(_IPC, _MEMLOCK),
)
"""vLLM and SGLang on CUDA: the nodes come by CDI, with the rights that NVIDIA's toolkit gives them (0666)."""

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
            "AMD's container instructions and ROCm/hip#3892: --security-opt seccomp=unconfined",
        ),
    ),
    withheld=(
        _IPC,
        _MEMLOCK,
        _VIDEO,
        Withheld(
            "--device /dev/dri",
            "/dev/kfd and the render node of the GPU alone: the whole folder brings the displays along",
            "Podman 4.3.1, tried: a folder is expanded to every node in it",
        ),
        Withheld(
            "--cap-add SYS_PTRACE",
            "nothing: it serves debuggers and profilers, no engine",
            "AMD's container instructions and ROCm/hip#3892 have it for rocgdb",
        ),
    ),
)
"""Anything on ROCm."""

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

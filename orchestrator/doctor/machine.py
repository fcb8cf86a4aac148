"""Everything that the doctor's rules look at, as one frozen value. Values alone: nothing here reads anything.

Unknown is `None` or nothing at all. A source that could not be read at all is named in `Machine.unseen`,
and the rules that need it are reported as not checked instead of being asked.
Sizes are bytes. No value holds a secret: logins are cut from the addresses of proxies when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hosts.facts import Accelerator, Cpu, HostFacts, Memory, Problem
from hosts.pci import PciGpu

NO_FACTS = HostFacts(host="", os=None, kernel=None, cpu=Cpu(None, "", 1), memory=Memory(0, 0))


@dataclass(frozen=True, slots=True)
class Who:
    """The user that asks: `groups` are what this process has, `operator` the person behind a `sudo`."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    operator: str | None = None

    @property
    def root(self) -> bool:
        return self.uid == 0


@dataclass(frozen=True, slots=True)
class System:
    """The distribution (`ID` and `ID_LIKE` of os-release) and what manages it."""

    ids: tuple[str, ...] = ()
    ostree: bool = False
    systemd: bool = False
    kernel_cmdline: bool = False
    """The kernel's command line comes from /etc/kernel/cmdline (systemd-boot), and not from GRUB's settings."""


@dataclass(frozen=True, slots=True)
class ModuleOption:
    """A line of modprobe.d: `options amdgpu gttsize=1`."""

    file: str
    module: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Swap:
    """A line of /proc/swaps."""

    name: str
    size: int
    used: int

    @property
    def compressed(self) -> bool:
        """In memory (zram), not on a disk."""
        return "zram" in self.name


@dataclass(frozen=True, slots=True)
class Kernel:
    """What the running kernel was told: its command line, its modules' options, a few of its switches."""

    command_line: tuple[str, ...] = ()
    options: tuple[ModuleOption, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Of loaded modules: `ttm.pages_limit` to its text."""
    nvidia_module: str | None = None
    """The version of the NVIDIA module that is loaded."""
    max_map_count: int | None = None
    overcommit: int | None = None
    huge_pages: str | None = None
    pressure: bool | None = None
    """Whether the kernel tells of tasks that wait for memory."""
    secure_boot: bool | None = None
    swaps: tuple[Swap, ...] = ()

    def given(self, name: str) -> str | None:
        """The value of a parameter on the command line; the last one counts, as for the kernel."""
        found = None
        for word in self.command_line:
            key, _, value = word.partition("=")
            if key == name:
                found = value
        return found


@dataclass(frozen=True, slots=True)
class CdiFile:
    """One file of a CDI folder. `broken` says why nobody can use it; `paths` are the host's files it names."""

    path: str
    folder: str
    kind: str | None = None
    version: str | None = None
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    mode: int | None = None
    gids: bool = False
    broken: str | None = None

    @property
    def vendor(self) -> str | None:
        """`nvidia` of `nvidia.com/gpu`."""
        return self.kind.partition(".")[0] if self.kind else None


@dataclass(frozen=True, slots=True)
class Cdi:
    """The CDI folders. `configured` are those of containers.conf, None where it names none."""

    files: tuple[CdiFile, ...] = ()
    configured: tuple[str, ...] | None = None

    def of(self, kind: str) -> tuple[CdiFile, ...]:
        """The files of a kind that can be read."""
        return tuple(file for file in self.files if file.kind == kind and file.broken is None)


@dataclass(frozen=True, slots=True)
class Toolkit:
    """NVIDIA's container toolkit. `hook` is a legacy hook's file, `refresh` that its refresh unit is installed."""

    path: str | None = None
    version: str | None = None
    refresh: bool = False
    hook: str | None = None


@dataclass(frozen=True, slots=True)
class Podman:
    """Podman as it describes itself. `complaint` is what it says instead; `socket` one of answers, refuses, silent."""

    installed: bool = False
    version: str | None = None
    complaint: str | None = None
    rootless: bool | None = None
    runtime: str | None = None
    cgroup_manager: str | None = None
    cgroup_version: int | None = None
    cgroup_controllers: tuple[str, ...] | None = None
    seccomp: bool | None = None
    seccomp_profile: str | None = None
    seccomp_profile_exists: bool | None = None
    selinux: bool | None = None
    driver: str | None = None
    root: str | None = None
    network: str | None = None
    socket: str | None = None
    socket_path: str | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """A container that only ends: whether it ran with the host's own settings, and with which of ours."""

    tried: bool = False
    works: bool = False
    complaint: str | None = None
    works_with: str | None = None
    conf: str | None = None
    """The containers.conf that it ran with."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A systemd unit's file with its drop-ins. `settings` are (section, key, value) in order, resets applied."""

    name: str
    files: tuple[str, ...] = ()
    settings: tuple[tuple[str, str, str], ...] = ()

    def all(self, key: str) -> tuple[str, ...]:
        """The values of a key."""
        return tuple(value for _, name, value in self.settings if name == key)

    def last(self, key: str) -> str | None:
        """The value that counts."""
        found = self.all(key)
        return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class Units:
    """Units by name, and what systemd says of them (name to property to text); nothing where it says nothing."""

    files: Mapping[str, Unit] = field(default_factory=dict)
    states: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def state(self, name: str, key: str) -> str | None:
        return self.states.get(name, {}).get(key)


@dataclass(frozen=True, slots=True)
class Group:
    """A line of the group database."""

    name: str
    gid: int
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accounts:
    """Groups by name, each user's own group, and what a user needs for containers without root."""

    groups: Mapping[str, Group] = field(default_factory=dict)
    primary: Mapping[str, int] = field(default_factory=dict)
    ranges: frozenset[str] | None = None
    """Users (names or numbers) that have subordinate ids; None where a directory service gives them out."""
    lingering: frozenset[str] | None = None
    """Users whose services outlive their sessions; None without systemd-logind."""

    def name_of(self, gid: int) -> str | None:
        return next((group.name for group in self.groups.values() if group.gid == gid), None)

    def has(self, user: str, group: Group) -> bool:
        """Whether the databases put a user into a group."""
        return user in group.members or self.primary.get(user) == group.gid


@dataclass(frozen=True, slots=True)
class Node:
    """A device node. `mode` are the permission bits."""

    path: str
    uid: int
    gid: int
    mode: int


@dataclass(frozen=True, slots=True)
class Limit:
    """A resource limit of one place (`podman.service`, `this process`); None is unlimited."""

    place: str
    name: str
    hard: int | None


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The file system below something of ours. `what` is state, store, storage, temporary."""

    what: str
    path: str
    device: int
    total: int
    free: int
    inodes: int
    inodes_free: int
    read_only: bool


@dataclass(frozen=True, slots=True)
class Firewall:
    """`closed` are the listening ports that the rules would not let in; `tool` is what manages the rules."""

    tool: str | None = None
    closed: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Time:
    """The wall clock, and whether something keeps it right."""

    now: float | None = None
    synchronised: bool | None = None
    said_by: str | None = None
    services: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy setting: where it stands, its name in lower case, its address without a login."""

    place: str
    name: str
    value: str
    host: str | None = None
    port: int | None = None
    reachable: bool | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable that changes how engines run, and where it is set."""

    place: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Selinux:
    """Whether it enforces, and the switch for containers with devices; None where the policy has none."""

    enforcing: bool = False
    use_devices: bool | None = None


@dataclass(frozen=True, slots=True)
class ImageNeed:
    """An image of the catalogue that was built for a GPU of this host, and the first need that the host does not meet:
    `unmet` is its code, `needed` and `found` are versions."""

    name: str
    reference: str
    pci: str
    unmet: str | None = None
    text: str | None = None
    needed: str | None = None
    found: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the configuration says that rules need: ports beyond loopback, mirrors, the disk's low water."""

    exposed: tuple[tuple[str, int], ...] = ()
    registries: tuple[str, ...] = ()
    low_water: float = 0.05


@dataclass(frozen=True, slots=True)
class Machine:
    """All of it. `unseen` maps a source's name to why nothing is known from it."""

    facts: HostFacts = NO_FACTS
    who: Who = Who()
    system: System = System()
    wanted: Wanted = Wanted()
    bus: tuple[PciGpu, ...] = ()
    kernel: Kernel = Kernel()
    cdi: Cdi = Cdi()
    toolkit: Toolkit = Toolkit()
    podman: Podman = Podman()
    trial: Trial = Trial()
    units: Units = Units()
    accounts: Accounts = Accounts()
    nodes: tuple[Node, ...] = ()
    limits: tuple[Limit, ...] = ()
    disks: tuple[DiskUse, ...] = ()
    firewall: Firewall = Firewall()
    time: Time = Time()
    proxies: tuple[Proxy, ...] = ()
    environment: tuple[Setting, ...] = ()
    selinux: Selinux = Selinux()
    images: tuple[ImageNeed, ...] = ()
    unseen: Mapping[str, str] = field(default_factory=dict)

    def problems(self, *codes: str) -> tuple[Problem, ...]:
        """What the probe said under these codes."""
        return tuple(problem for problem in self.facts.problems if problem.code in codes)

    def gpus(self, vendor: str) -> tuple[Accelerator, ...]:
        """The GPUs of a vendor that the probe found."""
        return tuple(gpu for gpu in self.facts.accelerators if gpu.vendor == vendor)

    @property
    def rootless(self) -> bool:
        """Whether engines run without root: as Podman says, else as whoever asks."""
        said = self.podman.rootless
        return (not self.who.root) if said is None else said

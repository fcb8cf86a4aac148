"""What devices report, told once: into the journal, and to the engine whose program it was.

NVML and the kernel's log tell of the same XID; NVML is at hand wherever there is a driver, and the kernel
names the process. So NVML's waits a moment for its twin. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hosts.device_events import DeviceEvent
from hosts.telemetry import Sample
from hosts.xids import describe
from orchestrator import device_policy
from orchestrator.clock import Clock
from orchestrator.device_policy import Suspect, Whose
from orchestrator.engine import Engine
from orchestrator.events import Journal
from orchestrator.plan import Plan

SAME = 5.0
"""Seconds within which the same XID, told by NVML and by the kernel's log, is one."""
QUIET = 10.0
"""Seconds for which an event like one before is not written into the journal again."""
WAIT = 0.5
"""Seconds that an XID from NVML waits for the kernel's log, which names the process."""
REMEMBERED = 120.0
"""Seconds for which it is known what container a process was in that has ended."""
_KEPT = 256
_REPORTS_KEPT = 10
_OF_PROGRAMS = frozenset({"xid", "amdgpu_fault", "amdgpu_timeout", "oom_kill"})
_SELDOM = frozenset({"pcie_corrected", "ecc_single_bit"})
"""Corrected errors, which may come by the thousand: written once an hour."""
HOUR = 3600.0


@dataclass(slots=True)
class _Told:
    """An XID that one source told, until the other has told it too."""

    event: DeviceEvent
    timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class Processes:
    """How the host's processes are looked up."""

    container_of: Callable[[int], str | None]
    """The container that a process is in; None when it is in none, or gone."""
    exists: Callable[[int], bool]
    """Whether a process still is."""


class Reports:
    """The events of one host, as people and engines are told of them."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        processes: Processes,
        engines: Callable[[], Sequence[Engine]],
        taken: Callable[[Plan], frozenset[str]],
    ) -> None:
        """`engines` are those there are, `taken` says which GPUs a plan takes."""
        self._journal = journal
        self._clock = clock
        self._processes = processes
        self._engines = engines
        self._taken = taken
        self._xids: list[_Told] = []
        self._written: dict[tuple[object, ...], float] = {}
        self._containers: dict[int, tuple[str, float]] = {}

    def take(self, event: DeviceEvent) -> bool:
        """An event arrives; False when its twin was here already."""
        if event.kind != "xid":
            self._tell(event)
            return True
        if self._is_twin(event):
            return False
        told = _Told(event)
        self._xids = [*self._xids[-_KEPT:], told]
        if event.source == "nvml":
            told.timer = asyncio.get_running_loop().call_later(WAIT, self._tell, event)
        else:
            self._tell(event)
        return True

    def remember(self, sample: Sample) -> None:
        """What containers the processes on the GPUs are in, for when they have ended."""
        now = self._clock.now()
        for pid in {p.pid for one in sample.gpus.values() for p in one.processes or ()}:
            if (container := self._processes.container_of(pid)) is not None:
                self._containers[pid] = container, now
        for pid in [p for p, (_, at) in self._containers.items() if now - at > REMEMBERED]:
            del self._containers[pid]

    def close(self) -> None:
        """Tell nothing more."""
        for told in self._xids:
            if told.timer is not None:
                told.timer.cancel()

    def _is_twin(self, event: DeviceEvent) -> bool:
        """Whether the other source told this XID already. What it knows more (the process) is taken up."""
        for told in self._xids:
            first = told.event
            if first.source == event.source or (first.pci, first.number) != (event.pci, event.number):
                continue
            if abs(event.at - first.at) > SAME:
                continue
            self._xids.remove(told)
            if told.timer is not None and event.pid is not None:
                waiting = told.timer.when() > asyncio.get_running_loop().time()
                told.timer.cancel()
                if waiting:
                    self._tell(event)
            return True
        return False

    def _tell(self, event: DeviceEvent) -> None:
        """Write an event into the journal, and attach it to the engine that it is about."""
        found = self._engine_of(event) if event.kind in _OF_PROGRAMS else None
        evidence: dict[str, object] = {
            "source": event.source,
            "gpu": event.pci,
            "xid": event.number,
            "pid": event.pid,
            "text": event.text,
        }
        evidence = {k: v for k, v in evidence.items() if v is not None}
        if found is not None:
            engine, by = found
            report = {"kind": event.kind, **evidence, "known_by": by, "at": event.at}
            engine.reported = [*engine.reported[-_REPORTS_KEPT:], report]
            evidence |= {"engine": engine.name, "known_by": by}
        key = (event.kind, event.pci, event.number, None if found is None else found[0].name)
        now = self._clock.now()
        quiet = HOUR if event.kind in _SELDOM else QUIET
        if now - self._written.get(key, now - quiet) < quiet or (found is None and event.kind == "oom_kill"):
            return  # told a moment ago, or some other program of the machine
        if len(self._written) > _KEPT:
            self._written.clear()
        self._written[key] = now
        said = describe(event.number) if event.kind == "xid" else event.kind.replace("_", " ")
        if found is not None and event.kind == "oom_kill":
            said = f"the kernel killed a process of {found[0].name} for want of memory"
        self._journal.emit(
            "device",
            event.kind,
            said
            if event.pci is None
            else f"GPU {event.pci}: {said}" + ("" if found is None else f", of {found[0].name}"),
            deployment=None if found is None else found[0].deployment,
            evidence=evidence,
        )

    def _engine_of(self, event: DeviceEvent) -> tuple[Engine, str] | None:
        engines = self._engines()
        taken = {e.id: self._taken(e.plan) for e in engines}
        suspects = [Suspect(e.id, e.pid, e.container_id, event.pci in taken[e.id]) for e in engines]
        pid, container = event.pid, None
        if pid is not None:
            remembered = self._containers.get(pid)
            container = self._processes.container_of(pid) or (None if remembered is None else remembered[0])
            if container is None and pid not in {e.pid for e in engines} and not self._processes.exists(pid):
                pid = None  # it ended before anybody could see where it was
        decision = device_policy.whose(pid, container, suspects)
        if decision.action is Whose.NOBODYS:
            return None
        return next(e for e in engines if e.id == decision.evidence["engine"]), decision.reason

"""What lines of the kernel's log mean for a GPU. Pure: bytes of a record in, events out.

Only records of the kernel itself count: a process may write to /dev/kmsg, but not under the
kernel's facility. It may also call itself what it likes, and the kernel prints that name: so a
line is recognised by how it begins, and a process id is taken only where no name can forge it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from hosts import pci
from hosts.device_events import DeviceEvent

SOURCE = "kernel"
_TEXT_LIMIT = 500
_HEAD = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),[^;]{0,100};")
_DEVICE = re.compile(r"\+pci:([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
_ADDRESS = r"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"

_XID = re.compile(rf"NVRM: Xid \(PCI:{_ADDRESS}\): (?P<number>\d{{1,5}})(?:, pid='?(?P<pid>\d{{1,7}})\b)?")
_OFF_THE_BUS = re.compile(rf"NVRM: GPU (?:at PCI:)?{_ADDRESS}: GPU has fallen off the bus")
_OOM = re.compile(
    r"(?:Out|Memory cgroup out) of memory(?: \(oom_kill_allocating_task\))?: Kill(?:ed)? process (\d{1,7})\b"
)
_PCIE = re.compile(r"(?:\w[\w-]* )?[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]: (?:AER: |PCIe Bus Error: )")
_CORRECTED = re.compile(r"AER: (?:Multiple )?Correct(?:ed|able)\b|PCIe Bus Error: severity=Correct")
_MACHINE_CHECK = re.compile(r"(?:mce: |EDAC .{1,40}: |\{\d+\})?\[Hardware Error\]: ")
_ANY_ADDRESS = re.compile(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")

# a line of amdgpu: "amdgpu 0000:c5:00.0: amdgpu: X", since 6.17 "amdgpu 0000:c5:00.0: X",
# of the compute driver "amdgpu: X", of older kernels "[drm:function [amdgpu]] *ERROR* X"
_AMDGPU = re.compile(
    rf"(?:amdgpu {_ADDRESS}: (?:amdgpu: )?|amdgpu: )?(?:\[drm:\w+(?:\.\w+)* \[amdgpu\]\] \*ERROR\* )?(?P<said>.*)",
    re.DOTALL,
)
_PROCESS = re.compile(r"\s*(?:Process information: process |Process |in process |for process )")
_PID = re.compile(r" pid (\d{1,7})\b")
_AMDGPU_KINDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"GPU reset begin", "amdgpu_reset"),
        (r"GPU reset(?:\(\d+\))? succeeded", "amdgpu_reset_done"),
        (r"GPU reset(?:\(\d+\))? failed|GPU reset end with ret = -|GPU [Rr]ecovery [Ff]ailed", "amdgpu_reset_failed"),
        (r"GPU recovery disabled", "amdgpu_reset_failed"),
        (r"device lost from bus", "gpu_unavailable"),
        (r"ring \S{1,40} timeout", "amdgpu_timeout"),
        (r"\[\w{3,12}\] (?:no-retry |retry )?page fault \(", "amdgpu_fault"),
        (r"MES(?:\(\d+\))? (?:failed to respon|ring buffer is full|might be in unrecoverable)", "amdgpu_mes"),
        (r"(?:\w+ )?failed to (?:remove|add) hardware queue (?:from|to) MES", "amdgpu_mes"),
        (r"qcm fence wait loop timeout|The cp might be in an unrecoverable state", "amdgpu_mes"),
        (r"\d+ uncorrectable hardware errors? detected", "ecc_double_bit"),
        (r"\d+ correctable hardware errors? detected", "ecc_single_bit"),
        (r"ERROR: (?:GPU over temperature|System is going to shutdown due to GPU)", "thermal"),
    )
)
_NAMED_NEXT = frozenset({"amdgpu_fault", "amdgpu_timeout"})
"""After these the driver says in a line of its own which process it was."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of /dev/kmsg: the kernel's own (`kernel`) or some process's; `pci` if it is about a PCI device."""

    kernel: bool
    sequence: int
    text: str
    pci: str | None = None


def parse_record(raw: bytes) -> Record | None:
    """`<priority>,<sequence>,<microseconds>,<flags>;<text>` and its ` KEY=value` lines; None for anything else."""
    head = _HEAD.match(raw)
    if head is None:
        return None
    body, _, more = raw[head.end() :].partition(b"\n")
    text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), body.decode("utf-8", "replace"))
    device = None
    for line in more.decode("utf-8", "replace").split("\n"):
        if line.startswith(" DEVICE="):
            match = _DEVICE.fullmatch(line.removeprefix(" DEVICE="))
            device = pci.address(match[1]) if match else None
    return Record(int(head[1]) >> 3 == 0, int(head[2]), " ".join(text.split("\n"))[:_TEXT_LIMIT], device)


class Lines:
    """Events from records in their order. `gpus` are the PCI addresses whose errors matter."""

    def __init__(self, gpus: Callable[[], Collection[str]]) -> None:
        self._gpus = gpus
        self._waiting: DeviceEvent | None = None

    @property
    def waiting(self) -> bool:
        """Whether an event is held back because the next record may name its process."""
        return self._waiting is not None

    def feed(self, record: Record, at: float) -> Iterator[DeviceEvent]:
        """What this record, read at monotonic `at`, says; at times of the record before it."""
        if not record.kernel:
            return
        amdgpu = _AMDGPU.match(record.text)
        assert amdgpu is not None  # it matches anything
        where = record.pci or _full(amdgpu["pci"])
        if self._waiting is not None:
            if _PROCESS.match(amdgpu["said"]) and where in {self._waiting.pci, None}:
                yield from self.flush(_process(amdgpu["said"]))
                return
            yield from self.flush()
        event = _other(record, at, self._gpus) or _amdgpu(record, amdgpu, where, at)
        if event is None:
            return
        if event.kind in _NAMED_NEXT and event.pid is None and "for process " not in record.text:
            self._waiting = event
            return
        yield event

    def flush(self, pid: int | None = None) -> Iterator[DeviceEvent]:
        """The event that is held back, if there is one: nothing more came."""
        if self._waiting is not None:
            event, self._waiting = self._waiting, None
            yield event if pid is None else replace(event, pid=pid)


def _full(address: str | None) -> str | None:
    """NVIDIA's driver leaves the function out: it is 0."""
    if address is None:
        return None
    return pci.address(address if "." in address else f"{address}.0")


def _other(record: Record, at: float, gpus: Callable[[], Collection[str]]) -> DeviceEvent | None:
    text = record.text
    if match := _XID.match(text):
        return _event("xid", _full(match["pci"]), match["number"], match["pid"], text, at)
    if match := _OFF_THE_BUS.match(text):
        return _event("gpu_unavailable", _full(match["pci"]), None, None, text, at)
    if match := _OOM.match(text):
        return _event("oom_kill", None, None, match[1], text, at)
    kind = None
    if _PCIE.match(text):
        kind = "pcie_corrected" if _CORRECTED.search(text) else "pcie_error"
    elif _MACHINE_CHECK.match(text):
        kind = "machine_check"
    if kind is None:
        return None
    named = [where for where in (record.pci, *_ANY_ADDRESS.findall(text)) if where is not None and where in gpus()]
    return _event(kind, named[0], None, None, text, at) if named else None


def _amdgpu(record: Record, found: re.Match[str], where: str | None, at: float) -> DeviceEvent | None:
    if found.start("said") == 0:
        return None  # begins like nothing of amdgpu's
    said = found["said"].lstrip()
    for pattern, kind in _AMDGPU_KINDS:
        if pattern.match(said):
            pid = None
            if kind == "amdgpu_fault" and (index := said.find("for process ")) >= 0:
                pid = _process(said[index:])
            return _event(kind, where, None, pid, record.text, at)
    return None


def _process(said: str) -> int | None:
    """The process of `process NAME pid N thread NAME pid M`: with names that look like more of it, nobody's.

    0 is the kernel's way of saying that it does not know.
    """
    found = _PID.findall(said)
    if len(found) != (2 if " thread " in said else 1):
        return None
    return int(found[0]) or None


def _event(  # noqa: PLR0917 - one call a form of line, each on one line
    kind: str, where: str | None, number: str | None, pid: str | int | None, text: str, at: float
) -> DeviceEvent:
    return DeviceEvent(
        source=SOURCE,
        kind=kind,
        pci=where,
        number=None if number is None else int(number),
        pid=int(pid) or None if pid is not None else None,
        text=text,
        at=at,
    )

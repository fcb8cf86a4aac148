"""The kernel's log: lines as real machines wrote them, lines that lie, and the thread that reads them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosts.device_events import DeviceEvent
from hosts.kernel_lines import Lines, Record, parse_record
from hosts.kernel_log import KernelLog
from tests.hosts.trees import Tree, write
from tests.waiting import until_sync

GPUS = ("0000:01:00.0", "0000:c5:00.0")


def events(*texts: str, kernel: bool = True, pci: str | None = None) -> list[DeviceEvent]:
    lines = Lines(lambda: GPUS)
    found = [event for text in texts for event in lines.feed(Record(kernel, 1, text, pci), 1.0)]
    return [*found, *lines.flush()]


def said(*texts: str) -> list[tuple[str, str | None, int | None, int | None]]:
    return [(event.kind, event.pci, event.number, event.pid) for event in events(*texts)]


XIDS = [
    ("NVRM: Xid (PCI:0000:01:00): 79, pid=0, name=<unknown>, GPU has fallen off the bus.", 79, None),
    ("NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", 79, None),
    ("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", 79, None),
    ("NVRM: Xid (PCI:0000:01:00): 32, Channel ID 00000009 intr 00800000", 32, None),
    ("NVRM: Xid (PCI:0000:01:00): 32, pid=2096908, name=kf-phys-oracle, channel 0x00000007 intr1 4", 32, 2096908),
    ("NVRM: Xid (PCI:0000:01:00): 31, pid='4242', name=python3, Ch 00000008, intr 00000000", 31, 4242),
    ("NVRM: Xid (PCI:00000000:01:00.0): 154, GPU recovery action changed from 0x0 to 0x2", 154, None),
]


@pytest.mark.parametrize(("line", "number", "pid"), XIDS)
def test_xids(line: str, number: int, pid: int | None) -> None:
    (event,) = events(line)
    assert (event.source, event.kind, event.pci) == ("kernel", "xid", "0000:01:00.0")
    assert (event.number, event.pid, event.text, event.at) == (number, pid, line, 1.0)


AMDGPU = [
    ("amdgpu 0000:c5:00.0: amdgpu: GPU reset begin!", "amdgpu_reset"),
    ("amdgpu 0000:c5:00.0: amdgpu: GPU reset begin!. Source:  3", "amdgpu_reset"),
    ("amdgpu 0000:c5:00.0: GPU reset begin!. Source:  1", "amdgpu_reset"),
    ("amdgpu 0000:c5:00.0: amdgpu: GPU reset(9) succeeded!", "amdgpu_reset_done"),
    ("amdgpu 0000:c5:00.0: amdgpu: GPU reset(2) failed", "amdgpu_reset_failed"),
    ("amdgpu 0000:c5:00.0: amdgpu: GPU reset end with ret = -110", "amdgpu_reset_failed"),
    ("amdgpu 0000:c5:00.0: amdgpu: GPU Recovery Failed: -62", "amdgpu_reset_failed"),
    ("amdgpu 0000:c5:00.0: amdgpu: GPU recovery disabled.", "amdgpu_reset_failed"),
    ("amdgpu 0000:c5:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE", "amdgpu_mes"),
    ("amdgpu 0000:c5:00.0: amdgpu: MES failed to respond to msg=MISC (WAIT_REG_MEM)", "amdgpu_mes"),
    ("amdgpu 0000:c5:00.0: amdgpu: MES might be in unrecoverable state, issue a GPU reset", "amdgpu_mes"),
    ("amdgpu 0000:c5:00.0: amdgpu: MES ring buffer is full.", "amdgpu_mes"),
    ("amdgpu 0000:c5:00.0: amdgpu: failed to remove hardware queue from MES, doorbell=0x1002", "amdgpu_mes"),
    (
        "amdgpu 0000:c5:00.0: amdgpu: remove_queue_mes failed to remove hardware queue from MES, doorbell=0x1002",
        "amdgpu_mes",
    ),
    ("amdgpu 0000:c5:00.0: amdgpu: ERROR: GPU over temperature range(SW CTF) detected!", "thermal"),
    ("amdgpu 0000:c5:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc block", "ecc_double_bit"),
    ("amdgpu 0000:c5:00.0: amdgpu: device lost from bus!", "gpu_unavailable"),
    ("amdgpu 0000:c5:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=163945, emitted seq=163947", "amdgpu_timeout"),
]


@pytest.mark.parametrize(("line", "kind"), AMDGPU)
def test_amdgpu(line: str, kind: str) -> None:
    assert said(line) == [(kind, "0000:c5:00.0", None, None)]


OLDER = [
    (
        "[drm:mes_v11_0_submit_pkt_and_poll_completion.constprop.0 [amdgpu]] *ERROR* MES failed to response msg=14",
        "amdgpu_mes",
    ),
    ("amdgpu: qcm fence wait loop timeout expired", "amdgpu_mes"),
    ("amdgpu: The cp might be in an unrecoverable state due to an unsuccessful queues preemption", "amdgpu_mes"),
    ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, but soft recovered", "amdgpu_timeout"),
]


@pytest.mark.parametrize(("line", "kind"), OLDER)
def test_older_kernels_name_no_device(line: str, kind: str) -> None:
    assert said(line) == [(kind, None, None, None)]
    (event,) = events(line, pci="0000:c5:00.0")  # but the record may
    assert event.pci == "0000:c5:00.0"


def test_a_fault_is_told_with_the_process_of_the_next_line() -> None:
    assert said(
        "amdgpu 0000:c5:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:200)",
        "amdgpu 0000:c5:00.0: amdgpu:  Process VLLM::EngineCor pid 7304 thread VLLM::EngineCor pid 7304",
        "amdgpu 0000:c5:00.0: amdgpu:   in page starting at address 0x00007ff512a04000 from client 10",
        "amdgpu 0000:c5:00.0: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:319)",
        "amdgpu 0000:c5:00.0:  Process python pid 668369 thread python pid 668369",
        "amdgpu 0000:c5:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:32783)",
        "amdgpu 0000:c5:00.0: amdgpu:  in process python pid 25698 thread python pid 25698)",
        "amdgpu 0000:c5:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:153 vmid:8 pasid:3, "
        "for process xgemmStandalone pid 3557 thread xgemmStandalone pid 3557)",
        "amdgpu 0000:c5:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:169 vmid:0 pasid:0, "
        "for process  pid 0 thread  pid 0)",
    ) == [("amdgpu_fault", "0000:c5:00.0", None, pid) for pid in (7304, 668369, 25698, 3557, None)]


def test_a_timeout_is_told_with_its_process_and_then_the_reset() -> None:
    assert said(
        "amdgpu 0000:c5:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=163945, emitted seq=163947",
        "amdgpu 0000:c5:00.0: amdgpu: Process information: process MonsterHunterWi pid 9151 thread vkd3d_q pid 9334",
        "amdgpu 0000:c5:00.0: amdgpu: GPU reset begin!",
    ) == [("amdgpu_timeout", "0000:c5:00.0", None, 9151), ("amdgpu_reset", "0000:c5:00.0", None, None)]
    assert said(
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring vcn_unified_0 timeout, signaled seq=5197, emitted seq=5200",
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* Process information: process RDD Process pid 2857 thread a pid 9",
    ) == [("amdgpu_timeout", None, None, 2857)]


def test_a_fault_without_a_following_line_is_told_all_the_same() -> None:
    fault = "amdgpu 0000:c5:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:200)"
    assert said(fault) == [("amdgpu_fault", "0000:c5:00.0", None, None)]
    assert said(fault, "usb 1-1: new device", fault) == [("amdgpu_fault", "0000:c5:00.0", None, None)] * 2


@pytest.mark.parametrize(
    "line",
    [
        "Out of memory: Killed process 4242 (llama-server) total-vm:1, anon-rss:2kB, UID:0 pgtables:3kB",
        "Memory cgroup out of memory: Killed process 4242 (Out of memory: ) total-vm:1kB, anon-rss:2kB",
        "Out of memory (oom_kill_allocating_task): Killed process 4242 (x) total-vm:1kB",
        "Out of memory: Kill process 4242 (python) score 900 or sacrifice child",
    ],
)
def test_killed_for_want_of_memory(line: str) -> None:
    assert said(line) == [("oom_kill", None, None, 4242)]


PCIE = [
    ("pcieport 0000:00:01.1: AER: Uncorrectable (Fatal) error message received from 0000:01:00.0", "pcie_error"),
    ("nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer", "pcie_error"),
    ("nvidia 0000:01:00.0: AER: can't recover (no error_detected callback)", "pcie_error"),
    ("pcieport 0000:00:01.1: AER: Corrected error received: 0000:01:00.0", "pcie_corrected"),
    ("pcieport 0000:00:01.1: AER: Multiple Correctable error message received from 0000:01:00.0", "pcie_corrected"),
    ("nvidia 0000:01:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)", "pcie_corrected"),
    ("{1}[Hardware Error]:   device_id: 0000:01:00.0", "machine_check"),
]


@pytest.mark.parametrize(("line", "kind"), PCIE)
def test_errors_of_the_bus_that_name_a_gpu(line: str, kind: str) -> None:
    assert said(line) == [(kind, "0000:01:00.0", None, None)]
    assert said(line.replace("0000:01:00.0", "0000:7f:00.0")) == []  # some other device


@pytest.mark.parametrize("line", [line for line, *_ in (*XIDS, *AMDGPU, *PCIE)])
def test_what_a_process_wrote_counts_for_nothing(line: str) -> None:
    assert events(line, kernel=False) == []


@pytest.mark.parametrize(
    "line",
    [
        # the kernel prints the name that a process gave itself, up to 15 characters of it
        "NVRM: Xid (PCI:[4242]: segfault at 0 ip 0 sp 0 error 4",
        "amdgpu: GPU res[4242]: segfault at 0 ip 0 sp 0 error 4",
        "traps: amdgpu: MES fai[1] general protection fault ip:0 sp:0 error:0",
        "oom-kill:constraint=CONSTRAINT_MEMCG,task=Killed process,pid=1,uid=0",
        "usb 1-1: Product: NVRM: Xid (PCI:0000:01:00): 79",
        "audit: amdgpu 0000:c5:00.0: amdgpu: GPU reset begin!",
        "amdgpu 0000:c5:00.0: amdgpu: ring gfx_0.0.0 uses VM inv eng 0 on hub 0",
        "amdgpu 0000:c5:00.0: amdgpu: SMU is resumed successfully!",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05",
    ],
)
def test_other_lines_and_names_that_look_like_errors(line: str) -> None:
    assert events(line) == []


def test_a_name_cannot_put_the_blame_on_another_process() -> None:
    fault = "amdgpu 0000:c5:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:200)"
    liar = "amdgpu 0000:c5:00.0: amdgpu:  Process a pid 1 thre pid 666 thread b pid 667"
    assert said(fault, liar) == [("amdgpu_fault", "0000:c5:00.0", None, None)]
    other = "amdgpu 0000:01:00.0: amdgpu:  Process a pid 1 thread a pid 1"
    assert said(fault, other) == [("amdgpu_fault", "0000:c5:00.0", None, None)]  # of another GPU
    assert said("NVRM: Xid (PCI:0000:01:00): 31, pid=5, name=, pid=1, x, Ch 0") == [("xid", "0000:01:00.0", 31, 5)]


def test_records() -> None:
    record = parse_record(
        b"3,1234,5140900,-,caller=T17;amdgpu 0000:c5:00.0: amdgpu: GPU reset begin!\n"
        b" SUBSYSTEM=pci\n DEVICE=+pci:0000:c5:00.0\n"
    )
    assert record == Record(True, 1234, "amdgpu 0000:c5:00.0: amdgpu: GPU reset begin!", "0000:c5:00.0")
    mine = parse_record(b"12,1235,5140901,-;NVRM: Xid (PCI:0000:01:00): 79\n")
    assert mine is not None
    assert not mine.kernel
    assert parse_record(b"6,1,1,-;a\\x0ab\\xff\n") == Record(True, 1, "a b\xff", None)
    for raw in (b"", b"nonsense", b"6,1;x", b"-6,1,1,-;x", b"6,1,1,-" + b"x" * 5000 + b";x"):
        assert parse_record(raw) is None


@settings(deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=200), st.text(max_size=80).map(lambda t: b"6,1,1,-;" + t.encode()))))
def test_no_bytes_break_it(raws: list[bytes]) -> None:
    lines = Lines(lambda: GPUS)
    for raw in raws:
        record = parse_record(raw)
        if record is not None:
            list(lines.feed(record, 0.0))


# the thread


class Following:
    """A log that reads a pipe of packets: each write is one record, as /dev/kmsg gives them."""

    def __init__(self, tree: Tree) -> None:
        path = tree.base / "dev/kmsg"
        path.parent.mkdir(parents=True)
        os.mkfifo(path)
        self.got: list[DeviceEvent] = []
        self.log = KernelLog(self.got.append, lambda: GPUS, roots=tree.roots)
        hold = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._writer = os.open(path, os.O_WRONLY)
        fcntl.fcntl(self._writer, fcntl.F_SETFL, os.O_DIRECT)
        assert self.log.start() is None
        os.close(hold)

    def say(self, text: str, priority: int = 3) -> None:
        os.write(self._writer, f"{priority},1,1,-;{text}\n".encode())

    def close(self) -> None:
        self.log.close()
        os.close(self._writer)


@pytest.fixture
def following(tree: Tree) -> Iterator[Following]:
    made = Following(tree)
    yield made
    made.close()
    assert not any(thread.name == "outrider-kernel-log" for thread in threading.enumerate())


def test_the_thread_hands_events_on_and_ends(following: Following) -> None:
    following.say("NVRM: Xid (PCI:0000:01:00): 79, pid=7, name=x, GPU has fallen off the bus.", priority=12)
    following.say("NVRM: Xid (PCI:0000:01:00): 79, pid=8, name=x, GPU has fallen off the bus.")
    following.say("amdgpu 0000:c5:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:8 pasid:200)")
    until_sync(lambda: len(following.got) == 2, 10.0)  # the fault, too, though no line follows it
    assert [(event.kind, event.pid) for event in following.got] == [("xid", 8), ("amdgpu_fault", None)]
    assert abs(following.got[0].at - time.monotonic()) < 60


def test_a_storm_is_told_once_a_second(following: Following) -> None:
    for number in range(200):
        following.say(f"NVRM: Xid (PCI:0000:01:00): 31, pid=5, name=x, Ch {number}")
    following.say("NVRM: Xid (PCI:0000:01:00): 79, pid=5, name=x, GPU has fallen off the bus.")
    until_sync(lambda: bool(following.got) and following.got[-1].number == 79, 10.0)
    assert len(following.got) <= 4


def test_an_overrun_is_counted_and_reading_goes_on(following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    real, faults = os.read, [errno.EPIPE, errno.EINVAL, errno.EINTR]

    def read(descriptor: int, size: int) -> bytes:
        if size == 8192 and faults:
            raise OSError(faults.pop(0), "injected")
        return real(descriptor, size)

    monkeypatch.setattr(os, "read", read)
    following.say("Out of memory: Killed process 99 (x) total-vm:1kB")
    until_sync(lambda: [event.kind for event in following.got] == ["oom_kill"], 10.0)
    assert following.log.lost == 1
    assert faults == []


def test_where_the_log_may_not_be_read_it_is_said(tree: Tree) -> None:
    problem = KernelLog(lambda _: None, tuple, roots=tree.roots).start()
    assert problem is not None
    assert problem.code == "kernel_log_unreadable"
    assert problem.hint
    log = KernelLog(lambda _: None, tuple, roots=tree.roots)
    log.close()  # never started


def test_a_file_in_its_place_ends_quietly(tree: Tree) -> None:
    write(tree.base / "dev/kmsg", "3,1,1,-;NVRM: Xid (PCI:0000:01:00): 79\n")
    got: list[DeviceEvent] = []
    log = KernelLog(got.append, lambda: GPUS, roots=tree.roots)
    with contextlib.closing(log):
        if log.start() is None:
            until_sync(lambda: log._thread is not None and not log._thread.is_alive(), 10.0)
    assert got == []


HOG = "import sys; sys.stdin.readline(); held = [bytearray(1 << 20) for _ in range(512)]"


def _cgroup() -> tuple[Path, str] | None:
    v1 = Path("/sys/fs/cgroup/memory")
    if os.access(v1 / "cgroup.procs", os.W_OK):
        return v1, "memory.limit_in_bytes"
    v2 = Path("/sys/fs/cgroup")
    if "memory" in (v2 / "cgroup.subtree_control").read_text().split() and os.access(v2 / "cgroup.procs", os.W_OK):
        return v2, "memory.max"
    return None


def _is(event: DeviceEvent, pid: int) -> bool:
    """The kernel's log has the pids of the first namespace (whose inode is fixed); in another one they are others."""
    first = os.readlink("/proc/self/ns/pid") == f"pid:[{0xEFFFFFFC}]"
    return event.pid == pid if first else event.pid is not None


def test_a_real_kernel_says_whom_it_killed() -> None:
    """A process is killed for want of memory; what this test itself writes into the log counts for nothing."""
    where = _cgroup()
    if where is None or not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        pytest.skip("needs a memory cgroup and the kernel's log, that is root, until 2027-06-30")
    got: list[DeviceEvent] = []
    folder = where[0] / f"outrider-test-{os.getpid()}"
    log = KernelLog(got.append, lambda: GPUS)
    folder.mkdir()
    try:
        (folder / where[1]).write_text(str(24 << 20))
        assert log.start() is None
        Path("/dev/kmsg").write_text("<3>NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=liar\n")
        with subprocess.Popen([sys.executable, "-S", "-c", HOG], stdin=subprocess.PIPE) as hog:
            (folder / "cgroup.procs").write_text(str(hog.pid))
            hog.communicate(b"go\n", timeout=30)
        assert hog.returncode == -9
        until_sync(lambda: any(_is(event, hog.pid) for event in got if event.kind == "oom_kill"), 10.0)
        assert "xid" not in [event.kind for event in got]
    finally:
        log.close()
        until_sync(lambda: not (folder / "cgroup.procs").read_text(), 10.0)
        folder.rmdir()

"""What NVIDIA GPUs report by themselves (XIDs, ECC errors), as events.

NVML's wait blocks in C, so it happens in a child; a thread of its own reads that child's lines. The
thread sleeps but for a look at the driver every half minute: a driver that is installed later, or that
was replaced, gets a new child. It survives whatever the driver does, and ends with the daemon.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping

from hosts import nvidia, pci
from hosts.child import Child, ChildFailed
from hosts.device_events import DeviceEvent
from hosts.nvidia_serving import Epoch, epoch
from hosts.reading import known
from hosts.roots import Roots
from hosts.xids import describe

CHECK = 30.0
"""Seconds between two looks at a driver that is absent, or whose child waits in silence."""
RETRY_MAX = 300.0
STEADY = 60.0
"""Seconds that a child must have lived for its successor to be started at once again."""
_START = 20.0
_LIFETIME = 60.0  # of the child's start, should the daemon be gone by then
_TEXTS = {
    "ecc_single_bit": "NVML: ECC corrected an error in the GPU's memory",
    "ecc_double_bit": "NVML: the GPU's memory has an error that ECC could not correct",
    "gpu_unavailable": "NVML: the GPU is not available",
    "recovery_action": "NVML: the driver asks for a recovery action",
    "recovery_over": "NVML: the driver asks for no recovery action any more",
}


class NvidiaEvents:
    """`start`, then `deliver` is called with each event from a thread of its own, until `close`."""

    def __init__(
        self,
        deliver: Callable[[DeviceEvent], None],
        roots: Roots | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        check: float = CHECK,
        retry_max: float = RETRY_MAX,
    ) -> None:
        self._deliver = deliver
        self._roots = roots or Roots()
        self._environ = dict(os.environ if environ is None else environ)
        self._check = check
        self._retry_max = retry_max
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.ready = threading.Event()
        """Set while a child waits for events."""
        self.starts = 0
        """How many children there were."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._forever, name="outrider-nvidia-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the child and the thread. May be called twice, and before `start`."""
        self._closed.set()
        with self._lock:
            if self._child is not None:
                self._child.end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def _forever(self) -> None:
        pause = self._check
        while not self._closed.is_set():
            sign = nvidia.look(self._roots, pci.gpus(self._roots), self._environ)
            if sign.library is None:
                self._closed.wait(self._check)  # nothing that could answer: no process is started for it
                continue
            driver, before = epoch(self._roots, sign.library), time.monotonic()
            self._one_child(sign, driver)
            self.ready.clear()
            pause = self._check if time.monotonic() - before >= STEADY else min(pause * 2, self._retry_max)
            self._rest(pause, sign, driver)

    def _rest(self, seconds: float, sign: nvidia.Sign, driver: Epoch) -> None:
        """Wait before the next child, or until the driver is another."""
        end = time.monotonic() + seconds
        while epoch(self._roots, sign.library) == driver and (left := end - time.monotonic()) > 0:
            if self._closed.wait(min(left, self._check)):
                return

    def _one_child(self, sign: nvidia.Sign, driver: Epoch) -> None:
        """Deliver what one child hears, until it ends or the driver is another."""
        try:
            child = Child("nvidia_events_child", [sign.library or ""], self._environ, _LIFETIME)
        except ChildFailed:
            return
        with self._lock:
            self._child = child
        self.starts += 1
        try:
            first = child.listen(time.monotonic() + _START)
            if first is None or "ready" not in first:
                return
            self.ready.set()
            while not self._closed.is_set():
                answer = child.listen(time.monotonic() + self._check)
                if answer is not None:
                    self._tell(answer)
                elif epoch(self._roots, sign.library) != driver:
                    return
        except ChildFailed:  # it ended, as it does when NVML fails
            return
        finally:
            with self._lock:
                self._child = None
            child.close()

    def _tell(self, answer: Mapping[str, object]) -> None:
        kind = answer.get("kind")
        if not isinstance(kind, str):
            return
        number = known(answer.get("data"))
        if kind == "recovery_action" and number == 0:
            kind = "recovery_over"  # what the driver asked for has been done
        xid = number if kind == "xid" else None
        text = f"NVML: {describe(xid)}" if kind == "xid" else _TEXTS.get(kind, f"NVML: {kind}")
        self._deliver(DeviceEvent("nvml", kind, pci.address(answer.get("pci")), xid, None, text, time.monotonic()))

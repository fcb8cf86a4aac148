"""Waits for what NVIDIA GPUs report by themselves, in a process that may hang or crash alone.

Arguments: LIFETIME LIBRARY. Started by `hosts.nvidia_events`. Writes one JSON object a line: first
`{"ready": [...]}` with the GPUs whose events it has registered for, or an error as `nvidia_child`
does; then an object for each event. It ends when standard input closes.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from hosts import nvidia_child
from hosts.child_main import Answers, limit_lifetime
from hosts.nvidia_reader import Reader

WAIT_MS = 60_000
"""NVML waits in C; the end of this process comes from another thread, so there is no need to wake often."""
_TIMEOUT = 10
_KINDS = {
    0x1: "ecc_single_bit",
    0x2: "ecc_double_bit",
    0x8: "xid",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}


def end_with_parent() -> None:
    """Leave the moment standard input closes, even while the main thread waits in C."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def register(nvml: Any, events: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Ask for the events of every GPU: which gave them, and why the last of the others did not.

    Only what the driver says it knows is asked for: a bit too many and it refuses them all.
    """
    registered, refused = [], {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            known = nvml.nvmlDeviceGetSupportedEventTypes(handle)
            wanted = sum(bit for bit in _KINDS if bit & known)
            if wanted:
                nvml.nvmlDeviceRegisterEvents(handle, wanted, events)
                bus = Reader(nvml, handle, str(index), {}).bus()
                registered.append({"index": index, "pci": bus, "types": wanted})
        except nvml.NVMLError as error:  # one lost GPU must not cost the others their events
            refused = nvidia_child.failure(error)
    return registered, refused


def wait(nvml: Any, events: Any, answers: Answers) -> None:
    """Write a line an event, until NVML fails."""
    while True:
        try:
            data = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
        except nvml.NVMLError as error:
            if error.value == _TIMEOUT:
                continue
            answers.send(nvidia_child.failure(error))
            return
        reader = Reader(nvml, data.device, "", {})
        kind = _KINDS.get(data.eventType, f"event_{data.eventType:#x}")
        answers.send({"kind": kind, "pci": reader.bus(), "data": data.eventData})


def main() -> None:
    """Entry point of the child."""
    lifetime, library = float(sys.argv[1]), sys.argv[2]
    limit_lifetime(lifetime)
    answers = Answers()
    end_with_parent()
    try:
        nvml = nvidia_child.load()
    except ImportError as error:
        answers.send({"error": "binding_missing", "text": str(error)})
        return
    failed = nvidia_child.start(nvml, library)
    if failed is not None:
        answers.send(failed)
        return
    try:
        events = nvml.nvmlEventSetCreate()
        registered, refused = register(nvml, events)
    except nvml.NVMLError as error:
        answers.send(nvidia_child.failure(error))
        return
    if not registered:
        answers.send(refused or {"error": 3, "text": "no GPU reports events"})
        return
    answers.send({"ready": registered})
    limit_lifetime(0.0)
    wait(nvml, events, answers)


if __name__ == "__main__":
    main()

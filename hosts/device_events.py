"""What a GPU or its driver reports by itself, whoever carried the news: NVML or the kernel's log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """One event. What the source does not name is None.

    `source` is `nvml` or `kernel`. `kind` is `xid`, `amdgpu_reset`, `amdgpu_fault`, `gpu_unavailable`,
    `recovery_action`, `ecc_single_bit`, `ecc_double_bit`, `thermal`, ... `pci` is `0000:01:00.0` in lower case,
    `number` the XID, `pid` the host's id of the process named. `text` is the line, or a sentence;
    `at` are the monotonic seconds at which it was read.
    """

    source: str
    kind: str
    pci: str | None
    number: int | None
    pid: int | None
    text: str
    at: float

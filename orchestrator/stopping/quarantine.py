"""Devices that are left alone because a dead engine's memory does not come back. Ends by itself.

Nothing is planned onto a quarantined device, and it is never reset by us: other programs may be on it. Each
reading of the host asks again whether what it is for has gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hosts.telemetry import Sample
from orchestrator.issues import Issues
from orchestrator.stopping import barrier, holders
from orchestrator.stopping.barrier import Look
from orchestrator.stopping.holders import Holder

ISSUE = "gpu_memory_held"


@dataclass(frozen=True, slots=True)
class Held:
    """What one device waits for: the end of what one engine left there."""

    device: str
    engine: str
    """The engine's name."""
    container: str
    deployment: str
    holders: tuple[Holder, ...]
    look: Callable[[Sample], Look]
    """How it is now, by a reading of the host."""

    @property
    def text(self) -> str:
        """One sentence for people."""
        return f"memory of GPU {self.device} is held by {self.engine}, which was removed: {holders.told(self.holders)}"


class Quarantine:
    """The devices of one host that are left alone."""

    def __init__(self, issues: Issues, mark: Callable[[Mapping[str, str]], None]) -> None:
        """`mark` shows in the host's facts what is left alone, by device, with its sentence."""
        self._issues = issues
        self._mark = mark
        self._held: dict[str, Held] = {}

    @property
    def held(self) -> Mapping[str, Held]:
        return self._held

    def of(self, container: str) -> Sequence[Held]:
        """What is held by this container."""
        return [held for held in self._held.values() if held.container == container]

    def hold(self, held: Held, evidence: Mapping[str, object]) -> None:
        """Leave a device alone from now on."""
        self._held[held.device] = held
        self._issues.open(
            ISSUE,
            held.device,
            held.text,
            hint=hint(held.holders)
            + "; other GPUs are used meanwhile, and this one again by itself as soon as its memory is free",
            evidence={"engine": held.engine, "holders": holders.evidence(held.holders), **evidence},
            deployment=held.deployment,
        )
        self._show()

    def on_sample(self, sample: Sample) -> None:
        """A reading of the host: what is over ends."""
        for held in list(self._held.values()):
            if held.device in sample.gpus and barrier.over(held.look(sample)):
                self.release(held.device)

    def release(self, device: str) -> None:
        """Use the device again."""
        held = self._held.pop(device, None)
        if held is not None:
            self._issues.close(
                ISSUE,
                device,
                f"GPU {device} is used again: what {held.engine} held is free",
                deployment=held.deployment,
            )
            self._show()

    def _show(self) -> None:
        self._mark({device: held.text for device, held in self._held.items()})


def hint(left: Sequence[Holder]) -> str:
    """What a person can do about holders."""
    pids = ",".join(str(holder.pid) for holder in left if holder.state is not None)
    if pids:
        look = f"`ps -o pid,stat,wchan,cmd -p {pids}` shows what it waits for"
        return f"{look}; a D state ends with the driver's call or a reboot"
    return "nothing is left to end: `outrider doctor` looks at the GPU; loading its driver anew or a reboot frees it"

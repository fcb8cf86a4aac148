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
    """The devices of one host that are left alone. One device may wait for several engines: what makes one unable to
    end is often the driver, and then it is so for all that were on the device."""

    def __init__(self, issues: Issues, mark: Callable[[Mapping[str, str]], None]) -> None:
        """`mark` shows in the host's facts what is left alone, by device, with its sentence."""
        self._issues = issues
        self._mark = mark
        self._held: dict[tuple[str, str], Held] = {}
        """By device and container, the oldest first."""

    @property
    def held(self) -> Mapping[str, Held]:
        """Devices that are left alone, each with the oldest of what it waits for."""
        return {held.device: held for held in reversed(self._held.values())}

    def of(self, container: str) -> Sequence[Held]:
        """What is held by this container."""
        return [held for held in self._held.values() if held.container == container]

    def hold(self, held: Held, evidence: Mapping[str, object]) -> None:
        """Leave a device alone from now on."""
        self._held[held.device, held.container] = held
        told = {"engine": held.engine, "holders": holders.evidence(held.holders), **evidence}
        self._tell(held.device, told, held.deployment)
        self._show()

    def on_sample(self, sample: Sample) -> None:
        """A reading of the host: what is over ends."""
        for held in list(self._held.values()):
            if held.device in sample.gpus and barrier.over(held.look(sample)):
                self.release(held)

    def release(self, held: Held) -> None:
        """What one container held is free; the device is used again if nobody else holds some of it."""
        if self._held.pop((held.device, held.container), None) is None:
            return
        if self._on(held.device):
            self._tell(held.device, {}, held.deployment)
        else:
            self._issues.close(
                ISSUE,
                held.device,
                f"GPU {held.device} is used again: what {held.engine} held is free",
                deployment=held.deployment,
            )
        self._show()

    def _on(self, device: str) -> list[Held]:
        return [held for held in self._held.values() if held.device == device]

    def _tell(self, device: str, evidence: Mapping[str, object], deployment: str) -> None:
        """Open the issue of a device, or bring it up to date."""
        there = self._on(device)
        who = [holder for held in there for holder in held.holders]
        self._issues.open(
            ISSUE,
            device,
            "; ".join(held.text for held in there),
            hint=hint(who)
            + "; other GPUs are used meanwhile, and this one again by itself as soon as its memory is free",
            evidence=evidence or {"engine": there[-1].engine, "holders": holders.evidence(who)},
            deployment=deployment,
        )

    def _show(self) -> None:
        devices = {held.device for held in self._held.values()}
        self._mark({device: "; ".join(held.text for held in self._on(device)) for device in sorted(devices)})


def hint(left: Sequence[Holder]) -> str:
    """What a person can do about holders."""
    pids = ",".join(str(holder.pid) for holder in left if holder.state is not None)
    if pids:
        look = f"`ps -o pid,stat,wchan,cmd -p {pids}` shows what it waits for"
        return f"{look}; a D state ends with the driver's call or a reboot"
    return "nothing is left to end: `outrider doctor` looks at the GPU; loading its driver anew or a reboot frees it"

"""Waiting for a device that is not there (yet), instead of doing without it.

What a model needs, `device_need` says. Each attempt to start it looks again at the whole machine; the
pauses between attempts are those of any failed start, up to five minutes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from hosts.facts import HostFacts
from orchestrator import device_need
from orchestrator.device_need import Device, Need
from orchestrator.errors import DeviceMissing
from orchestrator.issues import Issues
from orchestrator.models import ModelEntry
from orchestrator.plan import Plan

ISSUE = DeviceMissing.code


class Memory(Protocol):
    """Where it is kept on which devices a model last served (`orchestrator.store`)."""

    async def devices(self, deployment: str) -> Sequence[Device]: ...
    async def set_devices(self, deployment: str, devices: Sequence[Device], at: float) -> None: ...


class DeviceWait:
    """The devices that the models of one host need."""

    def __init__(
        self,
        *,
        facts: Callable[[], HostFacts],
        probe: Callable[[], Awaitable[None]],
        freshen: Callable[[], Awaitable[None]],
        need: Callable[[ModelEntry, Sequence[Device], str], Need | None],
        memory: Memory,
        issues: Issues,
    ) -> None:
        """`probe` looks at the machine again, after which `facts` has what it found; `freshen` only if there is
        a sign that something has changed."""
        self._facts = facts
        self._probe = probe
        self._freshen = freshen
        self._need = need
        self._memory = memory
        self._issues = issues

    async def check(self, entry: ModelEntry, planned: Plan | None = None, *, doubt: bool = False) -> bool:
        """Return when what the model needs is there; whether the devices that `planned` names are too.

        Raises `DeviceMissing` naming what is not there, after having looked at the machine again; with `doubt`
        it looks again in any case.
        """
        last = await self._memory.devices(entry.name)
        why = "it was proven on it"
        if not last and planned is not None:
            last, why = device_need.used_by(planned, self._facts()), "it is planned for it"
        wanted = self._need(entry, last, why)
        if doubt or self._lacks(wanted, planned):
            await self._probe()
        else:
            await self._freshen()
        facts = self._facts()
        lacking = None if wanted is None else device_need.missing(wanted, facts)
        if wanted is None or lacking is None:
            self.no_longer(entry.name)
            return planned is None or not device_need.absent(planned, facts)
        nearly = device_need.nearly(wanted, facts)
        text = f"{entry.name} waits for {lacking}: {wanted.why}" + ("" if nearly is None else f"; {nearly}")
        error = DeviceMissing(
            text,
            hint="`outrider doctor` says what is wrong with the device; the model starts by itself when"
            f" the device is there. To do without it: `outrider start --force {entry.name}`",
            evidence={
                "devices": [device.to_dict() for device in wanted.devices],
                "accelerators": [str(Device.of(a)) for a in facts.accelerators],
            },
        )
        self.waits(entry.name, error)
        raise error

    def _lacks(self, wanted: Need | None, planned: Plan | None) -> bool:
        facts = self._facts()
        if wanted is not None and device_need.missing(wanted, facts) is not None:
            return True
        return planned is not None and bool(device_need.absent(planned, facts))

    def waits(self, name: str, error: DeviceMissing) -> None:
        """Show that it waits."""
        self._issues.open(ISSUE, name, error.detail, hint=error.hint, evidence=error.evidence, deployment=name)

    def no_longer(self, name: str) -> None:
        """It has what it needs, or is not to run."""
        self._issues.close(ISSUE, name, deployment=name)

    async def proven(self, name: str, plan: Plan, at: float) -> None:
        """It serves with this plan: the plan's devices are what it needs from now on. Raises `DatabaseFailed`."""
        found = tuple(device_need.used_by(plan, self._facts()))
        if tuple(await self._memory.devices(name)) != found:
            await self._memory.set_devices(name, found, at)

    async def forget(self, name: str, at: float) -> None:
        """A person lets it do without. Raises `DatabaseFailed`."""
        await self._memory.set_devices(name, (), at)
        self.no_longer(name)

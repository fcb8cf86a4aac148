"""How the host's GPUs are, for whoever starts an engine. `orchestrator.device_watch` keeps it up to date."""

from __future__ import annotations

from collections.abc import Callable

from hosts.device_health import WELL, Health, Verdict
from hosts.facts import QUARANTINED, Accelerator, HostFacts
from orchestrator import device_policy
from orchestrator.decision import Decision
from orchestrator.deployment import Deployment
from orchestrator.device_need import Device
from orchestrator.device_policy import Gpu, Lost, Start, Wish
from orchestrator.models import ModelEntry
from orchestrator.plan import Plan
from orchestrator.views import Why

HELD = "gpu_memory_held"


class DeviceGate:
    """The verdicts as they are, and what follows for a start."""

    def __init__(self, facts: Callable[[], HostFacts], on_cpu: Callable[[ModelEntry], bool]) -> None:
        """`on_cpu` says whether a model's image is one for the CPU, by its owner's choice."""
        self._facts = facts
        self._on_cpu = on_cpu
        self.verdicts: dict[str, Verdict] = {}
        """By PCI address."""
        self.vendors: dict[str, str] = {}
        self.mismatch: Verdict | None = None
        """The driver's two halves do not fit."""

    def gpus(self) -> list[Gpu]:
        """Every GPU that is known of, those that could not be read included."""
        seen = {a.pci: a for a in self._facts().accelerators}
        return [
            Gpu(
                pci,
                seen[pci].vendor if pci in seen else self.vendors.get(pci, device_policy.NVIDIA),
                seen[pci].devices if pci in seen else (),
                self.verdicts.get(pci, WELL),
                seen=pci in seen,
                held=_held(seen[pci]) if pci in seen else None,
            )
            for pci in sorted(seen.keys() | self.verdicts.keys())
        ]

    def taken(self, plan: Plan) -> frozenset[str]:
        """The PCI addresses of the GPUs that a plan takes."""
        return frozenset(gpu.pci for gpu in self.gpus() if gpu.taken_by(plan.devices))

    def named(self, pci: str) -> str:
        """A GPU as a person knows it: name, address and UUID."""
        gpu = next((a for a in self._facts().accelerators if a.pci == pci), None)
        if gpu is None:
            return f"GPU {pci}"
        return f"{Device.of(gpu)}" + ("" if gpu.uuid is None else f" ({gpu.uuid})")

    def loss(self, pci: str, verdict: Verdict) -> str:
        """That a GPU is lost, and how that is known."""
        said, name = f"GPU {pci} is lost", self.named(pci)
        return (
            verdict.text.replace(said, f"{name} is lost") if said in verdict.text else f"{name} is lost: {verdict.text}"
        )

    def after_loss(self, plan: Plan) -> Decision[Lost]:
        """Whether a plan whose GPU is lost may be made anew for those that are left."""
        return device_policy.after_loss(plan.devices, self.gpus())

    def bar(self, deployment: Deployment) -> Why | None:
        """Why the deployment must not be started now; None when nothing is in the way."""
        lost = any(v.health is Health.LOST for v in self.verdicts.values())
        if self.mismatch is None and not lost and not any(_held(a) for a in self._facts().accelerators):
            return None
        wish = Wish(
            cpu=self._on_cpu(deployment.entry),
            devices=None if deployment.wanted is None else deployment.wanted.devices,
        )
        decision = device_policy.start(wish, self.gpus(), self.mismatch is not None)
        if decision.action is Start.GO:
            return None
        if decision.reason == Health.DRIVER_MISMATCH.value and self.mismatch is not None:
            return Why(decision.reason, self.mismatch.text, self.mismatch.hint)
        pci = str(decision.evidence["gpu"])
        if decision.reason == HELD:
            held = next(gpu.held for gpu in self.gpus() if gpu.pci == pci)
            return Why(HELD, held or "", "`outrider issues` names who holds it; it starts by itself when that is gone")
        verdict = self.verdicts[pci]
        return Why(decision.reason, self.loss(pci, verdict), verdict.hint)


def _held(gpu: Accelerator) -> str | None:
    text = gpu.details.get(QUARANTINED)
    return text if isinstance(text, str) else None

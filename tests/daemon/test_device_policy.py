"""Whether a start may go, and whose a report of a GPU is: the decisions alone."""

from __future__ import annotations

import pytest

from hosts.device_health import Health, Verdict
from orchestrator import device_policy
from orchestrator.device_policy import Gpu, Start, Suspect, Whose, Wish


def a_gpu(pci: str, health: Health = Health.OK, *, vendor: str = "nvidia", seen: bool = True) -> Gpu:
    return Gpu(pci, vendor, (f"dev-{pci}",) if seen else (), Verdict(health, health.value), seen)


WELL, GONE = a_gpu("a"), a_gpu("b", Health.LOST)
AMD = a_gpu("c", vendor="amd")
UNSEEN = a_gpu("d", Health.LOST, seen=False)


@pytest.mark.parametrize(
    ("wish", "gpus", "mismatch", "action", "reason"),
    [
        (Wish(False, ("dev-a",)), [WELL, GONE], False, Start.GO, "devices_well"),
        (Wish(False, ("dev-b",)), [WELL, GONE], False, Start.HOLD, "gpu_lost"),
        (Wish(False, ("dev-a", "dev-b")), [WELL, GONE], False, Start.HOLD, "gpu_lost"),
        (Wish(False, None), [WELL, GONE], False, Start.GO, "devices_well"),
        (Wish(False, None), [GONE], False, Start.HOLD, "gpu_lost"),
        (Wish(False, None), [UNSEEN], False, Start.HOLD, "gpu_lost"),
        (Wish(False, ()), [UNSEEN], False, Start.HOLD, "gpu_lost"),  # planned for the CPU without being asked
        (Wish(False, ()), [GONE], False, Start.GO, "devices_well"),
        (Wish(False, None), [], False, Start.GO, "devices_well"),
        (Wish(True, None), [GONE], True, Start.GO, "cpu"),
        (Wish(False, ("dev-a",)), [WELL], True, Start.HOLD, "driver_mismatch"),
        (Wish(False, ("nvidia.com/gpu=0",)), [], True, Start.HOLD, "driver_mismatch"),
        (Wish(False, None), [WELL], True, Start.HOLD, "driver_mismatch"),
        (Wish(False, None), [], True, Start.HOLD, "driver_mismatch"),
        (Wish(False, ()), [], True, Start.HOLD, "driver_mismatch"),
        (Wish(False, ()), [WELL], True, Start.GO, "devices_well"),
        (Wish(False, ("dev-c",)), [WELL, AMD], True, Start.GO, "devices_well"),
        (Wish(False, None), [WELL, AMD], True, Start.GO, "devices_well"),
    ],
)
def test_whether_a_start_may_go(wish: Wish, gpus: list[Gpu], mismatch: bool, action: Start, reason: str) -> None:
    decision = device_policy.start(wish, gpus, mismatch)
    assert (decision.action, decision.reason) == (action, reason)


def test_several_engines_on_a_gpu_are_not_told_apart_by_guessing() -> None:
    both = [Suspect("x", 1, "cx", True), Suspect("y", 2, "cy", True)]
    assert device_policy.whose(None, None, both).reason == "several_engines"
    assert device_policy.whose(2, None, both).evidence["engine"] == "y"
    assert device_policy.whose(3, "cx", both).evidence["engine"] == "x"
    assert device_policy.whose(3, None, both).action is Whose.NOBODYS

"""A driver that keeps a dead engine's memory, on a machine with two GPUs: a real engine in a real container, the real
NVML binding over a small library that plays the driver.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import gpu_rig
from tests.gpu_rig import ONE, TWO
from tests.hosts.trees import GIB, write
from tests.models import generate as g
from tests.stack_fixture import MakeStack
from tests.telling.golden import told

HOLDER = 4194301
"""A pid that no process has here."""


class Rig(gpu_rig.Rig):
    """A host with two RTX 3090s, and a process that holds memory of the first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 2)

    def process(self, container: str | None) -> None:
        """The holder, in this container; None: it has ended."""
        folder = self.tree.base / "proc" / str(HOLDER)
        shutil.rmtree(folder, ignore_errors=True)
        if container is not None:
            write(folder / "comm", "llama-server\n")
            write(folder / "cgroup", f"0::/machine.slice/libpod-{container}.scope/container\n")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(240)
def test_the_gpu_is_left_alone_the_next_model_goes_to_the_other_and_both_end_by_themselves(
    make_stack: MakeStack, rig: Rig, gpu_stand_in: str, test_models: Path
) -> None:
    busy = f"USED_1={4 * GIB}"  # so that the first model goes to the first GPU
    rig.play(busy)
    with make_stack(environ=rig.environ, gateway=False) as stack:
        for name in ("m", "n"):
            stack.define(name, test_models / g.TARGET, method="none", image=gpu_stand_in)
        assert stack.send("POST", "/api/v1/reload", {}).status_code == 200
        (view,) = stack.start("m")
        container = view["engine"]["container_id"]
        assert rig.given(stack.podman("inspect", container)) == [ONE]
        rig.process(container)
        rig.play(busy, f"PROCESSES_0={HOLDER}:{GIB}", f"USED_0={GIB}")
        stack.wait(lambda: _held(stack, container), 20, "its memory is seen")

        rig.process(None)  # it ends with its container, and the driver goes on listing it
        stack.want("m", "stopped")
        issue = stack.wait(lambda: _issue(stack), 60, "the GPU is left alone")
        assert issue["subject"] == ONE
        assert f"process {HOLDER} (llama-server, has ended, 1.00 GiB)" in issue["text"]
        assert issue["evidence"]["after_s"] >= 30
        wedged = stack.wait_state("m", "wedged", may_fail=True)
        assert wedged["reason"]["code"] == "wedged"
        assert container not in stack.containers()

        (other,) = stack.start("n")
        assert rig.given(stack.podman("inspect", other["engine"]["container_id"])) == [TWO]

        rig.play(busy)
        stack.wait(lambda: _issue(stack) is None, 20, "the GPU is used again")
        stack.wait_state("m", "stopped")
        told(stack, "m", "08-memory-held-on-a-gpu", without=("gpu_found",))


def _held(stack: Any, container: str) -> bool:
    samples = stack.get("/api/v1/telemetry")
    newest = samples[-1] if isinstance(samples, list) else samples["samples"][-1]
    return any(engine["gpu_memory"].get(ONE) for engine in newest["engines"])


def _issue(stack: Any) -> Any:
    return next((i for i in stack.get("/api/v1/issues") if i["code"] == "gpu_memory_held"), None)

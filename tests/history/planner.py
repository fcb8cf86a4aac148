"""The models of a history, and a planner that is made up: which GPU has room, and the ladder below the best plan."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from hosts.facts import QUARANTINED
from orchestrator.admission import Admission
from orchestrator.errors import DoesNotFit
from orchestrator.models import ModelEntry
from orchestrator.plan import Evidence, ExpectedMemory, Method, Plan, Planned, Rung
from tests.history.machine import GIB, HOST, SIZES, node

LONG = 10_000.0
HOST_LIMIT = 48 * GIB


@dataclass(frozen=True)
class Kind:
    """A model: on how many GPUs (0: in system memory) it takes how much on each, and how long it loads."""

    gpus: int
    size: int
    load_s: float
    priority: int = 0
    socket: bool = True
    """Else it has a port."""
    ttl_s: float | None = None
    """There on demand, it goes after so long; None: as `[demand]` says."""


KINDS = {
    "alpha": Kind(1, 14 * GIB, 20.0, 5),
    "beta": Kind(1, 9 * GIB, 5.0, socket=False),
    "gamma": Kind(2, 8 * GIB, 60.0, ttl_s=LONG),
    "delta": Kind(0, 30 * GIB, 9.0),
    "epsilon": Kind(1, 19 * GIB, 12.0, ttl_s=LONG),
    "zeta": Kind(0, 25 * GIB, 7.0, ttl_s=LONG),
}


def entry(name: str) -> ModelEntry:
    variant = {"name": "v", "format": "gguf", "quantisation": "F32", "path": f"{name}/x.gguf"}
    return ModelEntry.model_validate(
        {"name": name, "priority": KINDS[name].priority, "ttl_s": KINDS[name].ttl_s, "variants": [variant]}
    )


"""On demand they do not all fit, neither on the GPUs nor into `HOST_LIMIT`."""
LADDER = (
    ("plan", "the plan as it is", Method.DFLASH, 4),
    ("fewer_slots", "2 slots instead of 4", Method.DFLASH, 2),
    ("method_ngram", "drafted by ngram", Method.NGRAM, 4),
    ("method_none", "no speculation", Method.NONE, 4),
    ("fewer_slots", "no speculation, and 2 slots", Method.NONE, 2),
)


def _launching(plan: Plan, env: dict[str, str], method: Method, slots: int) -> Plan:
    tokens = 4 if method is not Method.NONE else 0
    launch = {**env, "METHOD": method.value, "SLOTS": str(slots)}
    return dataclasses.replace(plan, method=method, draft_tokens=tokens, parallel=slots, env=launch)


class Planner:
    """The GPU with the most room, else (as an earlier plan would have it) the first one that is not left alone."""

    def __init__(self, admission: Admission, taste: dict[str, int]) -> None:
        self._admission = admission
        self.taste = taste
        """By model: which revision of it is configured."""

    def entry(self, name: str) -> ModelEntry | None:
        return None

    def find(self, name: str) -> ModelEntry:
        return entry(name)

    def load_prior(self, plan: Plan) -> float:
        return 1.0

    def load_limit(self, plan: Plan, seen: float | None) -> float:
        return 120.0

    async def plan(
        self,
        entry: ModelEntry,
        *,
        speculate: bool = True,
        running: Plan | None = None,
        fetch: object = None,
        choose: Callable[[Planned], Planned] = lambda found: found,
    ) -> Plan:
        await asyncio.sleep(0.02)
        kind, facts = KINDS[entry.name], self._admission.facts_for(entry.name)
        size = kind.size if speculate else kind.size - 3 * GIB
        usable = [a for a in facts.accelerators if QUARANTINED not in a.details]
        best = sorted(usable, key=lambda a: (-(a.memory_free or 0), a.pci))[: kind.gpus]
        if len(best) < kind.gpus:
            raise DoesNotFit(f"{entry.name} needs {kind.gpus} GPUs")
        gpus = sorted(a.pci for a in best)
        where = gpus or [HOST]
        env = {f"SIZE_{list(SIZES).index(device)}": str(size) for device in where}
        env |= {"LOAD_S": str(kind.load_s)}
        plan = Plan(
            model=entry.name,
            variant="v",
            runtime="llama.cpp",
            runtime_version=None,
            image="sha256:" + "0" * 64,
            method=Method.DFLASH,
            draft_tokens=4,
            drafter=None,
            context=1,
            parallel=4,
            argv=("--rev", str(self.taste.get(entry.name, 0))),
            env={},
            socket=kind.socket,
            devices=tuple(node(gpu) for gpu in gpus),
            mounts=(),
            expected_memory=ExpectedMemory(size, 0, 0, 0, 0, size, None, devices=max(1, kind.gpus)),
            evidence=Evidence.UNTRIED,
        )
        rungs = [
            Rung(change, text, _launching(plan, env, method, slots))
            for change, text, method, slots in LADDER
            if speculate or method is Method.NONE
        ]
        chosen = choose(Planned(rungs[0].plan, ladder=tuple(rungs))).plan
        assert chosen is not None
        return chosen

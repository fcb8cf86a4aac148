"""Looking at the machine: every source at once, with a deadline each; none can hang or break the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hosts import pci
from hosts.bounded import Stuck, bounded
from hosts.facts import HostFacts
from hosts.probe import probe
from orchestrator.doctor.machine import NO_FACTS, Machine, Podman, Units, Wanted
from orchestrator.doctor.sources import (
    cdi,
    clock,
    disks,
    firewall,
    images,
    kernel,
    network,
    people,
    podman,
    trial,
    units,
)
from orchestrator.doctor.sources.look import Look, Unseen

STORAGE = "/var/lib/containers/storage"
DEADLINES: Mapping[str, float] = {
    "facts": 8.0,
    "podman": 8.0,
    "trial": 12.0,
    "units": 4.0,
    "firewall": 7.0,
    "time": 7.0,
    "proxies": 4.0,
    "environment": 7.0,
}
"""Seconds for each source; others have `DEADLINE`. What takes longer is not known."""
DEADLINE = 3.0
DEAR = frozenset({"trial"})
"""Sources that do something on the machine, which nobody asked for when the daemon looks by itself."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked at: where, and what the configuration says. `facts` where somebody has them already."""

    look: Look = field(default_factory=Look)
    wanted: Wanted = field(default_factory=Wanted)
    places: Mapping[str, str] = field(default_factory=dict)
    sockets: tuple[str, ...] = ("/run/podman/podman.sock",)
    facts: HostFacts | None = None
    now: float | None = None
    skip: Collection[str] = ()
    unseen: Mapping[str, str] = field(default_factory=dict)


def collect(question: Question, only: Collection[str] | None = None) -> Machine:
    """The machine as it is; blocks for a few seconds at most. `only` names the sources that are wanted."""
    unseen: dict[str, str] = dict(question.unseen)
    unseen |= dict.fromkeys(question.skip, "it is not looked at by itself; `outrider doctor` does")
    found: dict[str, Any] = {}
    first, second = _first(question), _second(question, found)
    wanted = {*first, *second} if only is None else {*only, "system"}  # every fix is in the words of the system
    if wanted & set(second):
        wanted |= STANDS_ON
    for sources in (first, second):
        threads = [
            threading.Thread(target=_one, args=(name, work, found, unseen, question.look), daemon=True)
            for name, work in sources.items()
            if name in wanted and name not in unseen
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # each has its own deadline
    machine = Machine(who=question.look.who, wanted=question.wanted, unseen=unseen)
    return replace(machine, **found)


STANDS_ON = frozenset({"facts", "units", "podman"})
"""The sources that others are made of."""
Sources = Mapping[str, Callable[[], Any]]


def _first(question: Question) -> Sources:
    look = question.look
    ports = tuple(port for _, port in question.wanted.exposed)
    return {
        "facts": lambda: question.facts or probe(look.roots, environ=look.environ, deadline=DEADLINES["facts"] - 1),
        "system": lambda: kernel.system(look),
        "bus": lambda: pci.gpus(look.roots),
        "kernel": lambda: kernel.kernel(look),
        "cdi": lambda: cdi.cdi(look),
        "toolkit": lambda: podman.toolkit(look),
        "podman": lambda: podman.podman(look, question.sockets),
        "trial": lambda: trial.trial(look),
        "units": lambda: units.units(look),
        "accounts": lambda: people.accounts(look),
        "nodes": lambda: people.nodes(look),
        "firewall": lambda: firewall.firewall(look, ports),
        "time": lambda: clock.clock(look, question.now),
        "selinux": lambda: kernel.selinux(look),
    }


def _second(question: Question, found: Mapping[str, Any]) -> Sources:
    """What needs to know the first: asked when `found` has it, or when it is clear that it never will."""
    look = question.look

    def of_podman() -> Podman:
        known: Podman = found.get("podman", Podman())
        return known

    return {
        "limits": lambda: people.limits(look, found.get("units", Units())),
        "disks": lambda: disks.disks(look, {**question.places, "storage": of_podman().root or STORAGE}),
        "proxies": lambda: network.proxies(look, found.get("units", Units())),
        "environment": lambda: (
            *network.environment(look, found.get("units", Units())),
            *(images.settings(look) if of_podman().version else ()),
        ),
        "images": lambda: images.images(found.get("facts", NO_FACTS)),
    }


def _one(name: str, work: Callable[[], Any], found: dict[str, Any], unseen: dict[str, str], look: Look) -> None:
    """One source. Whatever it raises is a reason not to know; a defect of ours is one as well."""
    try:
        found[name] = bounded(f"doctor-{name} {look.roots.proc}", DEADLINES.get(name, DEADLINE), work)
    except (Unseen, Stuck) as error:
        unseen[name] = str(error)
    except Exception as error:
        unseen[name] = f"{type(error).__name__}: {error}"

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
    look = question.look
    unseen: dict[str, str] = dict(question.unseen)
    unseen |= dict.fromkeys(question.skip, "it is not looked at by itself; `outrider doctor` does")
    found: dict[str, Any] = {}

    def take(*sources: tuple[str, Callable[[], Any]]) -> None:
        asked = [(name, work) for name, work in sources if name not in unseen and (only is None or name in only)]
        threads = [
            threading.Thread(target=_one, args=(name, work, found, unseen, look), daemon=True) for name, work in asked
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    first: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("facts", lambda: question.facts or probe(look.roots, environ=look.environ, deadline=DEADLINES["facts"] - 1)),
        ("system", lambda: kernel.system(look)),
        ("bus", lambda: pci.gpus(look.roots)),
        ("kernel", lambda: kernel.kernel(look)),
        ("cdi", lambda: cdi.cdi(look)),
        ("toolkit", lambda: podman.toolkit(look)),
        ("podman", lambda: podman.podman(look, question.sockets)),
        ("trial", lambda: trial.trial(look)),
        ("units", lambda: units.units(look)),
        ("accounts", lambda: people.accounts(look)),
        ("nodes", lambda: people.nodes(look)),
        ("firewall", lambda: firewall.firewall(look, tuple(port for _, port in question.wanted.exposed))),
        ("time", lambda: clock.clock(look, question.now)),
        ("selinux", lambda: kernel.selinux(look)),
    )
    second = ("facts", "units", "podman")
    wanted = only
    if only is not None and not set(only) <= {name for name, _ in first}:
        only = {*only, *second}  # what is looked at second stands on these
    take(*first)
    known_facts: HostFacts = found.get("facts", NO_FACTS)
    known_units: Units = found.get("units", Units())
    known_podman: Podman = found.get("podman", Podman())
    places = {**question.places, "storage": known_podman.root or STORAGE}
    only = wanted
    take(
        ("limits", lambda: people.limits(look, known_units)),
        ("disks", lambda: disks.disks(look, places)),
        ("proxies", lambda: network.proxies(look, known_units)),
        ("environment", lambda: network.environment(look, known_units)),
        ("images", lambda: images.images(known_facts)),
    )
    machine = Machine(who=look.who, wanted=question.wanted, unseen=unseen)
    return replace(machine, **found)


def _one(name: str, work: Callable[[], Any], found: dict[str, Any], unseen: dict[str, str], look: Look) -> None:
    """One source. Whatever it raises is a reason not to know; a defect of ours is one as well."""
    try:
        found[name] = bounded(f"doctor-{name} {look.roots.proc}", DEADLINES.get(name, DEADLINE), work)
    except (Unseen, Stuck) as error:
        unseen[name] = str(error)
    except Exception as error:
        unseen[name] = f"{type(error).__name__}: {error}"

"""What must hold at any moment of a history, whoever did what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from containers import labels as container_labels
from orchestrator.admission import HOST
from orchestrator.restarting.choice import SAFER
from orchestrator.restarting.standing import PLAIN, Key
from orchestrator.stopping.barrier import LOST
from orchestrator.views import Event, State
from tests.history.daemon import GROUPS
from tests.history.gateway import Request
from tests.history.machine import GIB, SIZES, Process
from tests.history.planner import HOST_LIMIT, KINDS, LADDER

if TYPE_CHECKING:
    from orchestrator.actor import Actor
    from tests.history.history import History

NOTED = 1.0
"""Seconds after which what a daemon learned is in its database, if that can be written."""
SEEN = 20.0
"""Seconds after which a quarantine whose cause has gone must be over: four readings of the host."""
CLEANED = 200.0
"""Seconds after its end in which an engine is cleaned up, if nothing is in the way: the load of the next one in the
same step and the barrier's patience are among them."""
BY_ITSELF = frozenset({"evicted", "idle_unload", "called"})
"""What Outrider does to a model without having been asked, by code in the journal."""


class Checks:
    """The observer of one history; what it finds goes to `history.wrong`."""

    def __init__(self, history: History) -> None:
        self._h = history
        self.left: dict[str, dict[tuple[str, int], float]] = {}
        """By model the rungs that were given up, and when that was seen."""
        self.held_back: set[str] = set()
        """Models that failed while they were paused: a person has to ask for them, or another daemon starts."""
        self._untouched: set[str] = set()
        """Models that were paused and had no engine when this daemon began, and that nobody has asked for since."""
        self._given_up: set[str] = set()
        """Engines that a daemon which died was ending: what it had sent is done."""
        self._held_since: dict[str, float] = {}
        self._calm_since = 0.0
        """Since when no daemon died and Podman answers."""

    def _say(self, text: str) -> None:
        self._h.wrong.append(text)

    # what happens

    def emitted(self, event: Event) -> None:
        """The journal."""
        name = event.deployment
        if name not in KINDS:
            return
        paused = self._h.paused(name)
        if paused and event.code in BY_ITSELF:
            self._say(f"{name} is paused: {event.code}: {event.text}")
        actor = self._h.daemon.registry.get(name)
        asked = actor._replan is not None or actor._retire or actor._mailbox.qsize()
        if paused and event.code == "failed" and "action" in event.evidence and not asked and not self._serves(name):
            self.held_back.add(name)
        if event.code == "switch_taken_back":  # what a person asked for is undone
            self.held_back.discard(name)
        if event.code == "climbed_up":
            self.left.pop(name, None)
        if event.code in ("failed", "climbed_down"):
            self._note_rungs(name)

    def _serves(self, name: str) -> bool:
        return self._h.daemon.registry.get(name).deployment.serving_engine is not None

    def _note_rungs(self, name: str) -> None:
        ladder = self._h.daemon.registry.get(name)._steps.ladder
        for given_up in ladder._standing.left:
            self.left.setdefault(name, {}).setdefault(_rung(given_up.key), self._h.machine.now)

    def asked(self, name: str) -> None:
        """A person asked for it."""
        self.held_back.discard(name)
        self._untouched.discard(name)

    def resumed(self) -> None:
        self.held_back = {name for name in self.held_back if self._h.paused(name)}
        self._untouched = {name for name in self._untouched if self._h.paused(name)}

    def disturbed(self) -> None:
        """Something is in the way of a clean-up."""
        self._calm_since = self._h.machine.now

    def daemon_died(self) -> None:
        """What it had no time to note, or nowhere to, is forgotten, and may be."""
        now, database = self._h.machine.now, self._h.database
        self.held_back.clear()
        self.disturbed()
        engines = [e for a in self._h.daemon.registry.all() for e in a.deployment.engines]
        self._given_up |= {e.id for e in engines if e.failed or e.state is State.STOPPING}
        for name, rungs in list(self.left.items()):
            if database.full or database.was_full_after > min(rungs.values(), default=now):
                del self.left[name]
            else:
                self.left[name] = {rung: at for rung, at in rungs.items() if now - at > NOTED}

    def daemon_born(self) -> None:
        """It knows what a person paused. What the one before had sent is done all the same."""
        there = {c.spec.labels[container_labels.DEPLOYMENT] for c in self._h.machine.containers.values()}
        self._untouched = {name for name in KINDS if self._h.paused(name)} - there

    def launched(self, process: Process) -> None:
        """An engine's process begins."""
        name, machine = process.deployment, self._h.machine
        who = f"{name}-{process.generation}"
        if process.rung in self.left.get(name, {}):
            self._say(f"{who} is launched with {process.rung}, which was given up: {self.left[name]}")
        if name in self.held_back and self._h.paused(name):
            self._say(f"{who} is started by itself, though it failed and is paused")
        if name in self._untouched and self._h.paused(name):
            self._say(f"{who} is started by a daemon that begins, though it is paused")
        for group in GROUPS:
            others = {p.deployment for p in machine.processes if p.alive and not p.stuck} & set(group.members) - {name}
            others -= {p.deployment for p in machine.processes if p.container in machine.leaving()}
            if name in group.members and others:
                self._say(f"{who} is loaded beside {others}, of the group {group.name}")
        for device, held in self._h.daemon.quarantine.held.items():
            if process.size.get(device) and machine.now - self._held_since.get(device, machine.now) > NOTED:
                self._say(f"{who} is loaded on {device}: {held.text}")

    def broken(self, process: Process, requests: list[Request]) -> None:
        """Outrider ended an engine that was answering."""
        actor = self._h.daemon.registry.get(process.deployment)
        d = actor.deployment
        engine = next((e for e in d.engines if e.id == process.engine), None)
        if process.engine in self._given_up:
            return
        if engine is not None and (engine.failed or engine.verdict is not None or engine.state is State.WEDGED):
            return
        begun, limit = self._h.front.drains.get(process.engine, (self._h.machine.now, 1.0))
        evicted = d.leaving is not None
        if evicted or self._h.machine.now - begun < limit:
            state = "nobody's" if engine is None else engine.state.value
            self._say(
                f"{process.deployment}-{process.generation} ({state}) is ended under {len(requests)} requests"
                f" {self._h.machine.now - begun:.1f} s after its drain began, of {limit:g} s: {d.leaving}, {d.reason}"
            )

    # how it is

    def look(self) -> None:
        """Whether all is as it may be."""
        self._look_at_memory()
        self._look_at_quarantines()
        for actor in self._h.daemon.registry.all():
            self._look_at(actor)

    def _look_at_memory(self) -> None:
        admission = self._h.daemon.admission
        for device, size in SIZES.items():
            promised = sum(c.size for c in admission.promised().values() if device in c.devices)
            if promised > size:
                self._say(f"{promised} bytes of {device} are promised, and it has {size}")
        claimed = sum(c.size for c in admission.claims().values() if HOST in c.devices)
        if claimed > HOST_LIMIT:
            self._say(f"{claimed / GIB:.1f} GiB of system memory are promised or taken of {HOST_LIMIT / GIB:.0f}")

    def _look_at_quarantines(self) -> None:
        machine, daemon = self._h.machine, self._h.daemon
        held = daemon.quarantine.held
        self._held_since = {device: self._held_since.get(device, machine.now) for device in held}
        issues = {i.subject: i for i in daemon.context.issues.list() if i.code == "gpu_memory_held"}
        if set(issues) != set(held):
            self._say(f"left alone are {sorted(held)}, and issues are open for {sorted(issues)}")
        for process in machine.processes:
            seen = not process.alive and process.loaded((process.ended_at or 0.0) - SEEN)
            calm = (process.ended_at or 0.0) - SEEN > self._calm_since  # this daemon has read what it had
            if seen and calm and self._long_ago(process):
                for device, kept in process.kept.items():
                    if device != HOST and kept > LOST and device not in held:
                        name = f"{process.deployment}-{process.generation}"
                        self._say(f"{device} is not left alone, and {name} left memory there")
        for device, one in held.items():
            there = [p for p in machine.processes if p.container == one.container]
            pids = {p.pid for p in there if p.alive}
            named: Any = issues[device].evidence["holders"] if device in issues else ()
            others = {key[1] for key in daemon.quarantine._held if key[0] == device}
            if not {h["pid"] for h in named} <= {p.pid for p in machine.processes if p.container in others}:
                self._say(f"{device} is held by {pids}, and the issue names {named}")
            gone = not pids and all(p.kept.get(device, 0) <= LOST for p in there)
            cause = machine.now - machine.healed > SEEN and machine.now - self._held_since[device] > SEEN
            if gone and cause and machine.now - machine.last_end(one.container) > SEEN:
                self._say(f"{device} is still left alone, and nothing of {one.engine} is left there")

    def _long_ago(self, process: Process) -> bool:
        return self._h.machine.podman == "there" and self._h.machine.now - (process.ended_at or 0.0) > CLEANED

    def _look_at(self, actor: Actor) -> None:
        d, now = actor.deployment, self._h.machine.now
        engine = d.serving_engine
        for one in d.engines:
            self._h.look_at_state(one)
        route = d.route(now)
        admitting = [e.generation for e in route.engines if e.admit]
        if len(admitting) > 1 or (admitting and (engine is None or admitting != [engine.generation])):
            self._say(f"{d.name} admits at {admitting}, and {d.serving} serves")
        wishes = self._h.wishes
        if d.name in wishes and d.name not in self._h.unsure and d.desired is not wishes[d.name]:
            self._say(f"{d.name} is to be {wishes[d.name]}, and {d.desired} is desired")


def _rung(key: Key) -> tuple[str, int]:
    """A key of the ledger as method and slots."""
    plain = key.change == PLAIN
    assert plain or key.change in SAFER
    return next((m.value, s) for change, _, m, s in LADDER if m.value == key.method and (change in SAFER) is not plain)

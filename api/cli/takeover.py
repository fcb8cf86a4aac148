"""`outrider import --takeover UNIT`: a systemd unit's model becomes ours, or the unit runs on.

Shown first: what the unit starts, what would be different here, what would be launched. With `--write` it is done; the
daemon does the starting, so it has to run.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from api.cli import processes
from api.cli.offline import REFUSED
from api.cli.options import Common, at
from api.cli.output import note, print_json, say
from orchestrator.errors import DaemonUnreachable, NotFound, OutriderError, Refused, TimedOut, UsageError, exit_code
from orchestrator.takeover.course import TAKEN_BACK, Act, Ours

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from api.cli.client import Client
    from orchestrator.config import Config
    from orchestrator.decision import Decision
    from orchestrator.importing import Here, Item
    from orchestrator.models import ModelEntry
    from orchestrator.takeover.carrying import Outcome
    from orchestrator.takeover.units import Unit

STOPPED = 60.0
"""Seconds for an engine that nobody uses yet to be gone, before the unit is started again."""
_TELLING = {
    Act.STOP_UNIT: "{unit} is stopped",
    Act.START_OURS: "{name} is started",
    Act.DISABLE_UNIT: "{unit} is disabled: it no longer comes up with the machine",
    Act.STOP_OURS: "{name} is stopped again ({reason}), which may take up to {stopped:g} s",
    Act.START_UNIT: "{unit} is started again",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for: to do it, within how many seconds, and whether to disable the unit then."""

    write: bool
    within: float
    disable: bool
    as_json: bool


def take_over(options: Common, name: str, here: Here, config: Config, asked: Asked) -> None:
    """What the command does."""
    from api.cli import importcommand
    from orchestrator.importing import Kind, read
    from orchestrator.takeover.units import Systemctl

    if not (asked.within > 0 and math.isfinite(asked.within)):
        raise UsageError(f"--within {asked.within:g}", hint="give the seconds that the model may take to be ready")
    manager = Systemctl()
    unit = manager.unit(name)
    imported = read(manager.text(unit), here, Kind.QUADLET)
    item = imported.items[0] if imported.items else None
    if item is None or item.entry is None:
        _refused(item, unit, asked.as_json)
        return
    entry = next((m for m in config.models if m.name == item.entry.name), None)
    ours = entry or importcommand.alone([item.entry], config.models)[0]
    said = importcommand.planned_here(ours, _without(here, unit), config, options.paths)
    document: dict[str, Any] = {
        "unit": dataclasses.asdict(unit),
        "model": ours.name,
        "here": said,
        "within_s": asked.within,
        "item": imported.to_dict()["items"][0],
        "would": list(_would(unit, ours, asked, config, known=entry is not None)),
        "done": False,
    }
    if not asked.as_json:
        importcommand.show(item, said)
        for line in document["would"]:
            say(line)
    fits = said is None or (said["fits"] and said.get("weights_here", True))
    if asked.write and unit.triggers:
        raise Refused(
            f"{', '.join(unit.triggers)} would start {unit.name} again",
            hint=f"`systemctl stop {' '.join(unit.triggers)}` first, and disable what should not come back",
        )
    if fits and asked.write:
        _carry_out(options, unit, ours, document, asked, known=entry is not None)
        return
    if asked.as_json:
        print_json(document)
    else:
        note("nothing was touched: --write does it" if fits else f"nothing is touched: {_why_not(ours, said)}")
    if not fits:
        raise typer.Exit(REFUSED)


def _why_not(entry: ModelEntry, said: Mapping[str, Any] | None) -> str:
    if said is not None and said["fits"]:
        return (
            f"the weights of {entry.name} are not here. `systemctl cat UNIT | outrider import - --write`,"
            f" `outrider reload` and `outrider model pull {entry.name}` bring them"
        )
    return f"{entry.name} cannot run here"


def _refused(item: Item | None, unit: Unit, as_json: bool) -> None:
    from api.cli import importcommand

    if as_json:
        print_json({"unit": dataclasses.asdict(unit), "model": None, "done": False, "item": _shown(item)})
    elif item is not None:
        importcommand.show(item, None)
    if not as_json:
        note(f"{unit.name} goes on: what it starts is no model that could be run here")
    raise typer.Exit(REFUSED)


def _shown(item: Item | None) -> Mapping[str, object] | None:
    if item is None:
        return None
    reason = None if item.reason is None else {"code": item.reason.code, "text": item.reason.text}
    return {"outcome": item.outcome.value, "what": item.what, "reason": reason}


def _without(here: Here, unit: Unit) -> Here:
    """The host as it is once the unit has gone: what it takes counts as free. Which of the GPUs' memory is its own
    is not known here, so all of it does; the daemon plans with what is really free then."""
    if here.facts is None or not unit.active:
        return here
    memory = here.facts.memory
    available = min(memory.total, memory.available + (unit.memory or 0))
    cards = tuple(dataclasses.replace(a, memory_free=a.memory_total) for a in here.facts.accelerators)
    facts = dataclasses.replace(here.facts, memory=dataclasses.replace(memory, available=available), accelerators=cards)
    return dataclasses.replace(here, facts=facts)


def _would(unit: Unit, entry: ModelEntry, asked: Asked, config: Config, *, known: bool) -> Iterator[str]:
    """The steps, in a person's words."""
    lines = [f"{unit.name} is stopped" if unit.active else f"{unit.name} does not run: nothing to stop"]
    if unit.active and unit.needing:
        lines[0] += f", and with it what needs it: {', '.join(unit.needing)}"
    if unit.triggers:
        lines[0] += f"; but {', '.join(unit.triggers)} would start it again: stop that first"
    back = f"{unit.name} is started again" if unit.active else "it is stopped again"
    lines.append(f"{entry.name} is started; if it is not ready within {asked.within:g} s, {back}")
    if known:
        lines[-1] += f" ({entry.name} is defined already: as it is defined, not as the unit has it)"
    if unit.enabled and asked.disable:
        lines.append(f"once {entry.name} is ready, {unit.name} is disabled")
    elif unit.generated:
        lines.append(f"{unit.source or 'its file'} stays: remove it, or {unit.name} comes up with the machine again")
    elif unit.enabled:
        lines.append(f"{unit.name} stays enabled, and comes up with the machine again")
    lines.append(
        f"who asked {unit.name} asks the gateway from then on: http://{config.gateway.listen}/v1, {entry.name}"
    )
    if unit.stale:
        lines.append(f"the file of {unit.name} was changed since systemd read it: what is shown is the file")
    return (f"{number}. {line}" for number, line in enumerate(lines, 1))


class _Deployment:
    """Ours, by way of the daemon."""

    def __init__(self, client: Client, name: str, unit: str) -> None:
        self._client, self._name, self._unit = client, name, unit

    def free(self) -> tuple[int, Mapping[str, int]]:
        samples = self._client.get("/telemetry", params={"limit": 1})
        cards = samples[-1]["accelerators"] if samples else []
        known = {card["pci"]: card["memory_free"] for card in cards if card["memory_free"] is not None}
        return (samples[-1]["sequence"] if samples else 0), known

    def start(self) -> None:
        self._want("running", f"takeover from {self._unit}")

    def _want(self, state: str, why: str) -> None:
        path = at("deployments", self._name, "desired")
        self._client.call("PUT", path, body={"state": state}, timeout=60, because=why)

    def state(self) -> tuple[Ours, str | None]:
        try:
            view = self._client.get(at("deployments", self._name))
        except DaemonUnreachable as error:  # it may be restarted at any moment; the bound ends this
            return Ours.COMING, error.detail
        except NotFound as error:
            return Ours.FAILED, error.detail
        why = view.get("reason") or {}
        if view["state"] == "ready":
            return Ours.READY, None
        stands = view["state"] in ("failed", "waiting_device", "wedged") and view.get("next_attempt_s") is None
        return (Ours.FAILED if stands else Ours.COMING), why.get("text")

    def stop(self, why: str) -> None:
        """A daemon that is being restarted has its time to come back: two engines on one memory are worse."""
        end, asked = time.monotonic() + STOPPED, False
        while True:
            try:
                if not asked:
                    self._want("stopped", f"{TAKEN_BACK}: {why.replace('_', ' ')}")
                    asked = True
                if self._client.get(at("deployments", self._name))["state"] == "stopped":
                    return
            except NotFound:
                return  # it never came so far
            except (DaemonUnreachable, TimedOut):
                if time.monotonic() >= end:
                    raise
            if time.monotonic() >= end:
                raise TimedOut(
                    f"{self._name} is not gone after {STOPPED:g} s", hint=f"`outrider ps`, `outrider why {self._name}`"
                )
            processes.pause(0.1)


@contextmanager
def _ends_lead_back() -> Iterator[None]:
    """A terminal that closes and a `kill` lead back to the unit, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _carry_out(
    options: Common, unit: Unit, entry: ModelEntry, document: dict[str, Any], asked: Asked, *, known: bool
) -> None:
    from api.cli import importcommand
    from api.cli.client import Client
    from orchestrator.takeover.carrying import Takeover
    from orchestrator.takeover.units import Systemctl

    def tell(decision: Decision[Act], said: str | None) -> None:
        text = _TELLING[decision.action].format(
            unit=unit.name, name=entry.name, reason=decision.reason, stopped=STOPPED
        )
        note(text if said is None else f"{text}: {said}")

    with Client(options.paths) as client:
        client.get("/deployments")  # nothing is written, and nothing stopped, for a daemon that does not answer
        if not known:
            [file] = importcommand.written_to([entry], options.paths)
            note(f"wrote {file}")
        if not known or entry.name not in {model["name"] for model in client.get("/models")}:
            client.call("POST", "/reload", body={"dry_run": False}, timeout=60)
        with _ends_lead_back():
            outcome = Takeover(
                unit,
                Systemctl(),
                _Deployment(client, entry.name, unit.name),
                bound=asked.within,
                disable=asked.disable,
                now=time.monotonic,
                pause=processes.pause,
                tell=tell,
            ).carry_out()
    document |= dataclasses.asdict(outcome)
    error = None if outcome.done else _failure(unit, entry, outcome)
    if asked.as_json:
        print_json(document)
        if error is not None:
            note(str(error))
            raise typer.Exit(exit_code(error))
    elif error is not None:
        raise error
    else:
        say(f"{entry.name} is ready, in the place of {unit.name}")
    if error is None and outcome.disabled is False:
        note(f"{unit.name} IS STILL ENABLED, and would come up beside it with the machine: {outcome.said}")
        note(f"`systemctl disable {unit.name}`")


def _failure(unit: Unit, entry: ModelEntry, outcome: Outcome) -> OutriderError:
    now = {
        True: f"{unit.name} runs again",
        False: f"{unit.name} DOES NOT RUN: `systemctl status {unit.name}`",
        None: f"{unit.name} is as it was",
    }[outcome.unit_back]
    if outcome.ours_left:
        now += f"; {entry.name} MAY STILL RUN BESIDE IT: `outrider stop {entry.name}` once the daemon answers"
    from orchestrator.takeover.units import TakeoverFailed

    said = f": {outcome.said}" if outcome.said else ""
    text = f"{entry.name} did not take over from {unit.name} ({outcome.reason}{said}); {now}"
    hint = f"`outrider why {entry.name}` tells the story; its definition stays"
    return TimedOut(text, hint=hint) if outcome.reason == "not_ready_in_time" else TakeoverFailed(text, hint=hint)

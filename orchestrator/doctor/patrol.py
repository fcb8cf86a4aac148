"""The daemon's own look at the machine: at its start and every few hours, problems become issues.

Only what is cheap and does nothing on the machine, and not what the daemon watches anyway. Warnings are for
people who ask: `outrider doctor`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from hosts.facts import HostFacts
from orchestrator.doctor import rules
from orchestrator.doctor.collect import Question, collect
from orchestrator.doctor.findings import Finding, Report, Severity, judge
from orchestrator.issues import HOST, Issues
from orchestrator.telling.amounts import count

T = TypeVar("T")

WATCHED = frozenset({"disk_low", "gpu_lost", "podman_missing", "podman_socket"})
"""Rules about what housekeeping, the device watch and the reconcile loop see within seconds."""


class Patrol:
    """Opens issues for what the doctor calls a problem, and closes those that it opened."""

    def __init__(self, issues: Issues, facts: Callable[[], HostFacts], ask: Callable[[HostFacts | None], Question]):
        """`ask` makes the question; the first one gets the facts that the daemon has just probed, later ones none."""
        self._issues = issues
        self._facts: Callable[[], HostFacts] | None = facts
        self._ask = ask
        self._open: set[tuple[str, str]] = set()

    async def look(self) -> str:
        """One look; what came of it, for the log. The machine is asked in a thread, and never twice at once."""
        facts, self._facts = self._facts, None
        report = await aside(lambda: self._judge(self._ask(facts() if facts is not None else None)))
        found = problems(report)
        self._take_up(found, report)
        return f"{count(len(found), 'problem')}, {count(len(report.findings) - len(found), 'warning')}"

    def _judge(self, question: Question) -> Report:
        """Blocks for some seconds at most."""
        mine = [rule for rule in rules.load() if rule.code not in WATCHED]
        return judge(collect(question), mine)

    def _take_up(self, found: Mapping[tuple[str, str], list[Finding]], report: Report) -> None:
        issues = self._issues
        for key, findings in found.items():
            if key not in self._open and issues.holds(*key):
                continue  # somebody who watches this more closely said so already
            first = findings[0]
            text = "; ".join(finding.finding for finding in findings)
            hint = f"`{first.fix[0]}`; `outrider doctor --rule {_rule(first.code)}` says more"
            issues.open(*key, text, hint=hint, evidence=first.evidence)
            self._open.add(key)
        checked = frozenset(report.checked)
        for code, subject in [key for key in self._open if key not in found]:
            if _rule(code) in checked:  # else nobody knows whether it still holds
                issues.close(code, subject)
                self._open.discard((code, subject))


def problems(report: Report) -> dict[tuple[str, str], list[Finding]]:
    """The problems by code and subject: a GPU's address where the evidence names one, else the host."""
    found: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in report.findings:
        if finding.severity is Severity.PROBLEM:
            pci = finding.evidence.get("pci")
            found[finding.code, pci if isinstance(pci, str) else HOST].append(finding)
    return dict(found)


def _rule(code: str) -> str:
    """The rule that finds a code: its own, or the one that passes the probe's codes on."""
    known = {rule.code for rule in rules.load()}
    return code if code in known else "probe"


async def aside(work: Callable[[], T]) -> T:
    """`work()` in a thread that the end of the process does not wait for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if done.done() else set_it())

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            failed = error
            settle(lambda: done.set_exception(failed))
        else:
            settle(lambda: done.set_result(result))

    threading.Thread(target=run, name="outrider-doctor", daemon=True).start()
    return await done

"""What the end of an engine did to requests, by the gateway's count: answers that were broken off, and requests without
an answer yet, which are put to another engine."""

from __future__ import annotations

from orchestrator.deployment import Deployment
from orchestrator.events import Journal
from orchestrator.gateway_link import GatewayLink
from orchestrator.telling.amounts import count

BROKEN, AGAIN = "broken_off", "asked_again"


def tell(d: Deployment, whose: str, gateway: GatewayLink, journal: Journal) -> None:
    """Put into the journal what was lost since it was last told of; nothing, if nothing was."""
    broken, again = _more(d, gateway, BROKEN), _more(d, gateway, AGAIN)
    if broken:
        was, who = ("was", "its client was") if broken == 1 else ("were", "their clients were")
        text = f"{count(broken, 'answer')} of {whose} {was} broken off, and {who} told so"
        journal.emit("lifecycle", "answers_broken_off", text, deployment=d.name, evidence={BROKEN: broken})
    if again:
        waits = "waits for the next engine, or goes" if again == 1 else "wait for the next engine, or go"
        text = f"{count(again, 'request')} that {whose} had not begun to answer {waits} to another"
        journal.emit("lifecycle", "asked_again", text, deployment=d.name, evidence={AGAIN: again})


def _more(d: Deployment, gateway: GatewayLink, what: str) -> int:
    total = gateway.total(d.name, what)
    before, d.lost_told[what] = d.lost_told[what], total
    return max(0, total - before)

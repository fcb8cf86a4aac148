"""The gateway has gone quiet: clients may not be served, and the best witness of life is missing."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.issue_rules._sight import HOST, Found, Sight

CODE = "gateway_away"
LONG = 30.0
"""Seconds without a report: it reports twice a second, and a restart takes it two."""


def detect(sight: Sight) -> Iterator[Found]:
    quiet = sight.gateway_quiet_s
    if quiet is not None and quiet >= LONG and any(sight.wanted()):
        yield Found(
            HOST,
            "the gateway no longer reports: clients may get no answers, and nobody sees whether tokens flow",
            "`systemctl restart outrider-gateway.service`; with `outrider up` look at gateway.log",
            {"quiet_s": round(quiet, 1), "quiet_s_limit": LONG},
        )


def withdraw(subject: str) -> str:
    return "the gateway reports again"

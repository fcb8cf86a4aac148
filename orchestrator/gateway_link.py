"""The daemon's side of the gateway: drain requests out, traffic reports in.

The gateway may not be there (it is a process of its own, and a daemon serves nothing
itself): then nobody routes to an engine, and a drain is done at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from orchestrator.careful import pinned_socket
from orchestrator.clock import Clock
from orchestrator.rates import Rate
from orchestrator.timing import Timing

GATEWAYS_KEPT = 4
DATA_KEPT = 3600.0
"""Seconds for which it is remembered when an engine that no report names gave data."""


@dataclass(frozen=True, slots=True)
class Drained:
    """How a drain ended: `in_flight` is None when no gateway was there to know."""

    done: bool
    in_flight: int | None
    reason: str


@dataclass(slots=True)
class ModelTraffic:
    """What the gateway saw of one model. Counters are totals over all gateway processes."""

    rate: Rate
    in_flight: int = 0
    waiting: int = 0
    totals: dict[str, int] = field(default_factory=dict)


class GatewayLink:
    """Drains engines through the gateway and keeps what it reports."""

    def __init__(self, socket: Path, clock: Clock, timing: Timing) -> None:
        self._socket = socket
        self._clock = clock
        self._timing = timing
        self._models: dict[str, ModelTraffic] = {}
        self._engines: dict[str, Mapping[str, Any]] = {}
        self._last: dict[str, Mapping[str, Mapping[str, Any]]] = {}
        """The last counters of each gateway process, by its id: two overlap while one replaces the other."""
        self._last_at: float | None = None
        self._data_at: dict[str, float] = {}
        self._reported = asyncio.Event()
        """Of the next report."""

    # reports in

    def report(self, report: Mapping[str, Any]) -> None:
        """Take one report. Garbage in a field counts as nothing seen; a new gateway starts its counters anew."""
        now = self._clock.now()
        before = self._last.pop(str(report.get("gateway_id")), None)
        if before is None and not self._is_young(report.get("uptime_s")):
            # what a gateway saw before this daemon first heard of it says nothing about the present rate
            before = _counters(report.get("models"))
        present = _counters(report.get("models"))
        for name, seen in present.items():
            self._count(name, (before or {}).get(name, {}), seen, now)
        self._last[str(report.get("gateway_id"))] = present
        while len(self._last) > GATEWAYS_KEPT:
            del self._last[next(iter(self._last))]
        engines = report.get("engines")
        self._engines = {
            str(k): v for k, v in (engines if isinstance(engines, Mapping) else {}).items() if isinstance(v, Mapping)
        }
        self._last_at = now
        for engine, seen in self._engines.items():
            ago = seen.get("last_data_s_ago")
            if isinstance(ago, int | float) and not isinstance(ago, bool):
                self._data_at[engine] = max(self._data_at.get(engine, 0.0), now - max(0.0, ago))
        self._data_at = {e: at for e, at in self._data_at.items() if e in self._engines or now - at < DATA_KEPT}
        self._reported.set()
        self._reported = asyncio.Event()

    def _is_young(self, uptime: object) -> bool:
        """Whether a gateway began within the rate's window, so that all it counted is recent."""
        return isinstance(uptime, int | float) and uptime <= self._timing.rate_window

    def _count(self, name: str, before: Mapping[str, Any], seen: Mapping[str, Any], now: float) -> None:
        traffic = self._model(name)
        for key in ("arrivals", "completed", "failed", "rejected", "cancelled", "broken_off", "asked_again"):
            more = max(0, _int(seen.get(key)) - _int(before.get(key)))
            traffic.totals[key] = traffic.totals.get(key, 0) + more
            if key == "arrivals":
                traffic.rate.add(more, now)
        traffic.in_flight = _int(seen.get("in_flight"))
        traffic.waiting = _int(seen.get("waiting"))

    def _model(self, name: str) -> ModelTraffic:
        if name not in self._models:
            self._models[name] = ModelTraffic(Rate(self._timing.rate_window))
        return self._models[name]

    @property
    def heard(self) -> bool | None:
        """Whether the gateway reported lately; None when it never did."""
        if self._last_at is None:
            return None
        return self._clock.now() - self._last_at < max(10 * self._timing.report_period, 2.0)

    @property
    def quiet_s(self) -> float | None:
        """Seconds since the gateway's last report; None when it never reported."""
        return None if self._last_at is None else self._clock.now() - self._last_at

    def rate(self, model: str) -> float:
        """Arrivals a second of one model."""
        return self._model(model).rate.value(self._clock.now())

    def in_flight(self, model: str) -> int:
        return self._model(model).in_flight if self.heard else 0

    def last_in_flight(self, model: str) -> int:
        """The same by the gateway's last word, however old: one that has fallen silent may still be answering."""
        return self._model(model).in_flight

    def arrivals(self, model: str) -> int:
        """Requests for the model that gateways have seen since this daemon hears them."""
        return self._model(model).totals.get("arrivals", 0)

    def waiting(self, model: str) -> int:
        return self._model(model).waiting if self.heard else 0

    def engine_in_flight(self, engine: str) -> int:
        return _int(self._engines.get(engine, {}).get("in_flight")) if self.heard else 0

    async def left(self, engine: str) -> None:
        """Wait until no report has a request at this engine, which is gone; not longer than two reports take."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * self._timing.report_period):
                while self.engine_in_flight(engine):
                    await self._reported.wait()

    def total(self, model: str, what: str) -> int:
        """One of a model's counters."""
        return self._model(model).totals.get(what, 0)

    def totals(self) -> Mapping[str, Mapping[str, int]]:
        """Counters a model, for metrics."""
        return {name: dict(traffic.totals) for name, traffic in self._models.items()}

    def engines(self) -> Mapping[str, Mapping[str, Any]]:
        """The gateway's last words on each engine, for metrics."""
        return dict(self._engines)

    def told(self, engine: str) -> tuple[float, Mapping[str, Any]] | None:
        """What a gateway last said of an engine, and when (monotonic); None when none was heard lately."""
        return (self._last_at, self._engines.get(engine, {})) if self.heard and self._last_at is not None else None

    def data_at(self, engine: str) -> float | None:
        """When an engine last gave data to a client (monotonic), by all gateways: two overlap at an upgrade."""
        return self._data_at.get(engine)

    def forget(self, model: str) -> None:
        """The model is no longer defined."""
        self._models.pop(model, None)

    # drains out

    async def drain(self, engine: str, limit: float, revision: int) -> Drained:
        """Ask the gateway to admit nothing more to `engine` and wait until its in-flight is 0, at most `limit` s.

        `revision` is the routing table's: a table that is still on its way with an older one must not
        open the engine again.
        """
        deadline = limit + self._timing.gateway_call
        asked = {"engine": engine, "timeout_s": limit, "revision": revision}
        try:
            with pinned_socket(self._socket) as socket:
                transport = httpx.AsyncHTTPTransport(uds=socket, retries=0)
                async with httpx.AsyncClient(transport=transport, timeout=deadline, trust_env=False) as http:
                    answer = await http.post("http://gateway/drain", json=asked)
                    seen = answer.json()
        except (httpx.ConnectError, httpx.ConnectTimeout, FileNotFoundError, ConnectionRefusedError):
            return Drained(True, None, "no_gateway")
        except (httpx.HTTPError, ValueError, OSError) as error:
            return Drained(False, None, f"gateway_unanswering: {type(error).__name__}")
        in_flight = _int(seen.get("in_flight")) if isinstance(seen, Mapping) else 0
        if answer.status_code == httpx.codes.OK:
            return Drained(True, in_flight, "drained")
        return Drained(False, in_flight, "drain_timed_out")


def _counters(models: object) -> dict[str, Mapping[str, Any]]:
    found = models if isinstance(models, Mapping) else {}
    return {str(name): dict(seen) for name, seen in found.items() if isinstance(seen, Mapping)}


def _int(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0

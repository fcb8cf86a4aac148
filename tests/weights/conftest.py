"""A hub on loopback, and a store that pulls from it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.models import Format
from orchestrator.store_files import steadily
from orchestrator.weights import room
from orchestrator.weights.choosing import Source, Wanted
from orchestrator.weights.fetching import Pace
from orchestrator.weights.hub import Hub
from orchestrator.weights.meter import Meter
from orchestrator.weights.pulling import Part, Puller, Settled
from orchestrator.weights.token import Token
from tests.weights import hub as hubs

PACE = Pace(call=5.0, stall=0.5, retry=0.02, retry_max=0.1)


def some_bytes(size: int, seed: int = 1) -> bytes:
    """Bytes that are the same each time, and like no others."""
    return random.Random(seed).randbytes(size)


def safetensors(weights: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
    """The files of a repository that no one should take whole."""
    return {
        "config.json": b'{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}',
        "generation_config.json": b"{}",
        "tokenizer.json": some_bytes(5000, 7),
        "tokenizer_config.json": b'{"a": 1}',
        "README.md": b"read me",
        "modeling_evil.py": b"import os",
        "pytorch_model.bin": some_bytes(9000, 8),
        "original/consolidated.safetensors": some_bytes(9000, 9),
        **(weights or {"model.safetensors": some_bytes(200_000)}),
    }


@pytest.fixture
def hub() -> Iterator[hubs.HubServer]:
    with hubs.running() as server:
        yield server


@dataclass
class Place:
    """A store, an (empty) cache, and a hub."""

    folder: Path
    server: hubs.HubServer
    boot: str = "boot-1"
    token: Token | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def puller(self, pace: Pace = PACE) -> Puller:
        hub = Hub(self.server.endpoint, self.token, deadline=pace.call)
        return Puller(self.store, hub, self.cache, pace=pace, clock=SystemClock(), boot=self.boot)

    async def settle(self, repository: str, wanted: Wanted, revision: str | None = None) -> Settled:
        meter = Meter(SystemClock().now)
        return await self.puller().settle(Part("it", Source(repository, "main", wanted)), revision, meter)

    async def pull(
        self,
        repository: str,
        wanted: Wanted | None = None,
        revision: str | None = None,
        *,
        pace: Pace = PACE,
        meter: Meter | None = None,
        quota: int | None = None,
    ) -> Settled:
        """What the daemon does for one part."""
        meter = meter or Meter(SystemClock().now)
        puller = self.puller(pace)
        source = Source(repository, "main", wanted or Wanted(Format.SAFETENSORS))
        settled = await puller.settle(Part("it", source), revision, meter)
        await steadily(_room, self.store, settled.missing, quota)
        meter.total = settled.total
        return await puller.carry_out(settled, meter)

    def partials(self) -> dict[str, int]:
        """The files on their way, and how long they are."""
        return {p.name: p.stat().st_size for p in self.store.rglob("*.partial")}


def _room(store: Path, size: int, quota: int | None) -> None:
    room.check(store, size, "it", quota=quota, low_water=0.0)


@pytest.fixture
def place(tmp_path: Path, hub: hubs.HubServer) -> Place:
    made = Place(tmp_path, hub)
    made.store.mkdir()
    return made

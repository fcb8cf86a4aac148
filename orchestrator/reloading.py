"""Taking up another configuration: validate, show, apply only what changed.

A bad file keeps the old configuration. Engines of models that did not change never notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

from orchestrator import config as configuration
from orchestrator.config import Config
from orchestrator.config_cautions import cautions
from orchestrator.config_diff import Action, diff, model_of
from orchestrator.context import Cause, Context
from orchestrator.errors import ConfigError
from orchestrator.planning import Planning
from orchestrator.registry import Registry
from orchestrator.views import Change, ReloadResult, Why

SHOWN = 5
"""Changes that the journal's line names; all are in its evidence."""


class Reloading:
    """The present configuration and the way to the next one. One reload at a time."""

    def __init__(self, config: Config, context: Context, planning: Planning, registry: Registry) -> None:
        self._config = config
        self._context = context
        self._planning = planning
        self._registry = registry
        self._one = asyncio.Lock()
        self.problem: Why | None = None
        """Why the last reload was refused."""

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._config

    async def reload(self, *, dry_run: bool) -> ReloadResult:
        """Raises `ConfigError` and changes nothing when a file is bad."""
        async with self._one:
            try:
                new = await asyncio.to_thread(configuration.load, self._context.paths)
            except ConfigError as error:
                self._context.journal.emit("config", error.code, str(error), evidence=error.evidence)
                self.problem = Why(error.code, error.detail, error.hint)
                raise
            changes = diff(self._config, new)
            if not dry_run:
                self.problem = None
                await self._take_up(new, changes)
            return ReloadResult(not dry_run, changes, self._cautioned(new, told=not dry_run))

    def caution(self) -> None:
        """Say what is odd about the configuration in force."""
        self._cautioned(self._config, told=True)

    def _cautioned(self, config: Config, *, told: bool) -> tuple[str, ...]:
        known = config.laid_over(self._planning.shipped)
        file = str(self._context.paths.config_file)
        found = cautions(config, file, known.model, [m.name for m in known.models])
        for one in found if told else ():
            self._context.journal.emit("config", "config_caution", f"{one}; {one.hint}", evidence=asdict(one))
        return tuple(f"{one}; {one.hint}" for one in found)

    async def _take_up(self, new: Config, changes: Sequence[Change]) -> None:
        self._config = new
        self._planning.configure(new)
        self._context.guard.configure(new.guard)
        self._context.demand.configure(new.demand, new.group)
        if changes:
            self._context.journal.emit(
                "config",
                "reloaded",
                _summary(changes),
                evidence={"changes": [f"{c.subject}: {c.kind} {c.detail}" for c in changes][:50]},
            )
        defaults_changed = any(model_of(c) is None and c.action == Action.APPLY for c in changes)
        launches = {model_of(c) for c in changes if c.action == Action.APPLY}
        limit = self._context.timing.drain + self._context.timing.shutdown
        for name in self._registry.names():
            entry = self._planning.entry(name)
            actor = self._registry.get(name) if entry is not None and entry.name == name else None
            if entry is None or actor is None:
                await self._registry.undefine(name, limit)
            elif actor.deployment.entry != entry or defaults_changed:
                # a model that a file no longer overrides falls back to the catalogue's
                fallen_back = new.model(name) is None
                replan = defaults_changed or fallen_back or name in launches
                await actor.define(entry, Cause("reload", "configuration") if replan else None)
        for entry in new.models:
            if self._registry.own(entry.name) is None:
                self._registry.define(entry)


def _summary(changes: Sequence[Change]) -> str:
    """The first changes in words, and how many more there are."""
    told = ", ".join(f"{c.subject} {c.kind}" for c in changes[:SHOWN])
    more = len(changes) - SHOWN
    return f"{told} and {more} more" if more > 0 else told

"""What a person asks of a deployment: each verb notes it, says it in the journal, and tells the actor."""

from __future__ import annotations

from orchestrator.actor import Actor
from orchestrator.context import Cause, Context
from orchestrator.crash_points import Place, reached
from orchestrator.deployment import Deployment
from orchestrator.errors import DeviceRefused, Refused, UsageError
from orchestrator.registry import Registry
from orchestrator.views import DeploymentView, Desired, Why


class Verbs:
    """The verbs of `orchestrator.facade` that change a deployment."""

    def __init__(self, context: Context, registry: Registry) -> None:
        self._c = context
        self._registry = registry

    async def set_desired(self, name: str, desired: Desired, *, author: str, force: bool = False) -> DeploymentView:
        if force and desired is not Desired.RUNNING:
            raise UsageError("force starts a model; there is nothing to force about a stop")
        actor = self._registry.get(name) if desired is Desired.STOPPED else self._registry.known(name)
        d = actor.deployment
        if desired is Desired.RUNNING and not force:
            _refuse_suspected(actor)
            _refuse_barred(d, self._c.devices.bar(d))
        async with actor.asked:
            if force:
                await self._force(actor, author)
            if (d.desired, d.desired_by) != (desired, author):
                await self._c.store.set_desired(d.name, desired, author, self._c.clock.wall())
                reached(Place.WISH_NOTED)
                self._say(actor, f"desired_{desired}", f"{author} wants {d.name} {desired}", author)
            await self._admit_again(actor)
            await actor.set_desired(desired, author, force=force)
        return actor.view()

    async def _force(self, actor: Actor, author: str) -> None:
        """A person takes it upon themselves: what speaks against a start is put away, and named."""
        d = actor.deployment
        evidence = {} if d.suspicion is None else d.suspicion.evidence
        if d.suspicion is not None or not d.loading:  # else the mark is of the load that goes on
            await self._c.marks.forget(d.name, f"{author} starts {d.name} all the same")
        await self._c.needs.forget(d.name, self._c.clock.wall())
        self._c.journal.emit(
            "desired",
            "start_forced",
            f"{author} forces {d.name} to start",
            deployment=d.name,
            evidence={"by": author, **evidence},
        )

    async def restart(self, name: str, *, author: str) -> DeploymentView:
        actor = self._meant_to_run(name)
        why = self._c.devices.bar(actor.deployment)
        if why is not None:
            raise DeviceRefused(why.code, f"{name} would not come up again: {why.text}", hint=why.hint)
        async with actor.asked:
            self._say(actor, "restart", f"{author} restarts {name}", author)
            await self._admit_again(actor)
            await actor.restart()
        return actor.view()

    async def apply(self, name: str, *, author: str) -> DeploymentView:
        actor = self._meant_to_run(name)
        await actor.replan(Cause("apply", author))
        return actor.view()

    async def drain(self, name: str, *, author: str) -> DeploymentView:
        actor = self._meant_to_run(name)
        async with actor.asked:
            await self._c.store.set_drained(actor.deployment.name, author, self._c.clock.wall())
            self._say(actor, "drain", f"{author} drains {name}", author)
            await actor.drain()
        return actor.view()

    async def _admit_again(self, actor: Actor) -> None:
        """A drain outlives the daemon, so its end has to be noted too."""
        if actor.deployment.drained:
            await self._c.store.clear_drained(actor.deployment.name)

    def _meant_to_run(self, name: str) -> Actor:
        actor = self._registry.get(name)
        if actor.deployment.desired is Desired.STOPPED:
            raise Refused(f"{name} is not meant to run", hint=f"`outrider start {name}` starts it")
        _refuse_suspected(actor)
        return actor

    def _say(self, actor: Actor, code: str, text: str, author: str) -> None:
        self._c.journal.emit("desired", code, text, deployment=actor.deployment.name, evidence={"by": author})


def _refuse_barred(d: Deployment, why: Why | None) -> None:
    """Who asks for a start now is told why there will be none; what is meant to run already waits by itself."""
    if why is not None and d.serving_engine is None:
        raise DeviceRefused(why.code, f"{d.name} cannot be started: {why.text}", hint=why.hint)


def _refuse_suspected(actor: Actor) -> None:
    """Nothing but a forced start brings up what the host may have crashed of; what serves is left in peace."""
    d = actor.deployment
    if d.suspicion is not None and d.serving_engine is None:
        raise d.suspicion.refusal()

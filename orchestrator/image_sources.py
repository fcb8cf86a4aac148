"""Asking for an image where it may be: mirrors of ours, those of Podman's own settings, its registry.

What a registry says beforehand (digest, bytes, layers) costs two small answers and saves a pull that
could not end well. A place that does not answer us may answer Podman, whose network and logins can be
others, so only a clear no is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from containers import logins, registries, registry
from containers.errors import AuthFailed, FetchError, NotOffered, RateLimited
from containers.logins import Login
from containers.references import Reference
from containers.registries import Place
from containers.registry import Offer
from orchestrator.config import ImageSettings


@dataclass(frozen=True, slots=True)
class Source:
    """One place to pull an image from: what it is called there, and what was said of it (None: nothing)."""

    place: Place
    reference: Reference
    offer: Offer | None = None
    mirror: bool = False
    """Whether it is a mirror of Outrider's settings, of which Podman knows nothing."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where to pull from, best first; the logins for there; places that were passed over, and why."""

    sources: tuple[Source, ...]
    logins: Mapping[str, Login] = field(repr=False)
    passed: tuple[tuple[str, FetchError], ...] = ()

    @property
    def offer(self) -> Offer | None:
        """What the first place that answered said."""
        return next((s.offer for s in self.sources if s.offer is not None), None)


class ImageSources:
    """`settings` is asked for anew each time: a reload may have changed it."""

    def __init__(self, settings: Callable[[], ImageSettings]) -> None:
        self._settings = settings

    async def find(self, reference: Reference) -> Found:
        """Where this image is to be had.

        Raises `NotOffered` and `RateLimited` when that is the last word of its registry, and `AuthFailed`
        for a file of logins that is no good.
        """
        settings = self._settings()
        ours, theirs = await asyncio.to_thread(self._places, reference, settings.mirrors)
        known = await asyncio.to_thread(_logins, reference, (*ours, *theirs), settings.auth_file)
        sources: list[Source] = []
        passed: list[tuple[str, FetchError]] = []
        for place in ours:
            try:
                offer = await registry.look_up(reference, place, known.get(place.host))
            except FetchError as error:
                passed.append((place.host, error))
                continue
            there = Reference(place.host, place.repository, None, offer.digest)
            sources.append(Source(place, there, offer, mirror=True))
        sources.append(await self._itself(reference, theirs, known, passed))
        return Found(tuple(sources), known, tuple(passed))

    async def _itself(
        self,
        reference: Reference,
        places: tuple[Place, ...],
        known: Mapping[str, Login],
        passed: list[tuple[str, FetchError]],
    ) -> Source:
        """The image under its own name, which Podman resolves by its own settings."""
        for place in places:
            try:
                offer = await registry.look_up(reference, place, known.get(place.host))
            except FetchError as error:
                passed.append((place.host, error))
            else:
                return Source(place, reference, offer)
        last = passed[-1][1]
        refused = [error for host, error in passed if host in {p.host for p in places}]
        if isinstance(last, RateLimited) or all(isinstance(e, NotOffered) for e in refused):
            raise last
        return Source(places[-1], reference)

    @staticmethod
    def _places(reference: Reference, mirrors: Mapping[str, str]) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
        rules = registries.load()
        ours: tuple[Place, ...] = ()
        mirror = mirrors.get(reference.registry)
        if mirror is not None:
            host, _, prefix = mirror.partition("/")
            repository = "/".join(part for part in (prefix, reference.repository) if part)
            # how to speak to it (TLS or not, a mirror's mirror) is for registries.conf to say
            ours = registries.places(Reference(host, repository), rules)[-1:]
        return ours, registries.places(reference, rules)


def _logins(reference: Reference, places: tuple[Place, ...], file: str | None) -> Mapping[str, Login]:
    """The logins for these places by host. A login is for its own registry and is shown to no other."""
    found = {}
    for place in places:
        login = logins.find(Reference(place.host, place.repository), file)
        if login is None and place is places[-1] and place.host != reference.registry:
            # Podman was told that the name lives elsewhere: who logged in used the name
            login = logins.find(reference, file)
        if login is not None:
            found[place.host] = login
    return found


__all__ = ["AuthFailed", "Found", "ImageSources", "Source"]

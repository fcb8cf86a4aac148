"""What the catalogue holds: images, and what is known of combinations. Values that decide nothing. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field

from orchestrator.catalogue.restrictions import Identifier, Restriction
from orchestrator.catalogue.versions import VersionRange, in_range, version_numbers
from orchestrator.config_problems import nearest
from orchestrator.errors import NotFound
from orchestrator.kinds import Backend, KvType
from orchestrator.models import Alias, Frozen, ModelEntry, Name, Runtime
from orchestrator.plan import Evidence, Method

__all__ = ["EMBEDDED_IMAGE", "Catalogue", "Combination", "ImageEntry", "VersionRange", "in_range", "version_numbers"]

EMBEDDED_IMAGE = "localhost/outrider/llama-cpu"
"""The CPU engine that is built from the wheel on the host itself."""


class ImageEntry(Frozen):
    """A container image that can run a runtime, and what it needs of the host.

    `vendor` None is an image for the CPU. `arch` are patterns (`sm_[89]*`); none means any of
    the vendor's. `speed` is a prior: single-stream decode next to llama.cpp on the same device.
    `digest` is what the reference is to mean, until a person pins another. What is known to go wrong with it
    is a `Restriction` that names it.

    What it needs of the host: `machine` are the architectures it was built for, in the words of images
    (`amd64`); `driver` the oldest NVIDIA driver, `cuda` the CUDA version of its libraries (a driver of the
    same major version runs it), `kernel` the oldest kernel. `compressed_bytes` is what a pull transfers,
    `size_bytes` what it takes unpacked. `needs_source` says who says so.
    """

    name: str
    reference: str
    runtime: Runtime
    backend: Backend
    version: str | None = None
    at_least: str | None = None
    """The oldest version that a moving tag can mean by now, where `version` is not known."""
    vendor: str | None = None
    arch: tuple[str, ...] = ()
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    machine: tuple[str, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    kernel: str | None = None
    compressed_bytes: int | None = Field(default=None, gt=0)
    size_bytes: int | None = Field(default=None, gt=0)
    needs_source: str | None = None
    profile: str = "strict"
    prefix: tuple[str, ...] = ()
    shm: int | None = Field(default=None, gt=0)
    speed: float = Field(default=1.0, gt=0)
    by_name: bool = False
    """Only where a person names it: it does what another one does, or is for few."""
    source: str

    @property
    def least_version(self) -> str | None:
        """What it certainly is: its version, else the oldest that its tag can mean."""
        return self.version or self.at_least

    def serves(self, vendor: str | None, arch: str | None) -> bool:
        """Whether it was built for such a device (None, None: the CPU)."""
        if self.vendor != vendor:
            return False
        return not self.arch or (arch is not None and any(fnmatchcase(arch, pattern) for pattern in self.arch))


class Combination(Frozen):
    """What is known of a model, variant, runtime, device and method together.

    Names are patterns; where several cover a candidate, `choosing.best` says which one speaks. `gain` is
    single-stream decode next to no speculation, `crossover` the number of running requests from which
    speculation no longer pays. A `proven` past `expires` counts as `untried`, and so does one for another version.
    """

    id: Identifier
    model: str = "*"
    variant: str = "*"
    runtime: Runtime
    image: str = "*"
    arch: str = "*"
    tensor_parallel: int | None = Field(default=None, gt=0)
    """How many GPUs shared the model, where that matters."""
    method: Method
    drafter: str = "*"
    evidence: Evidence
    versions: VersionRange | None = None
    draft_tokens: int | None = Field(default=None, gt=0, le=64)
    gain: float | None = Field(default=None, gt=0)
    crossover: int | None = Field(default=None, gt=0)
    measured: tuple[tuple[Annotated[int, Field(gt=0)], Annotated[float, Field(gt=0)]], ...] = ()
    """(requests at once, tokens a second of all together), as the source has them. For people: the planner goes by
    `gain` and `crossover`, for tokens a second of somebody else's machine say little about this one."""
    context_limit: int | None = Field(default=None, gt=0)
    kv: KvType | None = None
    attention_backend: str | None = None
    date: dt.date
    expires: dt.date | None = None
    source: str
    note: str | None = None

    def covers(
        self, *, model: str, variant: str, runtime: Runtime, image: str, arch: str, method: Method, drafter: str,
        tensor_parallel: int = 1,
    ) -> bool:  # fmt: skip
        """Whether it speaks about these (the version is judged apart)."""
        if self.runtime is not runtime or self.method is not method:
            return False
        if self.tensor_parallel not in (None, tensor_parallel):
            return False
        pairs = (
            (model, self.model),
            (variant, self.variant),
            (image, self.image),
            (arch, self.arch),
            (drafter, self.drafter),
        )
        return all(fnmatchcase(value, pattern) for value, pattern in pairs)


class UnsupportedRuntime(Frozen):
    """A runtime that people have and Outrider does not run: what it is, why not, and what does the same."""

    name: Name
    aliases: tuple[Alias, ...] = ()
    """Other names of it, and of its program."""
    what: str
    why: str
    instead: str
    source: str
    date: dt.date


class Handled(Frozen):
    """A known bug or limit that no launch can avoid, and what deals with it. `by` are files of this project."""

    id: Identifier
    runtime: Runtime | None = None
    text: str
    by: tuple[str, ...] = Field(min_length=1)
    source: str
    date: dt.date


class Catalogue(Frozen):
    """All that ships, with the user's laid over it. `origins`: model -> file; `sources`: the same for what else the
    user's files define, by kind and name (`image vllm-cuda`)."""

    models: tuple[ModelEntry, ...] = ()
    images: tuple[ImageEntry, ...] = ()
    combinations: tuple[Combination, ...] = ()
    restrictions: tuple[Restriction, ...] = ()
    runtimes: tuple[UnsupportedRuntime, ...] = ()
    handled: tuple[Handled, ...] = ()
    origins: Mapping[str, str] = Field(default_factory=dict)
    sources: Mapping[str, str] = Field(default_factory=dict)

    def unsupported(self, name: str) -> UnsupportedRuntime | None:
        """The runtime of this name or alias that is explained and refused."""
        word = name.lower()
        return next((r for r in self.runtimes if word in (r.name, *(alias.lower() for alias in r.aliases))), None)

    def model(self, name: str) -> ModelEntry | None:
        """By public name, else by alias (names win over aliases)."""
        for entry in self.models:
            if entry.name == name:
                return entry
        return next((entry for entry in self.models if name in entry.aliases), None)

    def find(self, name: str) -> ModelEntry:
        """`model`, or `NotFound` with the nearest name or alias as a hint, else the public names."""
        entry = self.model(name)
        if entry is not None:
            return entry
        names = sorted(entry.name for entry in self.models)
        aliases = [alias for entry in self.models for alias in entry.aliases]
        near = nearest(name, [*aliases, *names])  # the later one wins where only the case tells them apart
        hint = f"did you mean {near!r}?" if near else f"there are {', '.join(names)}" if names else "there are none"
        raise NotFound(
            f"there is no model {name!r}",
            hint=f"{hint} (`outrider models` lists them, `outrider model add NAME --path FILE.gguf` adds one)",
            evidence={"models": names},
        )

    def overlay(self, models: tuple[ModelEntry, ...], origins: Mapping[str, str] | None = None) -> Catalogue:
        """The same with the user's models: an entry of the same name replaces the shipped one whole."""
        theirs = {entry.name for entry in models}
        kept = tuple(entry for entry in self.models if entry.name not in theirs)
        return self.model_copy(
            update={
                "models": (*kept, *models),
                "origins": {**self.origins, **(origins or dict.fromkeys(theirs, "user"))},
            }
        )

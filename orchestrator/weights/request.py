"""What can be asked of a pull, and what it would do: the values that API and command line share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError, model_validator

from orchestrator.config_problems import explain
from orchestrator.errors import UsageError
from orchestrator.models import Alias, Frozen, Name

Repository = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}(:[A-Za-z0-9._-]{1,64})?$"
    ),
]
"""`owner/name`, with `:TAG` for a GGUF quantisation."""
Revision = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]
FilePattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9*?\[][A-Za-z0-9 ._/*?\[\]!-]{0,255}$")]


class PullRequest(Frozen):
    """Pull a known model (`model`), or a repository as a new one (`repository` and `name`)."""

    model: str | None = Field(default=None, min_length=1, max_length=256)
    """A model's public name or alias."""
    variant: Name | None = None
    """Which of its variants; None takes what would be launched here."""
    drafters: tuple[Name, ...] = ()
    """Drafters to pull besides; none named takes what would be launched with that variant."""
    all_drafters: bool = False
    revision: Revision | None = None
    """Take this branch, tag or commit, and keep to what it is now; None keeps to what was settled before."""
    repository: Repository | None = None
    file: FilePattern | None = None
    """Which GGUF file of the repository, by name or pattern."""
    name: Name | None = None
    """The public name of the new model."""
    aliases: tuple[Alias, ...] = ()
    context: int | None = Field(default=None, gt=0)
    parallel: int | None = Field(default=None, gt=0, le=256)
    threads: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one(self) -> PullRequest:
        if (self.model is None) == (self.repository is None):
            raise ValueError("give exactly one of model and repository")
        if (self.repository is None) != (self.name is None):
            raise ValueError("a repository needs a name, and a name a repository")
        if self.repository is not None and (self.variant or self.drafters or self.all_drafters):
            raise ValueError("a repository has no variants and drafters: those are a model's")
        return self

    @classmethod
    def read(cls, data: Any) -> PullRequest:
        """Validate JSON; raises `UsageError` naming the key, with what to write instead."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = explain(cls, "the request", data if isinstance(data, Mapping) else {}, error)[0]
            raise UsageError(f"{first.key or 'pull'}: {first.detail}", hint=first.hint) from error

    @property
    def subject(self) -> str:
        """What a job about it is about."""
        return self.model or str(self.name)


@dataclass(frozen=True, slots=True)
class FileView:
    """One file of a pull. `state` is `here`, `cache` (linked or used where it is), `store` (the same as one that
    is here), or `fetch`; `partial` are the bytes of it that came before."""

    path: str
    size: int
    state: str
    partial: int = 0


@dataclass(frozen=True, slots=True)
class PartView:
    """One variant or drafter of a pull."""

    what: str
    repository: str
    revision: str
    commit: str
    folder: str
    files: tuple[FileView, ...]


@dataclass(frozen=True, slots=True)
class PullPreview:
    """What a pull would do. Bytes: of everything, of what is here or need not come, and of what would be fetched."""

    subject: str
    parts: tuple[PartView, ...]
    total_bytes: int
    have_bytes: int
    fetch_bytes: int
    free_bytes: int | None
    fits: bool
    problem: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """One file that was read again; `ok` is None where no digest is recorded to compare with."""

    path: str
    size: int | None
    ok: bool | None
    detail: str

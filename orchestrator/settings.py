"""What may be settled about an engine besides its size: by a person, a known combination or a restriction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from orchestrator.kinds import KvType

BackendName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,63}$")]
"""vLLM's name of an attention backend, such as FLASH_ATTN."""


class Settings(BaseModel):
    """Each is None (or empty) where nothing is settled; an adapter says only what its version knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kv: KvType | None = None
    attention_backend: BackendName | None = None
    draft_kv: KvType | None = None
    """What a drafter's KV cache is stored as, where it differs from the target's."""
    draft_attention_backend: BackendName | None = None
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    eager: bool | None = None
    """vLLM and SGLang without CUDA graphs."""
    graphs: Literal["piecewise", "full"] | None = None
    """Which CUDA graphs vLLM may capture."""
    prefix_caching: bool | None = None
    flash_attention: bool | None = None
    """llama.cpp's -fa."""
    mmap: bool | None = None
    """Whether llama.cpp maps the weights file."""
    p_min: Annotated[float, Field(ge=0, le=1)] | None = None
    """The least probability of a drafted token (llama.cpp)."""
    ngram_least: Annotated[int, Field(gt=0)] | None = None
    """The shortest match that n-gram lookup may draft from."""
    batch: Annotated[int, Field(gt=0)] | None = None
    vision: bool | None = None
    """Whether images may be sent to a model that can take them."""
    moe_backend: str | None = None
    env: Mapping[str, str] = Field(default_factory=dict)

    def over(self, other: Settings) -> Settings:
        """These, and where nothing is settled here, the other's; of `env` both, this one's first."""
        mine = {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}
        mine["env"] = {**other.env, **self.env}
        return other.model_copy(update=mine)

"""What a model *is*: the types shared by the shipped catalogue and the user's `models.d` files.

A model has a public name, aliases, **variants** (concrete weights) and **drafters**.
These types validate and hold; they decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from orchestrator.kinds import KvType
from orchestrator.plan import Method

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""A public name: lower case, digits, dot, dash, underscore. Part of paths, labels and container names."""
Alias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$")]


class Frozen(BaseModel):
    """Immutable, and a typo is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Format(StrEnum):
    """The file format of weights. Nothing that can run code when loaded."""

    GGUF = "gguf"
    SAFETENSORS = "safetensors"


class Runtime(StrEnum):
    """The engine software."""

    LLAMA_CPP = "llama.cpp"
    VLLM = "vllm"
    SGLANG = "sglang"


LOADED_BY: Mapping[Format, tuple[Runtime, ...]] = {
    Format.GGUF: (Runtime.LLAMA_CPP,),
    Format.SAFETENSORS: (Runtime.VLLM, Runtime.SGLANG),
}
"""Which runtimes can load a format, where a variant says nothing else."""


class Shape(Frozen):
    """What memory depends on. Widths and counts; see knowledge sources in `orchestrator.memory_fit`.

    `attention_layers` are layers with a KV cache, `linear_layers` those with a recurrent state.
    Of the attention layers `sliding_layers` see only the last `sliding_window` tokens; where their
    heads differ from the others', `sliding_kv_heads` and `sliding_head_dim` say so. `head_dim` is the
    width of a key, `value_dim` that of a value where it differs; `linear_head_dim` and
    `linear_value_dim` likewise. `kv_heads_by_layer` is given only where attention layers differ in
    more than the window (0: a layer without a cache); it then wins over `kv_heads`.
    """

    layers: int = Field(gt=0)
    hidden: int | None = Field(default=None, gt=0)
    intermediate: int | None = Field(default=None, gt=0)
    vocab: int | None = Field(default=None, gt=0)
    heads: int | None = Field(default=None, gt=0)
    """Query heads."""
    attention_layers: int = Field(ge=0)
    kv_heads: int = Field(ge=0)
    head_dim: int = Field(ge=0)
    value_dim: int | None = Field(default=None, gt=0)
    kv_heads_by_layer: tuple[Annotated[int, Field(ge=0)], ...] = ()
    sliding_layers: int = Field(default=0, ge=0)
    sliding_window: int | None = Field(default=None, gt=0)
    sliding_kv_heads: int | None = Field(default=None, gt=0)
    sliding_head_dim: int | None = Field(default=None, gt=0)
    linear_layers: int = Field(default=0, ge=0)
    linear_key_heads: int = Field(default=0, ge=0)
    linear_value_heads: int = Field(default=0, ge=0)
    linear_head_dim: int = Field(default=0, ge=0)
    linear_value_dim: int | None = Field(default=None, gt=0)
    conv_kernel: int = Field(default=4, ge=1)
    kv_lora_rank: int | None = Field(default=None, gt=0)
    rope_head_dim: int | None = Field(default=None, gt=0)
    max_context: int | None = Field(default=None, gt=0)
    mtp_layers: int = Field(default=0, ge=0)
    experts: int | None = Field(default=None, gt=0)
    experts_used: int | None = Field(default=None, gt=0)
    """Experts a token is given to, shared ones not counted."""
    tied_embeddings: bool | None = None
    dtype: str | None = None
    """What the checkpoint computes in: `bfloat16`, `float16`, `float32`."""

    @model_validator(mode="after")
    def _together(self) -> Shape:
        if self.attention_layers > self.layers or self.linear_layers > self.layers:
            raise ValueError(f"attention_layers and linear_layers are of the {self.layers} layers: neither is more")
        if self.sliding_layers > self.attention_layers:
            raise ValueError("sliding_layers are of the attention_layers: they are not more")
        if self.sliding_layers and self.sliding_window is None:
            raise ValueError("sliding_layers need a sliding_window")
        return self


class Variant(Frozen):
    """Concrete weights: `path` (a file or folder, absolute or below the store) or `repository`."""

    name: Name
    format: Format
    quantisation: str
    path: str | None = None
    repository: str | None = None
    """`owner/name` on the hub; `owner/name:TAG` means the GGUF file of that quantisation there."""
    revision: str | None = None
    """A branch, tag or commit of the repository; None is its main branch. A commit is settled at the first pull."""
    file: str | None = None
    """Which GGUF file of the repository, by name or pattern, where no tag tells."""
    weight_bytes: int | None = Field(default=None, gt=0)
    shape: Shape | None = None
    runtimes: tuple[Runtime, ...] = ()
    """Runtimes that load it; empty means what the format allows."""
    trust_remote_code: bool = False
    """Whether its repository's Python code may run in the engine: only at a revision that is a commit."""
    gated: bool = False
    """Whether its publisher wants to be asked before the hub gives it out."""
    note: str | None = None
    """What whoever fetches or uses it should know."""
    source: str | None = None
    """Who says so: where the sizes and shapes come from."""

    @property
    def loaders(self) -> tuple[Runtime, ...]:
        """The runtimes that can load it."""
        return self.runtimes or LOADED_BY[self.format]

    @model_validator(mode="after")
    def _located(self) -> Variant:
        if (self.path is None) == (self.repository is None):
            raise ValueError("give exactly one of path and repository")
        if self.trust_remote_code and not re.fullmatch(r"[0-9a-f]{40}", self.revision or ""):
            raise ValueError("trust_remote_code needs a revision that is a commit (40 hexadecimal digits)")
        return self


class Drafter(Frozen):
    """A drafter for this model's variants: `variants` empty means all of the same format."""

    name: Name
    method: Method
    format: Format
    path: str | None = None
    repository: str | None = None
    revision: str | None = None
    file: str | None = None
    """As a variant's."""
    weight_bytes: int | None = Field(default=None, gt=0)
    draft_tokens: int | None = Field(default=None, gt=0)
    """The longest draft it was trained for (DFlash: block - 1)."""
    shape: Shape | None = None
    variants: tuple[Name, ...] = ()
    gated: bool = False
    note: str | None = None
    """As a variant's."""
    source: str | None = None

    @model_validator(mode="after")
    def _located(self) -> Drafter:
        if (self.path is None) == (self.repository is None):
            raise ValueError("give exactly one of path and repository")
        if self.method in (Method.NONE, Method.NGRAM):
            raise ValueError(f"method {self.method} takes no drafter")
        if self.method is Method.MTP and self.format is not Format.GGUF:
            raise ValueError("an MTP head of its own is a GGUF file (`mtp-*.gguf`); safetensors have it in the model")
        return self


class Ngram(Frozen):
    """How `ngram` looks drafts up in the context. The defaults are llama.cpp's own (`--spec-default`)
    and suit real text; `simple` with short sizes suits short, repetitive answers."""

    kind: Literal["mod", "simple"] = "mod"
    match: int = Field(default=24, gt=0, le=256)
    """Tokens that must match before a draft is made (`simple`: its size n)."""
    longest: int = Field(default=64, gt=0, le=256)
    """The longest draft (`simple`: its size m)."""


class Speculation(Frozen):
    """How a model is to be sped up, and when to stop that.

    With `policy = "qps"` speculation is dropped when the request rate has been above
    `drop_above` (requests a second) for `dwell_s`, and taken up again when it has been
    below `resume_below` for as long. `max_switch_s` is the longest time the model may
    go unserved by a switch.
    """

    method: Literal["auto"] | Method = "auto"
    drafter: Name | None = None
    draft_tokens: int | None = Field(default=None, gt=0, le=64)
    ngram: Ngram = Ngram()
    policy: Literal["off", "qps"] = "off"
    drop_above: float = Field(default=8.0, gt=0)
    resume_below: float = Field(default=4.0, ge=0)
    dwell_s: float = Field(default=30.0, ge=0)
    max_switch_s: float = Field(default=15.0, ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Speculation:
        if self.resume_below >= self.drop_above:
            raise ValueError("resume_below must be less than drop_above, or speculation would flap")
        return self


class ModelEntry(Frozen):
    """One model: what it is, and what its owner prefers."""

    name: Name
    aliases: tuple[Alias, ...] = ()
    variants: tuple[Variant, ...] = Field(min_length=1)
    drafters: tuple[Drafter, ...] = ()
    speculation: Speculation = Speculation()
    variant: Name | None = None
    """The variant to use; None lets the planner choose."""
    runtime: Runtime | None = None
    image: str | None = None
    context: int | None = Field(default=None, gt=0)
    """Tokens a sequence; None takes the catalogue's or the planner's default."""
    parallel: int | None = Field(default=None, gt=0, le=256)
    threads: int | None = Field(default=None, gt=0)
    """CPU threads of an engine on a CPU."""
    kv: KvType | None = None
    """What the KV cache is stored as; None lets the planner choose."""
    attention_backend: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]{0,63}$")] | None = None
    """vLLM's name of it, such as FLASH_ATTN; None lets the planner choose."""
    tensor_parallel: int | None = Field(default=None, gt=0, le=16)
    """How many GPUs share the model; None takes as few as hold it."""
    batch: int | None = Field(default=None, gt=0, le=1 << 20)
    """Tokens that are computed at once: llama.cpp's ubatch, vLLM's max_num_batched_tokens."""
    load_s: float | None = Field(default=None, gt=0)
    """The longest a start may take, when the default is too short."""
    priority: int = Field(default=0, ge=-100, le=100)
    """When the daemon starts, the models with the highest start first, one after the other."""
    preemptible: bool = False
    """Whether its engine goes first when the host runs out of memory."""
    deterministic: bool = False
    """Whether its engine repeats itself to the last token, drafting or not, alone or among others (batch-invariant
    kernels): a canary then compares every token, and not only what the model finds likely."""
    on_demand: bool | None = None
    """Whether it is there on demand as long as nobody has started or stopped it; None takes [demand] by_default."""
    ttl_s: float | None = Field(default=None, gt=0)
    """Seconds without a request after which it is unloaded when it is there on demand; None takes [demand] ttl_s."""
    pinned: bool = False
    """Whether it stays loaded once it is: never unloaded for being idle, nor for another's sake."""

    @model_validator(mode="after")
    def _consistent(self) -> ModelEntry:
        for what, names in (
            ("variant", [v.name for v in self.variants]),
            ("drafter", [d.name for d in self.drafters]),
        ):
            twice = {n for n in names if names.count(n) > 1}
            if twice:
                raise ValueError(f"{what} named twice: {', '.join(sorted(twice))}")
        known = {v.name for v in self.variants}
        if self.variant is not None and self.variant not in known:
            raise ValueError(f"variant {self.variant!r} is not one of {', '.join(sorted(known))}")
        if self.speculation.drafter is not None and self.speculation.drafter not in {d.name for d in self.drafters}:
            raise ValueError(f"speculation.drafter {self.speculation.drafter!r} is not among the drafters")
        return self

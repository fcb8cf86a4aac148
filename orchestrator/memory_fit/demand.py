"""What is to run, as far as memory depends on it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.kinds import Backend, KvType
from orchestrator.models import Runtime, Shape
from orchestrator.plan import Method

SNAPSHOTS = frozenset({Method.MTP, Method.EAGLE3, Method.DFLASH, Method.DSPARK})
"""Methods for which llama.cpp keeps one extra recurrent state a drafted token
(`need_n_rs_seq`, llama.cpp common/common.h)."""
DRAFTING = SNAPSHOTS | {Method.DRAFT}
"""Methods that compute their drafts with a model: its own cache, its own buffers."""


@dataclass(frozen=True)  # no slots: a copy is made for each size that is tried, and a dict is copied ten times as fast
class Demand:
    """What is to run. `context` is tokens a sequence, `parallel` sequences at once; bytes else.

    `shape` None means that nothing is known but the weights: the caller must then
    treat the answer as a lower bound. Every default is what an engine does when it is not told.
    """

    weights: int
    """Of the files, over all devices."""
    shape: Shape | None
    context: int
    parallel: int
    method: Method = Method.NONE
    draft_tokens: int = 0
    drafter_bytes: int = 0
    drafter_shape: Shape | None = None
    backend: Backend = Backend.CPU
    kv: KvType = KvType.F16
    """What keys are stored as, and values unless `kv_v` says otherwise."""
    state_bits: int = 32
    """The width of vLLM's and SGLang's recurrent state: 32, or 16 with --mamba-ssm-cache-dtype float16."""
    batch: int = 512
    """llama.cpp's ubatch, vLLM's max_num_batched_tokens, SGLang's chunked_prefill_size."""
    eager: bool = False
    """vLLM and SGLang without CUDA graphs."""
    tensor_parallel: int = 1
    """How many devices share every layer. llama.cpp: over how many devices the layers are spread."""
    draft_ranks: int | None = None
    """Over how many of them vLLM splits the drafter. None: over all."""
    version: str | None = None
    """The engine's: `0.27.1`, `b10453`, `11434.0.0`. None is a version of today."""
    unified: bool | None = None
    """Whether the device's memory is the system's own. None: as ROCm and Vulkan hosts mostly are."""
    prefix_caching: bool = False
    """vLLM keeps one more recurrent state a sequence with it."""
    kv_v: KvType | None = None
    draft_kv: KvType | None = None
    """What the drafter's cache is stored as. None: f16 in llama.cpp (`-ctkd`), the target's type in vLLM."""
    flash_attention: bool = True
    """llama.cpp's -fa."""
    kv_unified: bool = False
    """llama.cpp: one cache for all slots."""
    cells: int | None = None
    """llama.cpp's -c, where it is not `context` x `parallel`: all slots together."""
    swa_full: bool = False
    """llama.cpp's --swa-full."""
    trims_windows: bool = True
    """False for ik_llama.cpp, which caches sliding-window layers at full length."""
    latent: bool = True
    """Whether a model with latent attention is cached as latents; False for llama.cpp with files from before that."""
    embedding: int | None = None
    """Bytes of the token embedding: llama.cpp keeps it in system memory. None: not told apart from the weights."""
    head: int | None = None
    """Bytes of the MTP head among the weights: left out where nothing drafts with it. None: a layer's share."""
    sequences: int | None = None
    """vLLM's max_num_seqs, SGLang's max_running_requests, where it is not `parallel`: scratch grows with it."""
    vision: bool = False
    """Whether vLLM profiles and keeps a vision encoder, and what that costs counts."""
    device_total: int | None = None
    """Bytes of one device, where SGLang's own reserve depends on it."""
    attention_cap: int | None = None
    """ik_llama.cpp's -amb, bytes."""
    weights_on_device: float = 1.0
    """The share of layers on the device, where llama.cpp was told to leave some to the CPU (-ngl)."""

    def sized(self, context: int, parallel: int) -> Demand:
        """The same at another size: what `dataclasses.replace` does, without asking for each field."""
        made = object.__new__(Demand)
        made.__dict__.update(self.__dict__, context=context, parallel=parallel)
        return made

    @property
    def drafted(self) -> int:
        """Drafted tokens a step: 0 when nothing drafts."""
        return 0 if self.method is Method.NONE else self.draft_tokens

    @property
    def drafter_on(self) -> int:
        """How many devices share the drafter."""
        return self.draft_ranks or self.tensor_parallel

    @property
    def values(self) -> KvType:
        """What values are stored as."""
        return self.kv if self.kv_v is None else self.kv_v

    @property
    def shares_system_memory(self) -> bool:
        """Whether what the engine takes comes out of system memory."""
        if self.backend is Backend.CPU:
            return True
        return self.backend is not Backend.CUDA if self.unified is None else self.unified


@lru_cache(maxsize=256)
def numbers(version: str | None) -> tuple[int, ...]:
    """`0.27.1` as (0, 27, 1), `b10453 (ece963f)` as (10453,), `V0 engine` as (0, 0). Unknown: ()."""
    if version is None:
        return ()
    if re.match(r"[vV]0(?:\s|$)", version):
        return (0, 0)
    found = re.match(r"[vb]?(\d+(?:\.\d+)*)", version)
    return () if found is None else tuple(int(n) for n in found[1].split("."))


def llama_build(version: str | None) -> int | None:
    """llama.cpp's build number, of `b10453`, `11434.0.0`; None when the version tells none (a commit, a fork's own)."""
    found = numbers(version)
    return found[0] if found and 1000 <= found[0] < 100_000 else None


def older(version: str | None, than: tuple[int, ...]) -> bool:
    """Whether a version is known and older."""
    have = numbers(version)
    return bool(have) and have < than


__all__ = ["DRAFTING", "SNAPSHOTS", "Demand", "Runtime", "llama_build", "numbers", "older"]

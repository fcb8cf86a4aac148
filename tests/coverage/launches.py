"""Every kind of launch that an adapter may be asked for: a product over the fields of `LaunchRequest`.

A full product over every field would be astronomical and mostly idle. What the adapters decide together is
taken in full (`CORE`: method, device, KV type, attention backend, version), what stands alone once for every
method, device and version (`SIDE`), and each pair of side fields for two methods (flags may exclude one another).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from orchestrator.kinds import Backend, KvType
from orchestrator.models import Ngram, Runtime
from orchestrator.plan import PORT, Method
from orchestrator.runtimes import ADAPTERS, Command, LaunchRequest, RuntimeAdapter
from orchestrator.runtimes.sglang_boot import BOOT
from orchestrator.settings import Settings

DEVICES: tuple[tuple[Backend, str | None], ...] = (
    (Backend.CPU, None),
    (Backend.CUDA, "sm_86"),
    (Backend.CUDA, "sm_89"),
    (Backend.CUDA, "sm_90"),
    (Backend.CUDA, "sm_120"),
    (Backend.ROCM, "gfx1151"),
    (Backend.ROCM, "gfx942"),
    (Backend.VULKAN, None),
)
ATTENTION = (None, "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "TRITON_MLA", "ROCM_ATTN")
VERSIONS: Mapping[Runtime, tuple[str | None, ...]] = {
    Runtime.LLAMA_CPP: (None, "b10068", "b10434", "b11434"),
    Runtime.VLLM: (None, "0.20.0", "0.27.1", "0.32.0", "0.33.0"),
    Runtime.SGLANG: (None, "0.5.12", "0.5.18", "0.5.23"),
}
"""Versions between which an adapter may tell; None is an unknown one."""

CORE = ("method", "drafter", "draft_tokens", "backend", "arch", "kv", "attention_backend", "version")
"""Fields that are taken in full; a drafter and a draft length come with the method."""
FIXED = ("model", "names", "context")
"""Fields that only ever fill a value in."""

SIDE: Mapping[str, tuple[Any, ...]] = {
    "parallel": (4,),
    "threads": (2,),
    "ngram": (Ngram(), Ngram(kind="simple")),
    "prefix": (("serve",),),
    "kv_pool": (1 << 30,),
    "memory_share": (0.5,),
    "state_bits": (16,),
    "batch": (4096,),
    "eager": (True,),
    "mla": (True,),
    "prefix_caching": (False,),
    "prompt_cache": (1 << 30,),
    "schedule": (((1, 4, 3), (5, 64, 0)),),
    "port": (PORT,),
    "tensor_parallel": (2,),
    "draft_tensor_parallel": (1,),
    "hybrid": (True,),
    "trust_remote_code": (True,),
}
SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "kv": (KvType.FP8,),
    "attention_backend": ("FLASHINFER", "TRITON_ATTN"),
    "draft_kv": tuple(KvType),
    "draft_attention_backend": ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "ROCM_ATTN"),
    "dtype": ("bfloat16", "float16", "float32"),
    "eager": (True, False),
    "graphs": ("piecewise", "full"),
    "prefix_caching": (True, False),
    "flash_attention": (True, False),
    "mmap": (True, False),
    "p_min": (0.6,),
    "ngram_least": (8,),
    "batch": (4096,),
    "vision": (True, False),
    "moe_backend": ("triton",),
    "env": ({"A": "1"},),
}

PAIRED = (Method.NONE, Method.DFLASH)
"""Methods for which each pair of side fields is taken too."""
_DRAFTERS = frozenset({Method.DRAFT, Method.EAGLE3, Method.DFLASH, Method.DSPARK})


def launches(runtime: Runtime) -> Iterator[LaunchRequest]:
    """Every launch of the product, the refused ones too."""
    versions = VERSIONS[runtime]
    newest = (None, versions[-1])
    yield from _core(versions[-1:], tuple(KvType), ATTENTION)
    yield from _core(versions[:-1], tuple(KvType), (None,))
    yield from _core(versions[:-1], (KvType.FP8,), ATTENTION)
    sides = list(_sides())
    for plain in _core(versions, (KvType.F16,), (None,)):
        if plain.version not in newest and plain.arch not in (None, "sm_86", "gfx1151"):
            continue  # an adapter tells families of GPUs apart by version only where they are known to differ
        for side in sides:
            yield dataclasses.replace(plain, **side)
        if plain.version == versions[-1] and plain.method in PAIRED and plain.arch in (None, "sm_90"):
            for one, other in itertools.combinations(sides, 2):
                if not one.keys() & other.keys():
                    yield dataclasses.replace(plain, **one, **other)


def commands(adapter: RuntimeAdapter) -> Iterator[tuple[LaunchRequest, Command]]:
    """What the adapter makes of them, without what it refuses."""
    for asked in launches(adapter.runtime):
        request = asked if adapter.socket else dataclasses.replace(asked, port=PORT)
        if adapter.refuses(request) is None:
            yield request, adapter.command(request)


@cache
def lines(runtime: Runtime) -> tuple[tuple[LaunchRequest, tuple[str, ...]], ...]:
    """The engine's own arguments, once for each version and method, and the first request that gives them."""
    found: dict[tuple[str | None, Method, tuple[str, ...]], LaunchRequest] = {}
    for request, command in commands(ADAPTERS[runtime]):
        found.setdefault((request.version, request.method, arguments(request, command)), request)
    return tuple((request, argv) for (_, _, argv), request in found.items())


def arguments(request: LaunchRequest, command: Command) -> tuple[str, ...]:
    """The engine's own arguments: without the image's `prefix`, or what starts SGLang's interpreter."""
    if BOOT in command.argv:
        return command.argv[command.argv.index(BOOT) + 1 :]
    return command.argv[len(request.prefix) :]


def _core(
    versions: tuple[str | None, ...], kinds: tuple[KvType, ...], backends: tuple[str | None, ...]
) -> Iterator[LaunchRequest]:
    for method, (backend, arch), kv, attention, version in itertools.product(
        Method, DEVICES, kinds, backends, versions
    ):
        yield LaunchRequest(
            model="/models/m",
            names=("m", "alias"),
            method=method,
            drafter="/models/d" if method in _DRAFTERS else None,
            draft_tokens=0 if method is Method.NONE else 4,
            context=8192,
            parallel=2,
            backend=backend,
            arch=arch,
            kv=kv,
            attention_backend=attention,
            version=version,
        )


def _sides() -> Iterator[dict[str, Any]]:
    for name, values in SIDE.items():
        for value in values:
            yield {name: value}
    for name, values in SETTINGS.items():
        for value in values:
            yield {"settings": Settings.model_validate({name: value})}

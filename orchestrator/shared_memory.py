"""How large an engine's /dev/shm is. Pure."""

from __future__ import annotations

SHARED = 16 << 30
"""Bytes for a model that several GPUs share: its processes pass tensors through it (NCCL and RCCL, and vLLM's and
SGLang's own queues). 16 GiB is what people give with --shm-size where they do not give --ipc=host; it is an upper
bound of a tmpfs, which takes what is written to it and no more."""


def shared_memory(image: int | None, devices: int) -> int | None:
    """Bytes for an image whose own need is `image` (None: Podman's 64 MiB do), on so many devices."""
    if devices < 2:
        return image
    return max(image or 0, SHARED)

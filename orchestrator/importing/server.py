"""Finding the server in a command's words: which runtime, and the words that are its own. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from orchestrator.importing import llama_line, sglang_line, shell, vllm_line
from orchestrator.importing.recipe import Recipe
from orchestrator.models import Runtime

_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_MODULES = {
    "vllm.entrypoints.openai.api_server": Runtime.VLLM,
    "vllm.entrypoints.api_server": Runtime.VLLM,
    "sglang.launch_server": Runtime.SGLANG,
    "sglang.srt.entrypoints.http_server": Runtime.SGLANG,
}
READERS = {Runtime.VLLM: vllm_line.read, Runtime.SGLANG: sglang_line.read, Runtime.LLAMA_CPP: llama_line.read}
_WRAPPERS = frozenset({
    "sudo", "env", "nohup", "time", "exec", "numactl", "taskset", "nice", "ionice", "stdbuf", "timeout", "uv", "uvx",
    "conda", "mamba", "micromamba", "poetry", "pixi", "srun", "systemd-run", "tini", "dumb-init",
})  # fmt: skip
_PROGRAMS = frozenset({"llama-server", "docker", "podman", "nerdctl", "bash", "sh"})
_LEGACY = ("--spec-method", "--spec-model", "--spec-tokens", "--max-model-len", "--gpu-memory-utilization")


def unwrapped(words: Sequence[str]) -> tuple[str, ...]:
    """The words without what they are started through: `sudo -E`, `numactl -N 0`, `uv run --with X`, `env A=b`."""
    if words[0].rpartition("/")[2] not in _WRAPPERS:
        return tuple(words)
    for at, word in enumerate(words[1:13], 1):
        name, after = word.rpartition("/")[2], words[at + 1 : at + 2]
        if name in ("vllm", "sglang") and tuple(after) == ("serve",):
            return tuple(words[at:])
        if name in _PROGRAMS or (_PYTHON.fullmatch(name) and tuple(after) == ("-m",)):
            return tuple(words[at:])
    return tuple(words)


def find(words: Sequence[str]) -> tuple[Runtime, tuple[str, ...]] | None:
    """The runtime and its words; None where no server is started."""
    rest = list(words)
    while rest and rest[0] in ("uv", "uvx", "run", "numactl", "taskset", "nice", "--", "tini"):
        del rest[0]
    if not rest:
        return None
    name = rest[0].rpartition("/")[2]
    if name in ("bash", "sh") and len(rest) > 2 and rest[1].startswith("-") and rest[1].endswith("c"):
        found = [server for command in shell.commands(rest[2]) if (server := find(command.words))]
        return found[-1] if found else None
    if _PYTHON.fullmatch(rest[0]) and "-m" in rest[1:4]:
        at = rest.index("-m")
        runtime = _MODULES.get(rest[at + 1]) if at + 1 < len(rest) else None
        return None if runtime is None else (runtime, tuple(rest[at + 2 :]))
    if name == "vllm" and rest[1:2] == ["serve"]:
        return Runtime.VLLM, tuple(rest[2:])
    if name == "sglang" and rest[1:2] == ["serve"]:
        return Runtime.SGLANG, tuple(rest[2:])
    if name in ("llama-server", "llama-server.exe"):
        return Runtime.LLAMA_CPP, tuple(rest[1:])
    return None


def guess(words: Sequence[str]) -> Runtime | None:
    """The runtime of options that stand alone, without a program."""
    flags = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("-")}
    if flags & {*_LEGACY, "--speculative-config", "--kv-cache-dtype"}:
        return Runtime.VLLM
    if any(flag.startswith("--speculative-") for flag in flags) or "--model-path" in flags:
        return Runtime.SGLANG
    if any(flag.startswith("--spec-") for flag in flags) or flags & {"-hf", "-ngl", "-md", "--hf-repo", "-m"}:
        return Runtime.LLAMA_CPP
    return None


def of_image(image: str) -> Runtime | None:
    """The runtime that an image's name says."""
    name = image.lower()
    if "sglang" in name:
        return Runtime.SGLANG
    if "vllm" in name:
        return Runtime.VLLM
    if "llama.cpp" in name or "llama-cpp" in name or "llama-server" in name or "llama_cpp" in name:
        return Runtime.LLAMA_CPP
    return None


def read(runtime: Runtime, words: Sequence[str], env: Mapping[str, str]) -> Recipe:
    """The server's own words, after those that llama-server takes from its environment."""
    given = llama_line.of_environment(env) if runtime is Runtime.LLAMA_CPP else ()
    return READERS[runtime]((*given, *words))

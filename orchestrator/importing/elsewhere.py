"""Commands that are no deployment: builds, downloads, clients, training, runtimes that Outrider does not run. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from orchestrator.importing.values import Change, Outcome
from orchestrator.plan import Reason

Verdict = tuple[Outcome, str, Reason, tuple[Change, ...]]
"""What a command came to: outcome, what it is, why, what is different here."""

_PULL = re.compile(r"(?:refs/)?pull/(\d+)(?:/head)?")
_MERGED: Mapping[tuple[str, str], str] = {
    ("vllm", "52816"): "DFlash2 is merged: vLLM 0.33.0 has it, and the official image is enough",
    ("vllm", "40176"): "non-causal attention on ROCm is merged: every version since 0.20.1 has it",
    ("llama.cpp", "27342"): "DFlash2 is merged: b11434 has it, and the official image is enough",
    ("llama.cpp", "22105"): "DFlash is merged: b10434 has it, and the official image is enough",
    ("llama.cpp", "22673"): "MTP is merged: b9294 has it, and the official image is enough",
}
"""Source: the wheels and trees of these versions, which have it."""
RUNTIMES: Mapping[str, tuple[str, str]] = {
    "ollama": ("Ollama", "its drafters live on a branch (ollama#17865), and it chooses sizes by itself: "
               "llama.cpp runs the same GGUF files, vLLM the same safetensors"),
    "omlx": ("oMLX", "it runs on Apple silicon only, and Outrider's hosts run Linux"),
    "mlx": ("MLX", "it runs on Apple silicon only, and Outrider's hosts run Linux"),
    "trtllm": ("TensorRT-LLM", "its launch flags for DFlash are not published, and it wants Hopper or Blackwell GPUs"),
    "tgi": ("text-generation-inference", "no adapter runs it: vLLM takes the same weights"),
    "lmdeploy": ("LMDeploy", "no adapter runs it: vLLM takes the same weights"),
    "ktransformers": ("KTransformers", "no adapter runs it"),
    "exllama": ("ExLlama", "no adapter runs it"),
    "ik_llama": ("ik_llama.cpp", "no adapter runs this fork: llama.cpp takes most of its files"),
}  # fmt: skip
_STEPS: Mapping[str, tuple[str, str, str]] = {
    "git": ("build", "build_not_needed", "nothing is built from a checkout: images are pulled and pinned"),
    "cmake": ("build", "build_not_needed", "nothing is built here: images are pulled and pinned"),
    "make": ("build", "build_not_needed", "nothing is built here: images are pulled and pinned"),
    "ninja": ("build", "build_not_needed", "nothing is built here: images are pulled and pinned"),
    "pip": ("install", "install_not_needed", "the runtime comes in an image: nothing is installed on the host"),
    "pip3": ("install", "install_not_needed", "the runtime comes in an image: nothing is installed on the host"),
    "uv": ("install", "install_not_needed", "the runtime comes in an image: nothing is installed on the host"),
    "conda": ("install", "install_not_needed", "the runtime comes in an image: nothing is installed on the host"),
    "apt": ("install", "install_not_needed", "the runtime comes in an image: nothing is installed on the host"),
    "apt-get": ("install", "install_not_needed", "the runtime comes in an image: nothing is installed on the host"),
    "brew": ("install", "install_not_needed", "the runtime comes in an image: nothing is installed on the host"),
    "hf": ("download", "download_not_needed", "`outrider model pull` fetches weights into the store, and checks them"),
    "huggingface-cli": ("download", "download_not_needed", "`outrider model pull` fetches weights into the store"),
    "wget": ("download", "download_not_needed", "`outrider model pull` fetches weights into the store"),
    "curl": ("client", "client", "a request to a server: the gateway answers at http://127.0.0.1:8080/v1"),
    "dflash": ("client", "client", "a client and benchmark of a server: it works with the gateway, "
               "`--base-url http://127.0.0.1:8080`"),
    "torchrun": ("training", "training", "training a drafter is not serving: give the finished drafter to a model"),
    "accelerate": ("training", "training", "training is not serving"),
    "llama-bench": ("client", "client", "a benchmark, which loads a model of its own: it serves nobody"),
    "llama-cli": ("client", "client", "a program of its own: `outrider run MODEL` talks to a deployment"),
}  # fmt: skip
_SHELL = frozenset(
    [
        "cd",
        "echo",
        "printf",
        "mkdir",
        "cat",
        "ls",
        "sleep",
        "source",
        ".",
        "true",
        "false",
        "rm",
        "cp",
        "mv",
        "ln",
        "chmod",
        "chown",
        "tee",
        "test",
        "[",
        "if",
        "then",
        "fi",
        "for",
        "do",
        "done",
        "while",
        "set",
        "unset",
        "alias",
        "wait",
        "systemctl",
        "nvidia-smi",
        "rocm-smi",
        "amd-smi",
        "loginctl",
        "sysctl",
        "modprobe",
        "tmux",
        "screen",
    ]
)


UNKNOWN = "unknown"
"""What is no server, and no step that is known."""


def explain(words: Sequence[str]) -> Verdict:
    """Why these words are no deployment."""
    name = words[0].rpartition("/")[2]
    program = _program(name)
    if program in RUNTIMES:
        return runtime(program)
    if name in ("docker", "podman", "docker-compose", "podman-compose"):
        return _containers(words)
    if name in _STEPS:
        what, code, text = _STEPS[name]
        if name == "dflash" and len(words) > 2 and words[2] in ("transformers", "mlx"):
            text = f"it generates with {words[2]} in its own process, and serves nothing"
        if name in ("git", "pip", "pip3", "uv"):
            return _pinned(words, what, code, text)
        return Outcome.EXPLAINED, what, Reason(code, text), ()
    if name in _SHELL:
        return Outcome.EXPLAINED, "shell", Reason("shell", "a step of the shell: nothing to deploy"), ()
    if name.startswith("python") and any("train" in word for word in words[1:4]):
        return Outcome.EXPLAINED, "training", Reason("training", "training is not serving"), ()
    text = f"{name!r} is no server that Outrider knows: it reads vLLM, llama-server and SGLang"
    return Outcome.REFUSED, UNKNOWN, Reason("unknown_command", text), ()


def runtime(name: str) -> Verdict:
    """A runtime that is known and not run."""
    called, why = RUNTIMES[name]
    return Outcome.REFUSED, called, Reason("runtime_unsupported", f"Outrider does not run {called}: {why}"), ()


def of_image(image: str) -> str | None:
    """The key in `RUNTIMES` of an image of a runtime that is not run."""
    for part, key in (
        ("ollama", "ollama"),
        ("tensorrt", "trtllm"),
        ("trtllm", "trtllm"),
        ("tritonserver", "trtllm"),
        ("text-generation-inference", "tgi"),
        ("lmdeploy", "lmdeploy"),
        ("ik_llama", "ik_llama"),
        ("ik-llama", "ik_llama"),
    ):
        if part in image.lower():
            return key
    return None


def _program(said: str) -> str:
    """The runtime that a program, or a heading, is about."""
    name = said.lower().rstrip(":")
    if name.startswith(("trtllm", "tensorrt")):
        return "trtllm"
    if name.startswith(("mlx_lm", "mlx-lm", "mlx.")):
        return "mlx"
    if name.startswith("text-generation-"):
        return "tgi"
    return name


def _containers(words: Sequence[str]) -> Verdict:
    rest = [word for word in words[1:] if not word.startswith("-")]
    verb = rest[0] if rest else ""
    if verb == "pull":
        text = "`outrider image pull` fetches an image and pins it"
        return Outcome.EXPLAINED, "image", Reason("image_pull", text), ()
    if verb in ("build", "buildx"):
        return Outcome.EXPLAINED, "build", Reason("build_not_needed", "images are pulled, not built here"), ()
    if verb in ("compose", "up"):
        return Outcome.EXPLAINED, "compose", Reason("give_the_file", "give the compose file itself to this command"), ()
    return Outcome.EXPLAINED, "container", Reason("container_kept", "the daemon keeps its containers by itself"), ()


def _pinned(words: Sequence[str], what: str, code: str, text: str) -> Verdict:
    """A pip or git line; what it pins to a pull request may be merged by now."""
    changes: list[Change] = []
    for word in words[1:]:
        match = _PULL.search(word)
        if match is None:
            continue
        project = "vllm" if "vllm" in word.lower() else "llama.cpp" if "llama" in word.lower() else ""
        known = [(key, why) for key, why in _MERGED.items() if key[1] == match[1] and project in ("", key[0])]
        if known:
            (name, number), why = known[0]
            changes.append(Change("pr_merged", match[0], f"the official {name} image", why, f"{name}#{number}"))
            code, text = "pr_merged", f"pull request {number} of {name} is merged: {why}"
        else:
            why = "a pull request is a moving branch: a released image is pinned instead"
            changes.append(Change("pr_pin", match[0], "a released image", why, None))
    return Outcome.EXPLAINED, what, Reason(code, text), tuple(changes)

"""`docker run` and `podman run`: what is around the server, and the words that it is given. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.importing.recipe import Said, is_flag, options
from orchestrator.importing.secrets import hidden, is_secret, shown
from orchestrator.importing.values import HIDDEN, Change

_SWITCHES = dict.fromkeys(
    ("--rm", "-d", "--detach", "-i", "-t", "-it", "-ti", "-dit", "-itd", "-td", "-dt", "--interactive", "--tty",
     "--init",
     "--privileged", "--read-only", "--replace", "-P", "--publish-all", "--no-healthcheck", "--sig-proxy",
     "--oom-kill-disable", "--quiet", "-q"), 0,
)  # fmt: skip
_SHORT = {
    "-p": "--publish", "-v": "--volume", "-e": "--env", "-w": "--workdir", "-u": "--user", "-l": "--label",
    "-h": "--hostname", "-m": "--memory", "-c": "--cpu-shares", "--net": "--network",
}  # fmt: skip
_DROPPED: Mapping[str, tuple[str, str]] = {
    "--privileged": ("least_power", "an engine gets its devices by name and nothing else"),
    "--cap-add": ("least_power", "every capability is dropped"),
    "--security-opt": ("least_power", "the image's security profile says what is relaxed, and why"),
    "--network": ("least_power", "an engine has no network, or one loopback port where it serves no socket"),
    "--pid": ("least_power", "an engine has processes of its own"),
    "--user": ("least_power", "the image's security profile says as whom it runs"),
    "--group-add": ("named_device", "a device brings its group's number with it"),
    "--runtime": ("named_device", "GPUs are given by their CDI names or device nodes"),
    "--restart": ("kept_running", "the daemon keeps a deployment running, and climbs down a ladder when it fails"),
    "--rm": ("kept_running", "the daemon keeps containers, and removes them"),
    "--detach": ("kept_running", "the daemon keeps a deployment running"),
    "--name": ("kept_running", "containers are named by the daemon"),
    "--replace": ("kept_running", "the daemon keeps containers, and removes them"),
    "--entrypoint": ("set_by_outrider", "the image's own entrypoint is used, as the catalogue knows it"),
    "--memory": ("set_by_outrider", "limits come from the plan"),
    "--cpus": ("set_by_outrider", "threads come from the plan"),
    "--cpuset-cpus": ("set_by_outrider", "threads come from the plan"),
    "--ulimit": ("set_by_outrider", "limits come from the plan"),
    "--workdir": ("set_by_outrider", "an engine needs no folder of its own"),
    "--label": ("set_by_outrider", "labels are how the daemon finds its containers again"),
    "--hostname": ("set_by_outrider", "an engine has no network"),
    "--pull": ("set_by_outrider", "images are pulled once and pinned: `outrider image pull`"),
    "--platform": ("set_by_outrider", "images are chosen for this machine"),
    "--health-cmd": ("set_by_outrider", "an engine is ready when a real completion came back right"),
    "--log-driver": ("set_by_outrider", "logs are Outrider's"),
    "--log-opt": ("set_by_outrider", "logs are Outrider's"),
    "--interactive": ("set_by_outrider", "an engine has no terminal"),
    "--tty": ("set_by_outrider", "an engine has no terminal"),
    "--init": ("set_by_outrider", "engines are ended by signal, and awaited"),
    "--tmpfs": ("set_by_outrider", "the security profile says what may be written"),
    "--read-only": ("set_by_outrider", "the root file system of an engine is always read-only"),
}
_CACHES = ("huggingface", "/hub", "modelscope")
_COMPILED = (".triton", "vllm", "torch", ".cache", "inductor", "flashinfer")


@dataclass(slots=True)
class Container:
    """A container that somebody runs: its image, the words for its entrypoint, its environment."""

    image: str | None = None
    words: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, str] = field(default_factory=dict)
    """Path in the container -> path on the host."""
    entrypoint: str | None = None
    changes: list[Change] = field(default_factory=list)

    def change(self, code: str, was: str | None, becomes: str | None, why: str) -> None:
        """Note one difference, once."""
        change = Change(code, None if was is None else hidden(was), becomes, why, "Outrider")
        if change not in self.changes:
            self.changes.append(change)

    def host_path(self, path: str) -> str:
        """Where a path of the container lies on the host, as far as the mounts tell."""
        for inside, outside in sorted(self.mounts.items(), key=lambda pair: -len(pair[0])):
            if path == inside or path.startswith(inside.rstrip("/") + "/"):
                return outside.rstrip("/") + path[len(inside.rstrip("/")) :]
        return path

    def set(self, name: str, value: str | None) -> None:
        """One environment variable."""
        if is_secret(name):
            why = "secrets are not carried over: the daemon reads its own token, and each engine has a key of its own"
            self.change("secret", f"{name}={HIDDEN}", None, why)
        elif value is not None:
            self.env[name] = value

    def mount(self, text: str) -> None:
        """One `HOST:CONTAINER[:options]`."""
        outside, _, rest = text.partition(":")
        inside = rest.split(":")[0]
        if not inside:
            self.change("volume", text, None, "an anonymous volume holds nothing that the engine needs")
            return
        self.mounts[inside] = outside
        if any(word in inside or word in outside for word in _CACHES):
            why = (
                "weights lie in the store; what a Hugging Face cache holds is taken from there (`outrider model pull`)"
            )
            self.change("hub_cache", text, "the store", why)
        elif any(word in inside for word in _COMPILED):
            why = "compile caches are named volumes, one for each image and GPU architecture"
            self.change("compile_cache", text, "a named volume", why)
        else:
            why = "the folder of the model's file is mounted, read-only, and no other"
            self.change("volume", text, "read-only mounts of the model's folder", why)

    def publish(self, text: str) -> None:
        """One published port."""
        why = (
            "the engine serves a unix socket, or a loopback port of the daemon's choosing; clients talk to the gateway"
        )
        self.change("host_port", f"-p {text}", "http://127.0.0.1:8080/v1", why)

    def device(self, text: str) -> None:
        """One device, or `--gpus`."""
        everything = "all" in text or text in ("/dev/dri", "/dev/kfd")
        why = "an engine gets the devices of its plan by name, and no other"
        self.change("all_gpus" if everything else "named_device", text, "the plan's devices by name", why)

    def shared_memory(self, text: str) -> None:
        """`--ipc` and `--shm-size`."""
        if "host" in text:
            why = "engines keep a shared memory of their own, as large as the image needs, and do not see the host's"
            self.change("ipc_host", text, "a shared memory of 1 GiB", why)
        else:
            self.change("set_by_outrider", text, "a shared memory of the image's size", "it comes with the image")


def run(words: Sequence[str]) -> Container:
    """The words after `docker run`."""
    container = Container()
    at = 0
    while at < len(words):
        if not is_flag(words[at]):
            container.image, container.words = words[at], tuple(words[at + 1 :])
            break
        length = _length(words, at)
        for said in options(words[at : at + length], _SWITCHES):
            if isinstance(said, Said):
                _option(container, Said(_SHORT.get(said.flag, said.flag), said.values))
        at += length
    return container


def _length(words: Sequence[str], at: int) -> int:
    word = words[at]
    if word in _SWITCHES or ("=" in word and word.startswith("--")):
        return 1
    if len(word) > 2 and word[1] != "-" and word[:2] in _SHORT:  # -p8000:8000
        return 1
    return 2


def _option(container: Container, said: Said) -> None:
    flag, value = said.flag, said.value or ""
    if not value and flag[:2] in _SHORT and flag[1:2] != "-" and len(flag) > 2:
        flag, value = _SHORT[flag[:2]], flag[2:]
    if _filled(container, flag, value):
        return
    match flag:
        case "--publish":
            container.publish(value)
        case "--gpus" | "--device":
            container.device(f"{flag} {value}")
        case "--ipc" | "--shm-size":
            container.shared_memory(f"{flag}={value}")
        case "--entrypoint":
            container.entrypoint = value
        case _:
            _rest(container, flag, value)


def _filled(container: Container, flag: str, value: str) -> bool:
    """What puts files and variables into the container."""
    match flag:
        case "--volume":
            container.mount(value)
        case "--mount":
            parts = dict(part.partition("=")[::2] for part in value.split(","))
            outside, inside = parts.get("source", parts.get("src", "")), parts.get("target", parts.get("dst", ""))
            container.mount(f"{outside}:{inside}")
        case "--env":
            name, equals, text = value.partition("=")
            container.set(name, text if equals else None)
        case "--env-file":
            container.change("env_file", f"--env-file {value}", None, "the file is not read: it may hold secrets")
        case "--secret":
            container.change("secret", f"--secret {HIDDEN}", None, "an engine is given no secrets")
        case _:
            return False
    return True


def _rest(container: Container, flag: str, value: str) -> None:
    name = {"-d": "--detach", "-i": "--interactive", "-t": "--tty"}.get(flag, flag)
    if name in ("-it", "-ti", "-dit", "-itd", "-td", "-dt"):
        name = "--detach" if "d" in name else "--tty"
    was = shown([flag, value] if value else [flag])
    code, why = _DROPPED.get(name, ("not_carried", "Outrider decides what a container is given"))
    container.change(code, was, None, why)

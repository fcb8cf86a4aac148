"""What may become a container, and above all what may not."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from containers import labels, security, validator
from containers.errors import SpecRefused
from containers.spec import CacheVolume, ContainerSpec, Mount, Network
from containers.validator import Rules, validate

ENGINE = "0123456789abcdef"
DIGEST = "sha256:" + "a1" * 32


class House:
    """A store with a model, an engine's socket folder, secrets beside them, and links that lead astray."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = root / "models"
        self.model = self.store / "qwen"
        self.socket = root / "engines" / ENGINE
        self.other_socket = root / "engines" / ("f" * 16)
        self.secret = root / "secret"
        for folder in (self.model, self.socket, self.other_socket, self.secret):
            folder.mkdir(parents=True)
        (self.model / "weights.gguf").write_text("weights")
        (self.store / "inside").symlink_to(self.model)
        (self.store / "out").symlink_to(self.secret)
        (self.store / "system").symlink_to("/etc")
        (self.store / "chain").symlink_to(self.store / "out")
        (self.store / "loop").symlink_to(self.store / "loop")
        (root / "models-of-others").mkdir()
        (root / "engines" / "link").symlink_to(self.socket)
        self.rules = Rules(
            model_folders=(str(self.store),),
            socket_folder=str(self.socket),
            allowed_args=frozenset({"-m", "--host", "--spec-type", "-ngl"}),
        )
        self.spec = ContainerSpec(
            name="outrider-01234567-qwen-1-beef",
            image=DIGEST,
            argv=("-m", "/models/weights.gguf", "--host", "/run/engine/engine.sock", "-ngl", "-1", "--spec-type=none"),
            env={"LLAMA_API_KEY": "k"},
            labels={labels.OWNER: "0" * 16, labels.ENGINE: ENGINE},
            mounts=(
                Mount(str(self.model), "/models/qwen"),
                Mount(str(self.socket), "/run/engine", read_only=False),
            ),
            caches=(CacheVolume("outrider-cache-1", "/cache/vllm"),),
            devices=("nvidia.com/gpu=0", "/dev/kfd", "/dev/dri/renderD128"),
            groups=(44, 993),
            memory_limit=1 << 30,
            shm_size=1 << 20,
        )


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_a_sound_spec_passes(house: House) -> None:
    validate(house.spec, house.rules)
    validate(replace(house.spec, image=f"ghcr.io/ggml-org/llama.cpp:server@{DIGEST}"), house.rules)
    validate(replace(house.spec, mounts=(Mount(str(house.store / "inside"), "/models"),)), house.rules)
    validate(replace(house.spec, mounts=(Mount(str(house.model / "weights.gguf"), "/models/w.gguf"),)), house.rules)
    validate(replace(house.spec, network=Network.BRIDGE, host_port=17999, container_port=8000, mounts=()), house.rules)
    validate(replace(house.spec, argv=("--anything",)), replace(house.rules, allowed_args=None))


def test_a_socket_folder_behind_a_linked_run_folder_passes(house: House, tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(house.root)
    linked = str(tmp_path / "run" / "engines" / ENGINE)
    spec = replace(house.spec, mounts=(Mount(linked, "/run/engine", read_only=False),))
    validate(spec, replace(house.rules, socket_folder=linked))


def models(source: str, target: str = "/models", *, read_only: bool = True) -> dict[str, Any]:
    return {"mounts": (Mount(source, target, read_only),)}


ATTEMPTS: dict[str, tuple[Callable[[House], dict[str, Any]], str]] = {
    "a tag instead of a digest": (lambda h: {"image": "docker.io/vllm/vllm-openai:latest"}, "digest"),
    "a tag that looks like one": (lambda h: {"image": "evil/image:sha256"}, "digest"),
    "a short digest": (lambda h: {"image": "sha256:abc"}, "digest"),
    "an image with a transport": (lambda h: {"image": f"docker-archive:/x@{DIGEST}\n"}, "digest"),
    "the root": (lambda h: models("/"), "system"),
    "/etc": (lambda h: models("/etc"), "system"),
    "/proc/1/root": (lambda h: models("/proc/1/root"), "system|outside|followed"),
    "the Podman socket": (lambda h: models("/run/podman/podman.sock"), "outside"),
    "the secrets next door": (lambda h: models(str(h.secret)), "outside"),
    "a folder with the same beginning": (lambda h: models(str(h.root / "models-of-others")), "outside"),
    "dots": (lambda h: models(f"{h.store}/../secret"), "plain"),
    "two slashes": (lambda h: models(f"/{h.store}"), "plain"),
    "a relative path": (lambda h: models("models"), "plain"),
    "a newline in a path": (lambda h: models(f"{h.store}/a\nb"), "plain"),
    "a link out": (lambda h: models(str(h.store / "out")), "outside"),
    "a link to /etc": (lambda h: models(str(h.store / "system")), "system"),
    "a link to a link out": (lambda h: models(str(h.store / "chain")), "outside"),
    "a file behind a link out": (lambda h: models(str(h.store / "out" / "x")), "outside"),
    "writable models": (lambda h: models(str(h.model), read_only=False), "read-only"),
    "a mount over /etc": (lambda h: models(str(h.model), "/etc"), "nowhere else"),
    "a mount over the root": (lambda h: models(str(h.model), "/"), "nowhere else"),
    "a mount over the program": (lambda h: models(str(h.model), "/app/llama-server"), "nowhere else"),
    "a target with dots": (lambda h: models(str(h.model), "/models/../etc"), "plain"),
    "models in the socket folder": (lambda h: models(str(h.model), "/run/engine"), "own"),
    "models below the socket folder": (lambda h: models(str(h.model), "/run/engine/x"), "socket folder"),
    "another engine's socket folder": (
        lambda h: models(str(h.other_socket), "/run/engine", read_only=False),
        "own",
    ),
    "a link to the socket folder": (
        lambda h: models(str(h.root / "engines" / "link"), "/run/engine", read_only=False),
        "own",
    ),
    "all socket folders": (lambda h: models(str(h.root / "engines"), "/run/engine", read_only=False), "own"),
    "a socket folder the label does not name": (
        lambda h: {"labels": {labels.OWNER: "x", labels.ENGINE: "f" * 16}},
        "label",
    ),
    "two mounts at one place": (lambda h: {"mounts": (Mount(str(h.model), "/models"),) * 2}, "over or in"),
    "a mount in a mount": (
        lambda h: {"mounts": (Mount(str(h.model), "/models/a"), Mount(str(h.model), "/models"))},
        "over or in",
    ),
    "somebody's volume": (lambda h: {"caches": (CacheVolume("pgdata", "/cache"),)}, "compile cache"),
    "a path as a volume": (lambda h: {"caches": (CacheVolume("/etc", "/cache"),)}, "compile cache"),
    "a cache over /usr": (lambda h: {"caches": (CacheVolume("outrider-c", "/usr/lib"),)}, "cover"),
    "a cache over the models": (lambda h: {"caches": (CacheVolume("outrider-c", "/models/qwen"),)}, "cover"),
    "a cache over the root": (lambda h: {"caches": (CacheVolume("outrider-c", "/"),)}, "cover"),
    "a cache over /tmp": (lambda h: {"caches": (CacheVolume("outrider-c", "/tmp"),)}, "cover"),
    "a disk": (lambda h: {"devices": ("/dev/sda",)}, "device"),
    "all of /dev/dri": (lambda h: {"devices": ("/dev/dri",)}, "device"),
    "a renamed device": (lambda h: {"devices": ("/dev/kfd:/dev/mem",)}, "device"),
    "root": (lambda h: {"user": "0:0"}, "root"),
    "root's group": (lambda h: {"user": "1000:0"}, "root"),
    "a user by name": (lambda h: {"user": "root"}, "numeric"),
    "a user in other digits": (lambda h: {"user": "\u0661:\u0661"}, "numeric"),
    "root's group as an extra": (lambda h: {"groups": (0,)}, "group"),
    "an unknown profile": (lambda h: {"profile": "privileged"}, "profile"),
    "LD_PRELOAD": (lambda h: {"env": {"LD_PRELOAD": "/models/x.so"}}, "LD_PRELOAD"),
    "LD_LIBRARY_PATH": (lambda h: {"env": {"LD_LIBRARY_PATH": "/models"}}, "LD_LIBRARY_PATH"),
    "PYTHONPATH": (lambda h: {"env": {"PYTHONPATH": "/models"}}, "PYTHONPATH"),
    "PATH": (lambda h: {"env": {"PATH": "/models"}}, "'PATH'"),
    "PODMAN_USERNS": (lambda h: {"env": {"PODMAN_USERNS": "host"}}, "PODMAN_USERNS"),
    "CONTAINER_HOST": (lambda h: {"env": {"CONTAINER_HOST": "unix:///x"}}, "CONTAINER_HOST"),
    "devices by the environment": (lambda h: {"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, "NVIDIA_VISIBLE_DEVICES"),
    "a hub token": (lambda h: {"env": {"HF_TOKEN": "hf_x"}}, "HF_TOKEN"),
    "an assignment as a name": (lambda h: {"env": {"A=B\nLD_PRELOAD": "x"}}, "name"),
    "a NUL in a value": (lambda h: {"env": {"A": "x\0y"}}, "value"),
    "a label of Podman's": (lambda h: {"labels": {labels.OWNER: "x", "io.containers.autoupdate": "registry"}}, "label"),
    "a label of systemd's": (lambda h: {"labels": {labels.OWNER: "x", "PODMAN_SYSTEMD_UNIT": "x"}}, "label"),
    "no owner": (lambda h: {"labels": {}}, "owner"),
    "a label without end": (lambda h: {"labels": {labels.OWNER: "x" * 300}}, "too long"),
    "a newline in a label": (lambda h: {"labels": {labels.OWNER: "x\ny"}}, "control"),
    "somebody else's name": (lambda h: {"name": "postgres"}, "begin"),
    "a name with a slash": (lambda h: {"name": "outrider-../x"}, "begin"),
    "a name without end": (lambda h: {"name": "outrider-" + "x" * 200}, "begin"),
    "a flag of nobody's": (lambda h: {"argv": ("--trust-remote-code",)}, "emit"),
    "a flag with a value": (lambda h: {"argv": ("--ssl-keyfile=/x",)}, "emit"),
    "a flag with the same beginning": (lambda h: {"argv": ("--hostile",)}, "emit"),
    "two dashes": (lambda h: {"argv": ("--", "x")}, "emit"),
    "a NUL in an argument": (lambda h: {"argv": ("-m", "x\0y")}, "not an argument"),
    "a port without a network": (lambda h: {"host_port": 17000}, "port"),
    "a network without a port": (lambda h: {"network": Network.BRIDGE}, "exactly one"),
    "a port of somebody's": (
        lambda h: {"network": Network.BRIDGE, "host_port": 8080, "container_port": 8080},
        "17000-17999",
    ),
    "a privileged port": (
        lambda h: {"network": Network.BRIDGE, "host_port": 17000, "container_port": 80},
        "1024",
    ),
    "the host's network": (lambda h: {"network": "host"}, "network"),
    "a umask of words": (lambda h: {"umask": "rwx"}, "umask"),
    "no memory": (lambda h: {"memory_limit": -1}, "memory_limit"),
    "no end to stopping": (lambda h: {"stop_timeout": float("inf")}, "stop_timeout"),
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_an_attempt_is_refused_with_its_reason(house: House, attempt: str) -> None:
    changes, reason = ATTEMPTS[attempt]
    with pytest.raises(SpecRefused, match=reason):
        validate(replace(house.spec, **changes(house)), house.rules)


def test_a_link_in_a_circle_shows_nothing(house: House) -> None:
    """It names a place in the store that cannot be opened; Podman refuses it."""
    validate(replace(house.spec, **models(str(house.store / "loop"))), house.rules)
    with pytest.raises(OSError, match="symbolic links"):
        (house.store / "loop").stat()


def test_careless_model_folders_do_not_open_the_system(house: House) -> None:
    for careless in ("/", "/etc"):
        rules = replace(house.rules, model_folders=(careless,))
        for source in ("/", "/etc", "/etc/ssl", "/proc/1", "/dev"):
            with pytest.raises(SpecRefused):
                validate(replace(house.spec, **models(source)), rules)


def test_a_profile_may_allow_what_is_refused_otherwise(house: House) -> None:
    loose = replace(security.STRICT, name="loose", root_user=True, env_allowed=frozenset({"LD_LIBRARY_PATH"}))
    rules = replace(house.rules, profiles={"loose": loose})
    validate(replace(house.spec, profile="loose", user="0:0", env={"LD_LIBRARY_PATH": "/opt/rocm/lib"}), rules)
    with pytest.raises(SpecRefused):
        validate(replace(house.spec, profile="loose", env={"LD_PRELOAD": "x"}), rules)


def test_every_shipped_profile_keeps_the_ground_rules() -> None:
    for profile in security.PROFILES.values():
        words = security.keywords(profile)
        assert words["privileged"] is False
        assert words["read_only"] is True
        assert words["cap_drop"] == ["ALL"]
        assert words["no_new_privileges"] is True
        assert not profile.root_user
        assert not profile.cap_add
        assert all(r.reason and r.source for r in profile.relaxations)
        assert words["mounts"] is not security.keywords(profile)["mounts"]


PIECES = st.sampled_from(
    [
        "models",
        "qwen",
        "secret",
        "engines",
        "out",
        "chain",
        "system",
        "inside",
        "loop",
        ENGINE,
        "..",
        ".",
        "",
        "etc",
        "\n",
    ]
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(PIECES, max_size=6),
    rooted=st.booleans(),
    target=st.lists(PIECES, max_size=3),
    writable=st.booleans(),
)
def test_no_accepted_mount_leads_out(
    house: House, pieces: list[str], rooted: bool, target: list[str], writable: bool
) -> None:
    source = os.path.join(str(house.root) if rooted else "/", *pieces)
    where = "/" + "/".join(target)
    for goal in (where, "/models" + where.rstrip("/"), "/run/engine"):
        mount = Mount(source, goal, read_only=not writable)
        try:
            validate(replace(house.spec, mounts=(mount,)), house.rules)
        except SpecRefused:
            continue
        real = os.path.realpath(source)
        if writable or goal == "/run/engine":
            assert real == str(house.socket.resolve())
        else:
            assert (real + "/").startswith(str(house.store.resolve()) + "/")
        assert validator._below(goal, "/models") or goal == "/run/engine"

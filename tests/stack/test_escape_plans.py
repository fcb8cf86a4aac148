"""Attempts to get out through what a model's definition, or a plan, asks for. All are refused."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from containers.errors import SpecRefused
from orchestrator.errors import EngineFailed
from orchestrator.plan import Limits, Method, PlanMount
from tests.models import generate as g
from tests.stack.bench import Bench, filled_store, opened
from tests.stack.stack import Stack, model_toml

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


# out through a model's definition


@pytest.fixture
def refused(stack: Stack) -> Iterator[Any]:
    """Tries a definition on the running daemon: the reload must refuse it, and nothing changes."""
    file = stack.paths.models_d / "evil.toml"

    def attempt(**changes: Any) -> Mapping[str, Any]:
        file.write_text(model_toml({**PLAIN, **changes}))
        answer = stack.send("POST", "/api/v1/reload", {"dry_run": False})
        assert answer.status_code == 400, answer.text
        assert answer.json()["code"] == "config_invalid"
        assert answer.json()["hint"]
        return dict(answer.json())

    yield attempt
    file.unlink(missing_ok=True)
    assert {d["deployment"] for d in stack.get("/api/v1/deployments")} == {"plain"}


VARIANT = {"name": "f32", "format": "gguf", "quantisation": "F32", "path": f"plain/{g.TARGET}"}
DRAFTER = {"name": "d", "method": "dflash", "format": "gguf", "path": f"plain/{g.TARGET}"}
PLAIN = {"name": "evil", "variants": [VARIANT], "context": 2048, "parallel": 1, "threads": 1}


@pytest.mark.parametrize(
    "name",
    [
        "--privileged",
        "../../etc",
        "a b",
        "a\nb",
        "a\0b",
        "a/b",
        "a\\b",
        "a'b",
        "$(id)",
        "-v/:/host",
        "",
        ".",
        "A",
        "a" * 64,
    ],
)
def test_names_that_are_more_than_names(refused: Any, name: str) -> None:
    refused(name=name)
    refused(variants=[{**VARIANT, "name": name}])
    refused(drafters=[{**DRAFTER, "name": name}])


@pytest.mark.parametrize(
    "alias", ["--rpc", "a,b", "x\n--host", "a\0b", "a b", "", "../x", "x" * 129, "plain", "Some/Alias"]
)
def test_aliases_that_are_more_than_names(refused: Any, alias: str) -> None:
    """An alias goes into argv, behind a flag; and no model can take another's name."""
    refused(aliases=[alias])


@pytest.mark.parametrize(
    "extra",
    [
        {"args": ["--rpc", "evil:1"]},
        {"env": {"LD_PRELOAD": "/tmp/x.so"}},
        {"privileged": True},
        {"mounts": ["/:/host"]},
        {"devices": ["/dev/sda"]},
        {"network": "host"},
        {"user": "0:0"},
        {"profile": "none"},
        {"runtime": "sh"},
        {"threads": "1 --rpc evil"},
        {"context": -1},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_words_that_a_model_does_not_have(refused: Any, extra: dict[str, Any]) -> None:
    refused(**extra)


@pytest.mark.parametrize(
    "image", ["--privileged", "../../containers/json", "scratch; reboot", "img\n--privileged", "http://evil.example/x"]
)
def test_image_references_that_are_more(stack: Stack, image: str) -> None:
    """Podman is asked for an image of this name, and there can be none."""
    reason = attempted(stack, image=image)
    assert reason["code"] == "image_unnamed"
    assert "registry/name:tag" in reason["hint"]


def attempted(stack: Stack, **changes: Any) -> Any:
    """Start a definition that the configuration takes: the reason it fails with, and no container of it."""
    file = stack.paths.models_d / "evil.toml"
    file.write_text(model_toml({**PLAIN, **changes}))
    try:
        assert stack.send("POST", "/api/v1/reload", {"dry_run": False}).status_code == 200
        assert stack.want("evil", "running").status_code == 200
        reason = stack.wait_state("evil", "failed", may_fail=True)["reason"]
        assert len(stack.containers()) == 1, "the one of `plain`"
        assert len(list(stack.paths.engines.iterdir())) == 2, "and its files"
        return reason
    finally:
        file.unlink()
        assert stack.send("POST", "/api/v1/reload", {"dry_run": False}).status_code == 200


@pytest.fixture(scope="module")
def outside(test_models: Path) -> Iterator[Path]:
    """A true model, in a folder that is not the store."""
    folder = Path(tempfile.mkdtemp(prefix="or-outside-"))
    shutil.copy(test_models / g.TARGET, folder)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/", "model_file", "is a folder"),
        ("/etc", "model_file", "is a folder"),
        ("/etc/shadow", "model_file", "is no GGUF file"),
        ("plain/../../../../etc/shadow", "model_file", "is no GGUF file"),
        ("/proc/self/environ", "model_file", "is empty"),
        ("/dev/zero", "model_file", "is no regular file"),
        ("PODMAN", "model_file", "cannot be read"),
        ("TOKEN", "model_file", "is no GGUF file"),
        ("a\0b", "model_file", "does not exist"),
        ("OUTSIDE", "spec_refused", "a mount from outside the model folders"),
        ("plain/../../../../OUTSIDE", "spec_refused", "a mount from outside the model folders"),
        ("linked.gguf", "spec_refused", "a mount from outside the model folders"),
        ("linked/MODEL", "spec_refused", "a mount from outside the model folders"),
        ("shadow.gguf", "model_file", "is no GGUF file"),
    ],
)
def test_model_paths_that_lead_elsewhere(stack: Stack, outside: Path, path: str, code: str, words: str) -> None:
    store = stack.paths.store
    links = {"linked.gguf": outside / g.TARGET, "linked": outside, "shadow.gguf": Path("/etc/shadow")}
    for name, target in links.items():
        (store / name).symlink_to(target)
    for word, value in (
        ("/OUTSIDE", f"{outside / g.TARGET}"),
        ("OUTSIDE", f"{outside / g.TARGET}"),
        ("PODMAN", stack.podman_socket),
        ("TOKEN", str(stack.paths.token_file)),
        ("MODEL", g.TARGET),
    ):
        path = path.replace(word, value)
    try:
        reason = attempted(stack, variants=[{**VARIANT, "path": path}])
    finally:
        for name in links:
            (store / name).unlink()
    assert reason["code"] == code
    assert words in reason["text"]
    assert "root:" not in reason["text"]


# out through a plan: what no configuration can say, said to the runner itself


@pytest.fixture(scope="module")
def bench_store(test_models: Path) -> Iterator[Path]:
    with filled_store(test_models) as state:
        yield state


@pytest.fixture
async def bench(podman_socket: str, embedded_image: str, bench_store: Path) -> AsyncIterator[Bench]:
    async with opened(bench_store, podman_socket) as bench:
        yield bench


SOURCES = (
    *("/", "/etc", "/proc", "/dev", "/sys", "/usr", "/root", "/home", "/run", "/var", "/tmp", "/var/lib/containers"),
    *("PODMAN", "STATE", "ENGINES", "STORE/..", "STORE/link", "relative", "STORE\n", "//etc"),
)
TARGETS = ("/", "/etc", "/app", "/models/../etc", "/run/engine/x", "/tmp", "/proc", "models", "/models/target/inner")


async def test_mounts_that_the_validator_refuses(bench: Bench) -> None:
    plan = await bench.plan(Method.NONE)
    (right,) = plan.mounts
    link = bench.paths.store / "link"
    link.symlink_to("/etc")
    words = {
        "PODMAN": bench.runner.podman.socket,
        "STATE": str(bench.paths.state_dir),
        "ENGINES": str(bench.paths.engines),
        "STORE": str(bench.paths.store),
    }
    mounts = []
    for source in SOURCES:
        for word, value in words.items():
            source = source.replace(word, value)  # noqa: PLW2901 - the same source with its words filled in
        mounts.append(PlanMount(source, right.target))
    mounts += [PlanMount(right.source, target) for target in TARGETS[:-1]]
    try:
        for mount in mounts:
            with pytest.raises(SpecRefused):
                await bench.bring_up(replace(plan, mounts=(mount,)))
        with pytest.raises(SpecRefused, match="over or in another"):
            await bench.bring_up(replace(plan, mounts=(right, PlanMount(right.source, TARGETS[-1]))))
    finally:
        link.unlink()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"argv": ("--rpc", "evil:1")}, "argument"),
        ({"argv": ("--api-key-file", "/run/engine/x")}, "argument"),
        ({"argv": ("--slot-save-path", "/models")}, "argument"),
        ({"argv": ("--log-file=/run/engine/x",)}, "argument"),
        ({"argv": ("-m\0--rpc",)}, "argument"),
        ({"env": {"LD_PRELOAD": "/models/target/x.so"}}, "environment"),
        ({"env": {"PATH": "/models"}}, "environment"),
        ({"env": {"HF_TOKEN": "hf_x"}}, "environment"),
        ({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, "environment"),
        ({"env": {"A=B": "x"}}, "name of an environment"),
        ({"env": {"A": "x\0y"}}, "value of an environment"),
        ({"devices": ("/dev/sda",)}, "device"),
        ({"devices": ("/dev/mem",)}, "device"),
        ({"devices": ("nvidia.com/gpu=0,/dev/sda",)}, "device"),
        ({"groups": (0,)}, "group"),
        ({"caches": (("outrider-x", "/etc"),)}, "cache"),
        ({"caches": (("podman-x", "/root/.cache"),)}, "compile cache"),
        ({"profile": "privileged"}, "profile"),
        ({"limits": Limits(memory=-1)}, "memory_limit"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(next(iter(value.items())))[:40],
)
async def test_plans_that_the_validator_refuses(bench: Bench, changes: dict[str, Any], words: str) -> None:
    plan = await bench.plan(Method.NONE)
    merged = dict(changes)
    if "argv" in changes:
        merged["argv"] = (*plan.argv, *changes["argv"])
    if "env" in changes:
        merged["env"] = {**plan.env, **changes["env"]}
    with pytest.raises(SpecRefused, match=words):
        await bench.bring_up(replace(plan, **merged))


async def test_an_image_by_a_name_that_can_change_its_meaning(bench: Bench) -> None:
    plan = await bench.plan(Method.NONE)
    for name in await _names(bench, plan.image):
        with pytest.raises(SpecRefused, match="must be an id or have a digest"):
            await bench.bring_up(replace(plan, image=name))


async def _names(bench: Bench, image: str) -> tuple[str, ...]:
    found = await bench.runner.podman.image(image)
    assert found is not None
    assert found.names
    return found.names


async def test_a_link_in_a_model_folder_leads_nowhere(bench: Bench) -> None:
    """It is followed in the container, where there is nothing of the host's."""
    plan = await bench.plan(Method.NONE)
    link = bench.paths.store / "models" / "link.gguf"
    for target in ("/etc/shadow", "../../token"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        argv = tuple(word.replace(g.TARGET, link.name) for word in plan.argv)
        with pytest.raises(EngineFailed) as caught:
            await bench.bring_up(replace(plan, argv=argv))
        assert caught.value.code == "model_unreadable"
        assert "root:" not in str(caught.value.evidence)
    link.unlink()

"""Reading good configurations: defaults, which files count, what is kept of them."""

from __future__ import annotations

import os

import pytest

from orchestrator.config import Config, client_url, split_listen
from orchestrator.models import Format, Runtime
from orchestrator.plan import Method
from tests.config.conftest import Folder


def test_no_files_mean_defaults(folder: Folder) -> None:
    assert folder.load() == Config()


def test_a_missing_folder_means_defaults(folder: Folder) -> None:
    folder.where.config_dir.rmdir()
    assert folder.load() == Config()


def test_every_setting_arrives(folder: Folder) -> None:
    folder.settings("""
[host]
name = "dankserver"
[gateway]
listen = "0.0.0.0:9080"
ops_listen = "[::1]:9082"
max_waiting = 3
hold_s = 12
max_body_bytes = 2048
[api]
listen = "localhost:9081"
enabled = false
[podman]
socket = "/run/podman/podman.sock"
[timing]
scale = 0.05
[engine]
context = 4096
parallel = 2
threads = 1
image = "localhost/outrider/llama-cpu"
""")
    config = folder.load()
    assert config.host.name == "dankserver"
    assert config.gateway.model_dump() == {
        "listen": "0.0.0.0:9080",
        "ops_listen": "[::1]:9082",
        "max_waiting": 3,
        "hold_s": 12.0,
        "max_body_bytes": 2048,
    }
    assert (config.api.listen, config.api.enabled) == ("localhost:9081", False)
    assert config.podman.socket == "/run/podman/podman.sock"
    assert config.timing.scale == 0.05
    assert config.defaults.model_dump() == {
        "context": 4096,
        "parallel": 2,
        "threads": 1,
        "image": "localhost/outrider/llama-cpu",
    }


def test_a_model_arrives_typed_and_with_its_origin(folder: Folder) -> None:
    file = folder.model(
        "m1",
        'aliases = ["M1-Instruct", "org/m1"]\nruntime = "llama.cpp"\ncontext = 2048',
        '[model.speculation]\nmethod = "ngram"\ndraft_tokens = 8\npolicy = "qps"\n',
    )
    config = folder.load()
    (entry,) = config.models
    assert entry.variants[0].format is Format.GGUF
    assert entry.runtime is Runtime.LLAMA_CPP
    assert entry.speculation.method is Method.NGRAM
    assert config.origins == {"m1": str(file)}
    assert config.model("org/m1") is config.model("m1") is entry
    assert config.model("m2") is None


def test_a_file_may_hold_several_models(folder: Folder) -> None:
    file = folder.model("m1", file="both.toml")
    folder.model("m2", file="more.toml")
    file.write_text(file.read_text() + (folder.where.models_d / "more.toml").read_text())
    (folder.where.models_d / "more.toml").unlink()
    assert [m.name for m in folder.load().models] == ["m1", "m2"]


def test_files_are_read_in_the_order_of_their_names(folder: Folder) -> None:
    for name in ("30.toml", "10.toml", "20.toml"):
        folder.model(f"m{name[0]}", file=name)
    assert [m.name for m in folder.load().models] == ["m1", "m2", "m3"]


@pytest.mark.parametrize(
    "name",
    [".m.toml", ".#m.toml", "#m.toml#", "m.toml~", "~m.toml", "m.toml.swp", "m.toml.bak", "m.toml.new", "README"],
)
def test_dot_files_and_editors_backups_do_not_count(folder: Folder, name: str) -> None:
    folder.models(name, "this is = = not toml")
    assert folder.load().models == ()


def test_a_symlink_to_a_file_counts(folder: Folder) -> None:
    target = folder.model("m1", file="elsewhere.txt")
    os.symlink(target, folder.where.models_d / "m1.toml")
    assert [m.name for m in folder.load().models] == ["m1"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("[::1]:65535", ("::1", 65535)),
        ("localhost:1", ("localhost", 1)),
        ("gpu-1.lan:80", ("gpu-1.lan", 80)),
    ],
)
def test_addresses_that_parse(text: str, parts: tuple[str, int]) -> None:
    assert split_listen(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8080",
        ":8080",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "127.0.0.1:http",
        "::1:8080",
        "[::g]:80",
        "300.0.0.1:80",
        "a b:80",
        "host:-1",
        "host:8\u00b2",
        "http://host:80",
    ],
)
def test_addresses_that_do_not(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        split_listen(text)


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("[::]:8080", "http://[::1]:8080"),
        ("[fe80::1]:80", "http://[fe80::1]:80"),
        ("gpu.lan:80", "http://gpu.lan:80"),
    ],
)
def test_a_listener_is_reached_where_a_client_can(listen: str, url: str) -> None:
    assert client_url(listen) == url

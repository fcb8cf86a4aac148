"""Nothing that names a person, a machine or a network gets through; what a reader needs does."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.doctor.redact import REMOVED, Redactor

GPU = "GPU-817285e3-758e-25e4-3b80-d38475e31dd6"


def clean(text: str) -> str:
    return Redactor(hosts=["dankserver.example.org"], users=["grace", "ada"]).text(text)


SECRETS = [
    ("https_proxy=http://grace:hunter2@proxy.lan:3128/", ["hunter2", "grace", "proxy.lan"]),
    ("http://:hunter2@10.1.2.3/", ["hunter2", "10.1.2.3"]),
    ("http://grace:p@ss/w0rd@proxy.example.com/", ["ss/w0rd"]),
    ("ftp://grace@files.internal", ["grace", "files"]),
    ("HF_TOKEN=hf_abcDEF1234567890", ["hf_abc", "1234567890"]),
    ("--token hf_abcDEF1234567890 x", ["hf_abc"]),
    ("Authorization: Bearer abc.def-ghi123", ["abc.def"]),
    ("curl -H 'Authorization: Basic Z3JhY2U6aHVudGVyMg=='", ["Z3JhY2U6"]),
    ("password=hunter2 next", ["hunter2"]),
    ('{"password": "hunter2"}', ["hunter2"]),
    ("https://hub.example.com/x?token=hunter2&a=1", ["hunter2"]),
    ("DB_PASSWD='hunter2 with spaces'", ["hunter2", "spaces"]),
    ("api-key: hunter2", ["hunter2"]),
    ("aws_secret_access_key = AKIAABCDEFGHIJKLMNOP", ["AKIAABC"]),
    ("ghp_0123456789abcdefghijABCDEFGHIJ", ["ghp_"]),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEF", ["eyJ"]),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAAB3Nza\n-----END OPENSSH PRIVATE KEY-----", ["AAAAB3"]),
    ("root=UUID=0a3407de-014b-458b-b5c1-848e92a327a3 ro", ["0a3407de"]),
    ("rd.luks.uuid=luks-0a3407de-014b-458b-b5c1-848e92a327a3", ["0a3407de", "848e92"]),
    ("systemd.machine_id=0123456789abcdef0123456789abcdef", ["0123456789abcdef"]),
    ("boot 0123456789abcdef0123456789abcdef ended", ["0123456789abcdef"]),
    ("Serial Number: PF3XYZ12", ["PF3XYZ12"]),
    ("board s/n: 07C8510_L61E", ["07C8510"]),
    ("/dev/disk/by-id/nvme-Samsung_SSD_990_PRO_2TB_S7KHNJ0W512345", ["S7KHNJ0W", "Samsung"]),
    ("eth0 52:54:00:12:34:56 up", ["52:54:00"]),
    ("ip=192.168.178.20::192.168.178.1:255.255.255.0", ["192.168"]),
    ("listens on 10.0.0.7:8080", ["10.0.0.7"]),
    ("fe80::5054:ff:fe12:3456%eth0", ["fe80", "5054"]),
    ("2001:db8:1:2:3:4:5:6", ["2001", "db8"]),
    ("[2001:db8::7]:8080", ["2001", "db8"]),
    ("dankserver kernel: NVRM: Xid", ["dankserver"]),
    ("DANKSERVER.example.org said", ["DANKSERVER", "example"]),
    ("/home/grace/models/x.gguf", ["grace"]),
    ("/var/home/somebody/.config", ["somebody"]),
    ("/Users/somebody/x", ["somebody"]),
    ("grace may not open /dev/kfd", ["grace"]),
    ("write to grace.hopper@navy.example.mil", ["hopper", "navy"]),
    ("mirror.corp and a.b.fritz.box", ["mirror", "fritz"]),
    ("/run/user/1000/podman and user-1000.slice", ["1000"]),
]
PLAIN = [
    "GPU 0000:01:00.0 fell off the bus at 12:34:56",
    "driver 580.95.05, CUDA 13.0, vbios 94.02.42.C0.05",
    "AMD STRIX_HALO_GENERIC 113-STRXLGEN-001 023.011.000.039.000001",
    "kernel 6.18.44-fc-v657, linux-firmware 20251125-2.fc43",
    "ttm.pages_limit=29360128 amdgpu.gttsize=114688",
    "127.0.0.1:8080, 0.0.0.0, ::1, [::]:80 and localhost",
    "NVRM: Xid (PCI:0000:01:00): 79, pid=1234, name=python3",
    "nvidia.com/gpu=0 in /etc/cdi/nvidia.yaml, cdiVersion: 0.5.0",
    f"docker://ghcr.io/x/y@sha256:{'ab' * 32}",
    "docker.io/vllm/vllm-openai:v0.33.0 and ghcr.io/ggml-org/llama.cpp:server-cuda",
    "draft_tokens=8 max_tokens: 512",
    "NVIDIA RTX 6000 Ada Generation",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
    "user-1000x and user.slice",
]


@pytest.mark.parametrize(("text", "gone"), SECRETS, ids=range(len(SECRETS)))
def test_what_must_not_be_told(text: str, gone: list[str]) -> None:
    said = clean(text)
    assert not [word for word in gone if word.lower() in said.lower()], said


@pytest.mark.parametrize("text", PLAIN)
def test_what_a_reader_needs_stays(text: str) -> None:
    assert clean(text) == text


def test_relations_stay_readable() -> None:
    """One GPU has one name, in keys, values and inside texts; another has another."""
    other = GPU.replace("817285e3", "00000000")
    document = {
        "facts": [{"uuid": GPU}, {"uuid": other}],
        f"nvidia.com/gpu={GPU}": f"CDI names {GPU.upper().replace('GPU-', 'GPU-')} and {other}",
        "hosts": "10.0.0.5 asks 10.0.0.6, 10.0.0.5 again; dankserver = dankserver.example.org",
    }
    assert Redactor(hosts=["dankserver"]).document(document) == {
        "facts": [{"uuid": "gpu-1"}, {"uuid": "gpu-2"}],
        "nvidia.com/gpu=gpu-1": "CDI names gpu-1 and gpu-2",
        "hosts": "ip-1 asks ip-2, ip-1 again; host-1 = host-1",
    }


def test_names_that_promise_a_secret() -> None:
    document = {
        "serial": "PF3XYZ12",
        "machine_id": "short",
        "hostname": "box",
        "Auth": {"user": "x"},
        "env": ["HF_TOKEN=x", "PATH=/bin", "--api-key", "x", "-v"],
        "settings": [{"name": "NGC_API_KEY", "value": "x"}, {"name": "HSA_OVERRIDE_GFX_VERSION", "value": "11.0.0"}],
        "draft_tokens": 8,
        "secrets_set": True,
        "nothing": None,
    }
    assert Redactor().document(document) == {
        "serial": REMOVED,
        "machine_id": REMOVED,
        "hostname": REMOVED,
        "Auth": REMOVED,
        "env": [f"HF_TOKEN={REMOVED}", "PATH=/bin", "--api-key", REMOVED, "-v"],
        "settings": [
            {"name": "NGC_API_KEY", "value": REMOVED},
            {"name": "HSA_OVERRIDE_GFX_VERSION", "value": "11.0.0"},
        ],
        "draft_tokens": 8,
        "secrets_set": True,
        "nothing": None,
    }


@pytest.mark.parametrize("name", ["nvidia", "vm", "ab", "1000", "", " ", "localhost", "Debian"])
def test_a_name_that_is_a_word_of_ours_takes_nothing_else_away(name: str) -> None:
    text = "nvidia.com/gpu=0 on vm.max_map_count, ab 1000 localhost Debian GNU/Linux"
    assert Redactor(hosts=[name], users=[name]).text(text) == text


def test_names_are_words_and_no_patterns() -> None:
    redactor = Redactor(hosts=["a.c[x"], users=["g.ace", "(((", "grace"])
    assert redactor.text("abcx grace disgrace g.ace (((") == "abcx user-1 disgrace user-2 user-3"


def test_what_is_deep_long_or_odd() -> None:
    deep: object = "hunter2"
    for _ in range(5000):
        deep = [deep]
    assert "hunter2" not in json.dumps(Redactor().document(deep))
    odd = {1: b"x", "t": (1, 2.5), "s": {"b", "a"}, "o": ValueError("password=x")}
    assert Redactor().document(odd) == {"1": "b'x'", "t": [1, 2.5], "s": ["a", "b"], "o": f"password={REMOVED}"}
    begun = time.monotonic()
    for unit in ("a", "1.", ":", "ab:", "-", "password=", "a@", "GPU-", "http://", "-----BEGIN ", "0" * 31 + " "):
        Redactor(hosts=["dankserver"], users=["grace"]).text(unit * (50_000 // len(unit)))
    assert time.monotonic() - begun < 5


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=40)
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=12), inner), max_leaves=12
)


@settings(max_examples=40)
@given(DOCUMENTS)
def test_any_document_stays_json_and_is_not_changed_twice_by_its_own_words(document: object) -> None:
    once = Redactor().document(document)
    json.dumps(once)
    again = Redactor().document(once)
    json.dumps(again)


@settings(max_examples=60)
@given(st.text(max_size=30), st.sampled_from(["hf_abcDEF1234567890", "0a3407de-014b-458b-b5c1-848e92a327a3"]))
def test_a_secret_after_any_words(before: str, secret: str) -> None:
    assert secret not in Redactor().text(f"{before} {secret}")

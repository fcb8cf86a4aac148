"""`outrider top`: one screen."""

from __future__ import annotations

from typing import Any

from tests.cli import fake
from tests.cli.conftest import Call

GIB = 1024**3
ENGINE = "0" * 16
HOST = {
    "host": "dankclaw",
    "accelerators": [{"pci": "0000:c6:00.0", "name": "AMD Radeon 8060S", "vendor": "amd"}],
}


def sample(**changes: Any) -> dict[str, Any]:
    gpu = {
        "pci": "0000:c6:00.0",
        "memory_total": 112 * GIB,
        "memory_used": 60 * GIB,
        "memory_free": 40 * GIB,
        "others": GIB,
        "utilisation": 97,
        "clock_mhz": 2900,
        "power_w": 119.6,
        "power_limit_w": None,
        "temperature_c": 88.0,
        "throttled_by": ["software_thermal"],
    }
    engine = {
        "id": ENGINE,
        "deployment": "smollm2",
        "generation": 3,
        "gpu_memory": {"0000:c6:00.0": 50 * GIB},
        "memory": 7 * GIB,
        "rss": GIB,
    }
    other = {
        "pci": "0000:c6:00.0",
        "pid": 10,
        "name": "gnome-shell",
        "memory": 512 * 1024**2,
        "kind": "graphics",
        "container": None,
        "desktop": True,
    }
    host = {"memory_total": 121 * GIB, "memory_available": 50 * GIB, "memory_full": 2.5}
    found = {
        "sequence": 5000,
        "at": 1_760_000_000.0,
        "monotonic_s": 5.0,
        "host": host,
        "accelerators": [gpu],
        "engines": [engine],
        "others": [other, {**other, "pid": 11, "name": None, "container": "b" * 64, "desktop": False}],
        "problems": [],
    }
    return {**found, **changes}


def answered(daemon: fake.Script, samples: list[Any]) -> None:
    daemon.on("GET", "/telemetry", samples)
    daemon.on("GET", "/host", HOST)
    daemon.on("GET", "/deployments", [fake.view(engines=[fake.view()["engine"]])])


def test_one_screen(call: Call, daemon: fake.Script) -> None:
    answered(daemon, [sample()])
    said = call("top")
    assert said.code == 0
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert lines[0].startswith("dankclaw at 2025-10-09 ")
    assert lines[0].endswith(": 50.0 GiB of 121.0 GiB available, tasks waited for memory 2.5 % of the time")
    assert (
        "0000:c6:00.0 AMD Radeon 8060S 60.0 GiB 112.0 GiB 40.0 GiB 1.0 GiB 97 % 2900 MHz 120 W 88 C software thermal"
        in lines
    )
    assert "smollm2 3 ready 50.0 GiB 7.0 GiB 0 0" in lines
    assert "0000:c6:00.0 10 gnome-shell 512 MiB desktop -" in lines
    assert f"0000:c6:00.0 11 - 512 MiB graphics {'b' * 12}" in lines


def test_what_is_unknown_is_a_dash(call: Call, daemon: fake.Script) -> None:
    gpu = dict.fromkeys(sample()["accelerators"][0], None) | {"pci": "0000:c6:00.0"}
    answered(daemon, [sample(host=None, accelerators=[gpu], others=[], problems=["amd_sysfs_timeout"])])
    said = call("top")
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert "0000:c6:00.0 AMD Radeon 8060S - - - - - - - - -" in lines
    assert "not read this time: amd_sysfs_timeout" in lines


def test_nothing_there_yet(call: Call, daemon: fake.Script) -> None:
    answered(daemon, [])
    said = call("top")
    assert (said.code, said.out) == (0, "")
    assert "has not looked yet" in said.err
    assert call("top", "--json").document["sample"] is None


def test_json(call: Call, daemon: fake.Script) -> None:
    answered(daemon, [sample()])
    assert call("top", "--json").document["sample"] == sample()
    assert daemon.asked[0].query == "limit=1"

"""Outrider's own image and Quadlets: built and generated for real, from a base made on this machine."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.install.machine import CHECKOUT, command, limits, root
from tests.install.test_units import machine as machine  # noqa: PLC0414 - a fixture
from tests.install.test_units import verify

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
FOLDER = CHECKOUT / "deploy" / "container"


def quadlet(folder: Path) -> subprocess.CompletedProcess[str]:
    """Podman 5's generator on the Quadlets of a folder; it runs on this machine, too."""
    program = root("trixie") / "usr/libexec/podman/quadlet"
    return subprocess.run(
        [program, "-dryrun"],
        env={"QUADLET_UNIT_DIRS": str(folder), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_quadlets_become_units(machine: Path) -> None:
    done = quadlet(FOLDER)
    assert done.returncode == 0, done.stderr
    units: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in done.stdout.splitlines():
        if line.startswith("---") and line.endswith("---"):
            lines = units.setdefault(line.strip("-"), [])
        else:
            lines.append(line)
    assert set(units) == {"outrider.service", "outrider-gateway.service"}
    podman = machine / "usr/bin/podman"
    podman.parent.mkdir(exist_ok=True)
    shutil.copy(machine / "bin/kill", podman)
    shutil.copy(machine / "bin/kill", machine / "usr/bin/rm")
    for name, text in units.items():
        (machine / "etc/systemd/system" / name).write_text("\n".join(text) + "\n")
    for name, text in units.items():
        assert verify(machine, name) == (0, ""), name
        assert any(line.startswith("Type=notify") for line in text), "the process in the container says when"
    (start,) = (line for line in units["outrider-gateway.service"] if line.startswith("ExecStart="))
    assert "/run/outrider:/run/outrider:ro" in start
    assert "--user outrider" in start or "--user=outrider" in start


def test_a_wrong_quadlet_is_seen(tmp_path: Path) -> None:
    text = (FOLDER / "outrider.container").read_text()
    (tmp_path / "outrider.container").write_text(text.replace("[Container]\n", "[Container]\nNoSuchKey=1\n"))
    done = quadlet(tmp_path)
    assert done.returncode != 0
    assert "NoSuchKey" in done.stderr


@pytest.fixture
def base() -> Iterator[str]:
    """A base image made of a Debian on this machine: no registry is asked."""
    name = f"localhost/outrider-test-base:{secrets.token_hex(4)}"
    folder = root("bookworm")
    with subprocess.Popen(
        ["tar", "-C", folder, "--exclude=./opt/*", "--exclude=./var/lib/apt/*", "-c", "."], stdout=subprocess.PIPE
    ) as tar:
        subprocess.run(["podman", "import", "-q", "-", name], stdin=tar.stdout, check=True, timeout=300)
    yield name
    subprocess.run(["podman", "rmi", "-f", name], capture_output=True, check=False)


def test_the_image_is_built_and_runs(base: str, tmp_path: Path) -> None:
    name = f"localhost/outrider-test:{secrets.token_hex(4)}"
    conf = tmp_path / "pip.conf"  # where pip finds packages on this machine, and whom it trusts
    known = [Path("/etc/pip.conf"), Path("~/.config/pip/pip.conf").expanduser()]
    text = next((path.read_text() for path in known if path.exists()), "[global]\n")
    certificates = "/etc/ssl/certs/ca-certificates.crt"
    conf.write_text(f"{text}\n[install]\ncert = {certificates}\n")
    volumes = [f"--volume={conf}:/etc/pip.conf:ro", f"--volume={certificates}:{certificates}:ro"]
    words = [
        "podman",
        "build",
        "--layers=false",
        *limits(),
        "--network=host",
        "--build-arg",
        f"BASE={base}",
        "--tag",
        name,
    ]
    try:
        command(*words, *volumes, "--file", FOLDER / "Containerfile", CHECKOUT)
        assert command("podman", "run", "--rm", *limits(), "--network=none", name, "--version").startswith("outrider ")
        found = json.loads(command("podman", "run", "--rm", *limits(), "--network=none", name, "probe", "--json"))
        assert found["cpu"]["threads"] >= 1
        entry = ["--entrypoint", "/opt/outrider/bin/python", name, "-P", "-c"]
        code = "from api.install import layout; print(layout.shipped('outrider.service').decode())"
        shipped = command("podman", "run", "--rm", *limits(), "--network=none", *entry, code)
        assert shipped.strip() == (CHECKOUT / "deploy/systemd/outrider.service").read_text().strip()
    finally:
        subprocess.run(["podman", "rmi", "-f", name], capture_output=True, check=False)

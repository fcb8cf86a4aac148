"""The installation on whole machines: Debian 12 and 13, with their own systemd, Podman and Python."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from api.install import layout
from tests.install.machine import CHECKOUT, LIMIT, Machine, machine
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.waiting import until_sync

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(1800)]
OUTRIDER = ("/opt/venv/bin/outrider",)
INSTALLED = ("/usr/local/bin/outrider",)
UNITS = ("outrider.service", "outrider-gateway.service")
CHAT = """
import json, sys, urllib.request
body = {"model": "plain", "messages": [{"role": "user", "content": "x"}], "max_tokens": 32, "temperature": 0}
request = urllib.request.Request("http://127.0.0.1:8080/v1/chat/completions", json.dumps(body).encode(),
    {"content-type": "application/json"})
with urllib.request.urlopen(request, timeout=120) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
"""
SUITES = ("bookworm", "trixie")


@pytest.fixture(scope="module", params=SUITES)
def debian(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with machine(request.param) as made:
        yield made


def chat(debian: Machine) -> str:
    return debian.run("python3", "-", text=CHAT).rstrip("\n")


def shown(debian: Machine, what: str, unit: str = UNITS[0]) -> str:
    """A property of a unit."""
    return debian.run("systemctl", "show", "-P", what, unit).strip()


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, object]:
    """What is not as it was."""
    return {
        path: (before.get(path), after.get(path)) for path in {**before, **after} if before.get(path) != after.get(path)
    }


def engine(debian: Machine) -> Any:
    (one,) = debian.json(*INSTALLED, "ps", "--json")
    return one["engine"]


def test_a_machines_life_with_outrider(debian: Machine, embedded_image: str, test_models: Path) -> None:
    before = debian.tree()
    _install(debian)
    _units_are_what_systemd_likes(debian)
    _a_model_answers(debian, embedded_image, test_models)
    _the_daemons_sandbox_is_as_its_comments_say(debian)
    _the_gateway_can_plant_nothing(debian)
    _a_wedged_daemon_is_restarted_and_engines_go_on(debian)
    _a_reboot_brings_everything_back(debian)
    _again_and_away(debian)
    after = debian.tree()
    assert changes(before, after) == {}
    assert debian.run("podman", "ps", "-aq") == ""
    assert "outrider" not in debian.run("podman", "images")


def _install(debian: Machine) -> None:
    said = debian.json(*OUTRIDER, "install", "--json")
    assert said["changed"] is True
    for unit in (layout.SOCKET, *UNITS):
        assert debian.run("systemctl", "is-active", unit).strip() == "active"
        assert debian.run("systemctl", "is-enabled", unit).strip() == "enabled"
    for entry in layout.entries():
        if entry.target is None:
            shown = debian.run("stat", "-c", "%a %U:%G", entry.path).strip()
            assert shown == f"{entry.mode:o} {entry.user}:{entry.group}", entry.path
    assert debian.run("stat", "-c", "%a %U:%G", layout.TOKEN).strip() == "600 root:root"
    assert debian.run("stat", "-c", "%U:%G", "/run/outrider/control.sock").strip() == "root:outrider"
    assert "gateway.pid" in debian.run("ls", "/run/outrider/gateway")
    gateway = debian.run("systemctl", "show", "-P", "MainPID", UNITS[1]).strip()
    assert debian.run("stat", "-c", "%U", f"/proc/{gateway}").strip() == "outrider"
    again = debian.json(*OUTRIDER, "install", "--json")
    assert {s["state"] for s in again["steps"]} == {"unchanged"}
    assert debian.run("systemctl", "show", "-P", "MainPID", UNITS[1]).strip() == gateway, "nothing was started again"
    # a member of the group operates it without being root
    debian.run("useradd", "--no-create-home", "--groups", "outrider", "alice")
    alice = ("runuser", "-u", "alice", "--", *INSTALLED)
    code, _, err = debian.call(*alice, "ps")
    assert (code, "--state-dir /var/lib/outrider" in err) == (6, True), err
    debian.run(*alice, "--state-dir", layout.STATE, "ps")
    code, _, err = debian.call(*INSTALLED, "down")
    assert (code, "systemctl stop" in err) == (4, True), err
    debian.run("userdel", "alice")


def _units_are_what_systemd_likes(debian: Machine) -> None:
    for unit in UNITS:
        code, out, err = debian.call("systemd-analyze", "verify", "--man=no", f"{layout.UNIT_FOLDER}/{unit}")
        assert (code, out, err) == (0, "", "")
        debian.run("systemd-analyze", "security", "--no-pager", "--threshold=50", unit)


def _a_model_answers(debian: Machine, image: str, models: Path) -> None:
    archive = debian.data / "image.tar"
    subprocess.run(["podman", "save", "-o", archive, "localhost/outrider/llama-cpu:latest"], check=True, timeout=120)
    debian.run("podman", "load", "-i", "/srv/data/image.tar")
    (debian.data / g.TARGET).write_bytes((models / g.TARGET).read_bytes())
    where = f"/srv/data/{g.TARGET}"
    sizes = ("--context", "2048", "--parallel", "1", "--threads", "1")
    debian.run(*INSTALLED, "model", "add", "plain", "--path", where, *sizes)
    debian.run(*INSTALLED, "start", "plain", "--wait")
    assert chat(debian) == recital(32)
    until_sync(lambda: "1 of 1 model ready" in shown(debian, "StatusText"), 30, "the unit's status")


SANDBOX = ("Capability", "KeyringMode", "Lock", "NoNew", "Protect", "ReadWrite", "Restrict", "SystemCall", "UMask")
MAY = """
head -c 0 /dev/kmsg && echo kernel log
cat /proc/1/environ > /dev/null && echo processes of others
touch /etc/outrider/x && rm /etc/outrider/x && echo models.d
touch /var/tmp/x && rm /var/tmp/x && echo leftovers of pulls
touch /opt/x && ln /opt/x /var/lib/outrider/x && rm /opt/x /var/lib/outrider/x && echo hard links on one disk
podman --url unix:///run/podman/podman.sock info > /dev/null && echo what the doctor asks
for path in /usr/x /home/x /root/x /proc/sys/kernel/hostname; do touch $path || echo not $path; done
mount -t tmpfs x /mnt || echo no mounts
unshare --net true || echo no namespaces
"""


def _the_daemons_sandbox_is_as_its_comments_say(debian: Machine) -> None:
    """What the daemon does, and what it never does, tried in a unit with the same sandbox."""
    unit = (CHECKOUT / "deploy/systemd" / UNITS[0]).read_text().splitlines()
    words = [word for line in unit if line.startswith(SANDBOX) for word in ("-p", line)]
    said = debian.run("systemd-run", "--pipe", "--wait", "--quiet", *words, "sh", "-c", MAY).splitlines()
    assert said == [
        "kernel log",
        "processes of others",
        "models.d",
        "leftovers of pulls",
        "hard links on one disk",
        "what the doctor asks",
        *(f"not {path}" for path in ("/usr/x", "/home/x", "/root/x", "/proc/sys/kernel/hostname")),
        "no mounts",
        "no namespaces",
    ]


def _the_gateway_can_plant_nothing(debian: Machine) -> None:
    """In the gateway's own sandbox, as the gateway's user."""
    gateway = debian.run("systemctl", "show", "-P", "MainPID", UNITS[1]).strip()
    uid = debian.run("id", "-u", "outrider").strip()
    inside = ("nsenter", "-t", gateway, "-m", "-S", uid, "-G", uid)
    for what in (["touch", "/run/outrider/engines/x"], ["ln", "-s", "/etc", "/run/outrider/engines/y"]):
        code, _, err = debian.call(*inside, *what)
        assert (code, "Read-only file system" in err) == (1, True), err
    code, _, err = debian.call(*inside, "ls", "/root")
    assert code != 0, "homes are out of reach"
    assert debian.call(*inside, "touch", "/run/outrider/gateway/x")[0] == 0
    debian.run("rm", "/run/outrider/gateway/x")


def _a_wedged_daemon_is_restarted_and_engines_go_on(debian: Machine) -> None:
    was = engine(debian)
    folder = f"/run/systemd/system/{UNITS[0]}.d"
    debian.run("mkdir", folder)
    debian.run("tee", f"{folder}/soon.conf", text="[Service]\nWatchdogSec=8\n")
    debian.run("systemctl", "daemon-reload")
    debian.run("systemctl", "restart", UNITS[0])
    pid = debian.run("systemctl", "show", "-P", "MainPID", UNITS[0]).strip()
    assert engine(debian)["container_id"] == was["container_id"], "adopted"
    debian.run("kill", "-STOP", pid)
    assert chat(debian) == recital(32), "traffic goes on without the daemon"
    until_sync(
        lambda: (
            debian.run("systemctl", "show", "-P", "MainPID", UNITS[0]).strip() not in (pid, "0")
            and debian.call("systemctl", "is-active", UNITS[0])[1].strip() == "active"
        ),
        LIMIT,
        "the watchdog's restart",
    )
    assert "watchdog" in debian.run("journalctl", "--no-pager", "-u", UNITS[0]).lower()
    assert engine(debian)["container_id"] == was["container_id"]
    assert engine(debian)["pid"] == was["pid"]
    debian.run("rm", "-r", folder)
    debian.run("systemctl", "daemon-reload")


def _a_reboot_brings_everything_back(debian: Machine) -> None:
    debian.reboot()

    def ready() -> bool:
        code, out, _ = debian.call(*INSTALLED, "ps", "--json")
        return code == 0 and [one["state"] for one in json.loads(out)] == ["ready"]

    until_sync(ready, LIMIT, "the model after a reboot")
    assert chat(debian) == recital(32)


def _again_and_away(debian: Machine) -> None:
    left = debian.json(*INSTALLED, "uninstall", "--json")["left"]
    assert any("weights" in line for line in left)
    assert debian.run("podman", "ps", "-aq") == "", "nobody would look after engines"
    for unit in UNITS:
        assert debian.call("systemctl", "cat", unit)[0] != 0
    assert not (debian.root / "opt/outrider").exists()
    assert (debian.root / "var/lib/outrider/models/plain").exists()
    debian.run(*OUTRIDER, "install")
    until_sync(lambda: (engine(debian) or {}).get("since"), LIMIT, "what was wanted starts again")
    dry = debian.json(*INSTALLED, "uninstall", "--purge", "--dry-run", "--json")
    assert ("removed", "/var/lib/outrider") in {(s["state"], s["subject"]) for s in dry["steps"]}
    debian.run(*INSTALLED, "uninstall", "--purge", "--yes")


@pytest.mark.parametrize("suite", SUITES)
def test_a_root_without_a_running_systemd(suite: str) -> None:
    """As an image builder has it: files, users and links; and what to type on the machine itself."""
    with machine(suite, systemd=False) as place:
        before = place.tree()
        said = place.json(*OUTRIDER, "install", "--json")
        assert "systemctl start podman.socket outrider.service outrider-gateway.service" in said["next"][-1]
        assert place.run("stat", "-c", "%a %U:%G", "/var/lib/outrider/gateway").strip() == "700 outrider:outrider"
        wants = place.root / "etc/systemd/system/multi-user.target.wants"
        assert (wants / "outrider.service").is_symlink()
        middle = place.tree()
        assert place.json(*OUTRIDER, "install", "--json")["changed"] is False
        assert place.tree() == middle
        place.run(*INSTALLED, "uninstall", "--purge", "--yes")
        after = place.tree()
        assert changes(before, after) == {}

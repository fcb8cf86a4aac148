"""Low water, logs and drains on a whole Outrider with a real engine, its state folder on a small disk."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models import generate as g
from tests.stack.stack import Stack

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
MIB = 2**20
SIZE = 96 * MIB
LOGS = "[logs]\nengine_bytes = {engine}\ndaemon_bytes = 65536\n"


@pytest.fixture(scope="module")
def deaf() -> Iterator[int]:
    """A port that takes connections and never answers: a download from it goes on for a while."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@pytest.fixture(scope="module")
def stack(podman_socket: str, embedded_image: str, test_models: Path, deaf: int) -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="or-small-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], check=True)
    try:
        environ = {"PIP_INDEX_URL": f"http://127.0.0.1:{deaf}/simple"}
        made = Stack(podman_socket, folder=folder, settings=LOGS.format(engine=65536), environ=environ)
        made.define("m", test_models / g.TARGET, method="none")
        with made:
            made.start("m")
            yield made
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()


@pytest.mark.slow
def test_a_disk_that_runs_full_stops_pulls_and_no_engine(stack: Stack) -> None:
    job = stack.send("POST", "/api/v1/models", {"name": "pulled", "wheel": "nothing==1.0"}).json()
    assert job["state"] == "running"
    ballast = stack.folder / "ballast"
    ballast.write_bytes(bytes(SIZE - 8 * MIB))
    left = os.statvfs(stack.folder)
    with ballast.open("ab") as file:  # 3 of 100
        file.write(bytes(left.f_bavail * left.f_frsize - SIZE * 3 // 100))

    (issue,) = stack.wait(lambda: stack.get("/api/v1/issues"), what="the issue")
    assert (issue["code"], issue["subject"]) == ("low_disk", str(stack.folder))
    assert issue["evidence"]["total_bytes"] == SIZE
    assert "outrider prune --dry-run" in issue["hint"]
    stopped = stack.wait(
        lambda: next(j for j in stack.get("/api/v1/jobs") if j["id"] == job["id"] and j["state"] != "running"),
        what="the job is cancelled",
    )
    assert (stopped["state"], stopped["error"]["code"]) == ("cancelled", "disk_full")
    refused = stack.send("POST", "/api/v1/models", {"name": "pulled", "wheel": "nothing==1.0"})
    assert (refused.status_code, refused.json()["code"]) == (507, "disk_full")
    assert refused.json()["retryable"]
    assert stack.text("m")
    assert stack.deployment("m")["engine"]["generation"] == 1
    # how much could go is found out after the issue is there
    stack.wait(lambda: "reclaimable_bytes" in stack.get("/api/v1/issues")[0]["evidence"], what="what can go")

    ballast.unlink()
    stack.wait(lambda: not stack.get("/api/v1/issues"), what="the issue is closed")
    codes = stack.codes()
    assert codes.count("low_disk") == codes.count("low_disk_over") == codes.count("pull_stopped") == 1
    again = stack.send("POST", "/api/v1/models", {"name": "pulled", "wheel": "nothing==1.0"}).json()
    assert again["state"] == "running"
    assert stack.send("DELETE", f"/api/v1/jobs/{again['id']}").json()["state"] == "cancelled"


def test_a_new_cap_holds_for_new_engines_and_touches_none(stack: Stack) -> None:
    def cap() -> str:
        (container,) = stack.containers()
        return str(json.loads(stack.podman("inspect", container))[0]["HostConfig"]["LogConfig"]["Size"])

    assert cap() == "65.54kB"
    stack.write_settings(LOGS.format(engine=131072))
    changed = stack.send("POST", "/api/v1/reload", {}).json()
    assert [(c["subject"], c["action"]) for c in changed["changes"]] == [("logs.engine_bytes", "none")]
    view = stack.deployment("m")
    assert (view["state"], view["drifted"], view["engine"]["generation"]) == ("ready", False, 1)
    assert cap() == "65.54kB"
    assert stack.send("POST", "/api/v1/deployments/m/restart").status_code == 200
    stack.wait(lambda: (stack.deployment("m")["engine"] or {}).get("generation") == 2, what="a new engine")
    stack.wait_state("m", "ready")
    assert cap() == "131.1kB"


def start_with_log(stack: Stack) -> Path:
    """A daemon as `up --detach` starts it: its log in the state folder, and nearly full."""
    log = stack.paths.logs / "daemon.log"
    log.write_bytes(b"x" * 65_500)
    with log.open("ab") as file:
        command = [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), "daemon"]
        stack.daemon = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    stack.wait_api()
    return log


@pytest.mark.slow
def test_a_drained_deployment_stays_drained_over_a_restart_until_it_is_started(stack: Stack) -> None:
    assert stack.send("POST", "/api/v1/deployments/m/drain").status_code == 200
    stack.wait_state("m", "draining")
    stack.wait(lambda: stack.chat("m", 4).status_code == 503, what="nothing more is admitted")
    engine = stack.deployment("m")["engine"]["id"]

    stack.kill_daemon()
    log = start_with_log(stack)
    stack.wait(lambda: "adopt" in stack.codes("m"), what="adoption")
    assert stack.wait_state("m", "draining")["engine"]["id"] == engine
    assert stack.chat("m", 4).status_code == 503
    # and by the way: the log was begun anew
    assert (stack.paths.logs / "daemon.log.1").stat().st_size == 65_500
    assert b"xxx" not in log.read_bytes()
    assert json.loads(log.read_text().splitlines()[0])

    assert stack.want("m", "running").status_code == 200
    stack.wait_state("m", "ready")
    stack.wait(lambda: stack.chat("m", 4).status_code == 200, what="it admits again")
    stack.kill_daemon()
    stack.start_daemon()
    stack.wait(lambda: stack.deployment("m")["engine"] is not None, what="adoption")
    assert stack.wait_state("m", "ready")["engine"]["id"] == engine

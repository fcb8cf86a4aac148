"""The host goes down while a model is being loaded: that model does not start by itself again.

The daemon is killed in the middle of a real load, the containers are taken away as a reboot would,
and the next daemon is shown another boot id.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.guard.conftest import FakeHost
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


def outrider(stack: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def marks(stack: Stack) -> list[str]:
    folder = stack.paths.loading
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def killed_while_loading(stack: Stack, *names: str) -> None:
    """Kill the daemon while these are being loaded. Their processes are stopped before they have loaded."""
    for name in names:
        assert stack.want(name, "running").status_code < 300

    def loading() -> list[Any]:
        found = [stack.deployment(name)["engine"] for name in names]
        return found if all(e and e["pid"] and e["state"] == "loading" for e in found) else []

    engines = until_sync(loading, 30, "loading")
    for engine in engines:
        os.kill(engine["pid"], signal.SIGSTOP)
    assert [stack.deployment(name)["engine"]["state"] for name in names] == ["loading"] * len(names)
    assert marks(stack) == sorted(f"{name}.json" for name in names)
    stack.kill_daemon()


def issues(stack: Stack, code: str = "suspected_host_crash") -> dict[str, Any]:
    return {i["subject"]: i for i in stack.get("/api/v1/issues") if i["code"] == code}


@pytest.mark.slow
def test_after_a_crash_of_the_host_only_a_person_starts_what_was_loading(
    make_stack: MakeStack, heavy_models: Path, host: FakeHost
) -> None:
    stack = make_stack(environ=host.environ, gateway=False)
    for name in ("m", "n", "idle"):
        stack.define(name, heavy_models / g.TARGET_HEAVY, method="none")
    with stack:
        killed_while_loading(stack, "m", "n")
        stack.podman("rm", "-f", "-t", "0", *stack.containers())
        before, after = host.boot(1), host.boot(2)
        stack.start_daemon()
        found = issues(stack)
        assert set(found) == {"m", "n"}
        evidence = found["m"]["evidence"]
        assert (evidence["mark_boot_id"], evidence["boot_id"]) == (before, after)
        assert evidence["mark_plan"]
        assert evidence["mark_expected_bytes"] > 50_000_000
        view = stack.deployment("m")
        assert (view["state"], view["desired"], view["reason"]["code"]) == ("failed", "running", "suspected_host_crash")
        assert "the host went down while m was being loaded" in outrider(stack, "ps").stdout

        refused = outrider(stack, "start", "m")
        assert (refused.returncode, refused.stdout) == (4, "")
        assert refused.stderr.startswith("error[suspected_host_crash]: "), refused.stderr
        assert "`outrider start --force m`" in refused.stderr
        for verb in ("apply", "restart"):
            answer = stack.send("POST", f"/api/v1/deployments/m/{verb}")
            assert (answer.status_code, answer.json()["code"]) == (409, "suspected_host_crash")
        odd = stack.send("PUT", "/api/v1/deployments/m/desired", {"state": "stopped", "force": True})
        assert (odd.status_code, odd.json()["code"]) == (400, "usage")
        assert stack.containers() == []

        # still so after the daemon died once more, in the same new boot
        stack.kill_daemon()
        stack.start_daemon()
        assert set(issues(stack)) == {"m", "n"}

        done = outrider(stack, "start", "--force", "--wait", "m")
        assert done.returncode == 0, done.stderr
        assert set(issues(stack)) == {"n"}
        forced = [e for e in stack.events("m") if e["code"] == "start_forced"]
        assert [(e["evidence"]["mark_boot_id"], e["evidence"]["by"].split(":")[0]) for e in forced] == [(before, "cli")]
        assert marks(stack) == ["n.json"]
        assert stack.deployment("n")["reason"]["code"] == "suspected_host_crash"


@pytest.mark.slow
def test_in_the_same_boot_the_load_goes_on(make_stack: MakeStack, heavy_models: Path, host: FakeHost) -> None:
    """The twin: the daemon died, the host did not."""
    stack = make_stack(environ=host.environ)
    stack.define("m", heavy_models / g.TARGET_HEAVY, method="none")
    with stack:
        killed_while_loading(stack, "m")
        stack.start_daemon()
        engine = until_sync(lambda: stack.deployment("m")["engine"], 20, "adopted")
        os.kill(engine["pid"], signal.SIGCONT)
        again = stack.wait_state("m", "ready")["engine"]
        assert again["container_id"] == engine["container_id"]
        assert issues(stack) == {}
        assert marks(stack) == []
        assert stack.text("m", 20) == recital(20)


@pytest.mark.slow
def test_a_daemon_that_is_told_to_end_takes_its_marks_along(
    make_stack: MakeStack, heavy_models: Path, host: FakeHost
) -> None:
    """A reboot in the middle of a load ends the daemon first: that is no crash."""
    stack = make_stack(environ=host.environ, gateway=False)
    stack.define("m", heavy_models / g.TARGET_HEAVY, method="none")
    with stack:
        killed: list[int] = []
        assert stack.want("m", "running").status_code < 300
        until_sync(lambda: marks(stack) == ["m.json"], 20, "a mark")
        assert stack.daemon is not None
        stack.daemon.terminate()
        killed.append(stack.daemon.wait(20))
        assert killed == [0]
        assert marks(stack) == []
        stack.podman("rm", "-f", "-t", "0", *stack.containers())
        host.boot(2)
        stack.start_daemon()
        stack.wait_state("m", "ready")
        assert issues(stack) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("options", "code"), [("size=4k", "disk_full"), ("ro,size=64k", "disk_read_only")])
def test_a_disk_that_takes_no_mark_lets_no_load_begin(
    make_stack: MakeStack, test_models: Path, host: FakeHost, options: str, code: str
) -> None:
    stack = make_stack(environ=host.environ, gateway=False)
    stack.define("m", test_models / g.TARGET, method="none")
    folder = stack.paths.loading
    folder.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True)
    try:
        if code == "disk_full":
            (folder / "full").write_bytes(b"\0" * 4096)
        with stack:
            failed = outrider(stack, "start", "--wait", "m")
            assert failed.returncode == 4
            assert f"\nerror[{code}]: " in failed.stderr, failed.stderr
            assert "its loading mark" in failed.stderr
            assert stack.containers() == []
            ps = json.loads(outrider(stack, "ps", "--json").stdout)
            assert ps[0]["reason"]["code"] == code
    finally:
        subprocess.run(["umount", folder], check=True)

"""Children that cannot be killed, and answers that are none."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from hosts import child as children
from hosts.child import Child, ChildFailed, ChildTimeout
from tests.hosts.conftest import Environ
from tests.waiting import until_sync


def test_a_child_that_survives_the_kill_is_left_behind_and_no_second_started(
    monkeypatch: pytest.MonkeyPatch, nvml: Path, environ: Environ
) -> None:
    """An uninterruptible wait cannot be had without a broken driver: here the kill is what does not happen."""
    hanging = environ(nvml, FAKE_NVML_HANG="Init")
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda _pid, _signal: None)
        patch.setattr(children, "_REAP", 0.02)
        first = Child("nvidia_child", [""], hanging, 60.0)
        with pytest.raises(ChildTimeout, match="in time"):
            first.collect(time.monotonic() + 0.1)
    try:
        with pytest.raises(ChildTimeout, match=f"pid {first.pid}"):
            Child("nvidia_child", [""], hanging, 60.0)
    finally:
        os.kill(first.pid, signal.SIGKILL)
    until_sync(lambda: not first.running, 5.0)
    again = Child("nvidia_child", [""], environ(nvml), 60.0)
    assert again.collect(time.monotonic() + 20.0)["driver"] == "580.95.05"


def test_a_module_that_does_not_exist_says_why(environ: Environ) -> None:
    with pytest.raises(ChildFailed, match="exit status 1") as failed:
        Child("no_such_child", [], environ(), 10.0).collect(time.monotonic() + 20.0)
    assert "ModuleNotFoundError" in failed.value.summary()


def test_an_interpreter_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, environ: Environ) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(ChildFailed, match="cannot be started"):
        Child("nvidia_child", [""], environ(), 1.0)


def test_asking_a_child_that_is_gone(nvml: Path, environ: Environ) -> None:
    child = Child("nvidia_child", ["", "--serve"], environ(nvml, FAKE_NVML_CRASH="Init"), 30.0)
    try:
        with pytest.raises(ChildFailed):
            child.ask("memory", time.monotonic() + 20.0)
        with pytest.raises(ChildFailed):
            child.ask("memory", time.monotonic() + 20.0)
    finally:
        child.close()

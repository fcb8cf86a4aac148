"""A state folder whose disk is full, or takes no writes, or gives back what nobody wrote: what serves goes on, it is
said, and a new daemon begins again from the labels. Fault row 22; real engines, a small tmpfs.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.stack import Stack, accepts
from tests.telling.golden import quiet, told
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(180)]
SIZE = 96 << 20
LIMIT = 60.0
UNWRITTEN = {r"(?m)^.*! the state database cannot be written: .*\n(?: +seen: .*\n)?": ""}
"""A start that the database refused: by chance it has a page left for the number of the next engine."""


@pytest.fixture
def stack(podman_socket: str, embedded_image: str, test_models: Path) -> Iterator[Stack]:
    """`m` is ready; the state folder is a disk of 96 MiB."""
    folder = Path(tempfile.mkdtemp(prefix="or-small-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], check=True)
    try:
        made = Stack(podman_socket, folder=folder)
        for name in ("m", "other"):
            made.define(name, test_models / g.TARGET, method="none")
        with made:
            made.start("m")
            yield made
            subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()


def fill(folder: Path) -> Path:
    """Not a byte is left; the file that took them."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for piece in (1 << 20, 4096, 1):
            while True:
                try:
                    if file.write(bytes(piece)) < piece:
                        break
                except OSError:
                    break
    assert os.statvfs(folder).f_bavail == 0
    return ballast


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The disk takes no writes, as one does that its kernel no longer trusts."""
    # a remount waits for no writer: those who have files open find out at their next write
    busy = subprocess.run(["mount", "-o", "remount,ro", folder], capture_output=True, text=True, check=False)
    if busy.returncode != 0:
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    try:
        yield
    finally:
        if busy.returncode != 0:
            subprocess.run(["umount", "--lazy", folder], check=True)
        else:
            subprocess.run(["mount", "-o", "remount,rw", folder], check=True)


def serves(stack: Stack, before: Any) -> None:
    """The same engine, and it answers."""
    engine = stack.wait_state("m", "ready")["engine"]
    assert (engine["container_id"], engine["pid"]) == (before["container_id"], before["pid"])
    assert stack.text("m", 20) == recital(20)


def refused(stack: Stack) -> str:
    """A daemon is started that cannot begin: what it said. It must end by itself, for its manager to try again."""
    command = [sys.executable, "-m", "api.cli", "--state-dir", str(stack.folder), "daemon"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr


def test_a_full_disk_costs_history_and_not_service(stack: Stack) -> None:
    since_s = quiet(stack, "m")
    before = stack.deployment("m")["engine"]
    ballast = fill(stack.folder)
    for _ in range(5):
        assert stack.text("m", 20) == recital(20)
    issues = stack.wait(lambda: stack.get("/api/v1/issues"), what="an issue")
    assert "low_disk" in {i["code"] for i in issues}
    os.kill(before["pid"], 9)  # and what breaks meanwhile is mended, though nothing of it can be noted
    until_sync(lambda: stack.deployment("m")["restarts"] >= 1, LIMIT, "its end was seen")
    view = stack.wait_state("m", "ready", "failed", may_fail=True)
    assert stack.get("/api/v1/health")["loops"]["reconcile"] < 10
    ballast.unlink()
    view = stack.wait_state("m", "ready", may_fail=True)
    assert stack.text("m", 20) == recital(20)
    until_sync(lambda: not [i for i in stack.get("/api/v1/issues") if i["code"] == "low_disk"], LIMIT, "withdrawn")
    told(stack, "m", "22-disk-full", since_s=since_s(), without=("not_noted",), words=UNWRITTEN)
    stack.kill_daemon()
    stack.start_daemon()
    serves(stack, view["engine"])
    assert len(stack.containers()) == 1


def test_a_daemon_that_dies_on_a_full_disk_is_followed_by_one_that_adopts(stack: Stack) -> None:
    before = stack.deployment("m")["engine"]
    stack.kill_daemon()
    ballast = fill(stack.folder)
    stack.start_daemon(wait=False)
    assert stack.daemon is not None
    daemon = stack.daemon
    until_sync(lambda: daemon.poll() is not None or _answers(stack), LIMIT, "it ends, or it works")
    assert stack.text("m", 20) == recital(20), "the gateway has its table"
    ballast.unlink()
    if daemon.poll() is not None:
        assert daemon.poll() not in (-7, -11), "not killed by a page that could not be written"
        stack.start_daemon()
    serves(stack, before)
    assert len(stack.containers()) == 1


def _answers(stack: Stack) -> bool:
    return accepts(stack.paths.control_socket)


def test_a_disk_that_takes_no_writes_stops_nothing_that_runs(stack: Stack) -> None:
    before = stack.deployment("m")["engine"]
    with read_only(stack.folder):
        assert stack.text("m", 20) == recital(20)
        answer = stack.want("other", "running")  # the database is open; an engine's folder is not to be had
        assert answer.status_code == 200
        view = stack.wait_state("other", "failed", may_fail=True)
        assert (view["reason"]["code"], bool(view["reason"]["hint"])) == ("disk_read_only", True), view["reason"]
        until_sync(lambda: stack.get("/api/v1/health")["loops"]["reconcile"] < 1, LIMIT, "the loops go on")
        told(stack, "other", "22-disk-takes-no-writes")
        assert stack.deployment("m")["engine"]["container_id"] == before["container_id"]
        stack.kill_daemon()
        assert "read-only" in (said := refused(stack).lower()) or "readonly" in said
        assert stack.text("m", 20) == recital(20)
    stack.start_daemon()
    serves(stack, before)
    stack.start("other")


def test_a_journal_of_which_pages_are_garbage_is_set_aside_and_what_runs_is_adopted(stack: Stack) -> None:
    before = stack.deployment("m")["engine"]
    stack.kill_daemon()
    file = stack.paths.database
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,), (root,) = (
            db.execute("PRAGMA page_size").fetchone(),
            db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'journal'").fetchone(),
        )
    with file.open("r+b") as pages:
        pages.seek((root - 1) * size)
        pages.write(os.urandom(size))
    stack.start_daemon()
    serves(stack, before)
    assert file.with_name(f"{file.name}.unreadable-1").exists()
    assert "database_set_aside" in stack.codes()
    view = stack.deployment("m")
    assert (view["desired"], len(stack.containers())) == ("running", 1), "what runs is meant to run"


@pytest.mark.parametrize("cut", ["torn", "garbage"])
def test_a_write_that_was_cut_off_in_the_middle_counts_as_not_written(stack: Stack, cut: str) -> None:
    """A power cut in the middle of a page: the last frame of the write-ahead log is half there, or is not what was
    written. All that was confirmed before it is kept."""
    before = stack.deployment("m")["engine"]
    stack.want("other", "running")
    stack.wait_state("other", "ready")
    stack.kill_daemon()
    wal = stack.paths.database.with_name(f"{stack.paths.database.name}-wal")
    whole = wal.read_bytes()
    assert len(whole) > 4096
    wal.write_bytes(whole[:-2000] if cut == "torn" else whole[:-2000] + os.urandom(2000))
    wal.with_name(f"{stack.paths.database.name}-shm").unlink(missing_ok=True)
    stack.start_daemon()
    serves(stack, before)
    assert "database_set_aside" not in stack.codes()
    assert stack.wait_state("other", "ready")["desired"] == "running", "what was asked for before is not lost"
    assert len(stack.containers()) == 2


@pytest.mark.parametrize("left", [b"", b'{"deployment": "m", "gen', b"\xff" * 300], ids=["empty", "half", "garbage"])
def test_a_loading_mark_that_was_cut_off_is_said_and_stops_no_engine(stack: Stack, left: bytes) -> None:
    before = stack.deployment("m")["engine"]
    stack.kill_daemon()
    stack.paths.loading.mkdir(exist_ok=True)
    (stack.paths.loading / "other.json").write_bytes(left)
    (stack.paths.loading / ".m.json.new").write_bytes(left)
    stack.start_daemon()
    serves(stack, before)
    assert [i["subject"] for i in stack.get("/api/v1/issues")] == ["other"], "only its model waits for a person"
    assert stack.want("other", "running").status_code == 409
    assert not (stack.paths.loading / ".m.json.new").exists()

"""XIDs and ECC errors through the real pynvml in a real child, over a fake library."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hosts.device_events import DeviceEvent
from hosts.nvidia_events import NvidiaEvents
from hosts.roots import Roots
from tests.hosts.conftest import Environ
from tests.hosts.trees import Tree, write
from tests.waiting import until_sync

LIMIT = 15.0
Listen = Callable[..., "Heard"]


class Heard:
    """A running `NvidiaEvents`, and what it delivered."""

    def __init__(self, roots: Roots, environ: dict[str, str]) -> None:
        self.events: queue.Queue[DeviceEvent] = queue.Queue()
        self.source = NvidiaEvents(self.events.put, roots, environ, check=0.05, retry_max=0.2)
        self.source.start()

    def ready(self) -> None:
        assert self.source.ready.wait(LIMIT)

    def next(self) -> DeviceEvent:
        return self.events.get(timeout=LIMIT)

    @property
    def pid(self) -> int:
        child = self.source._child
        assert child is not None
        return child.pid


@pytest.fixture
def listen(tree: Tree) -> Iterator[Listen]:
    made: list[Heard] = []

    def start(environ: dict[str, str], roots: Roots | None = None) -> Heard:
        made.append(Heard(roots or tree.machine().roots, environ))
        return made[-1]

    yield start
    for one in made:
        one.source.close()
        assert one.source._thread is not None
        assert not one.source._thread.is_alive()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the fake library takes its events from."""
    path = tmp_path / "events"
    path.touch()
    return path


def add(log: Path, line: str) -> None:
    with log.open("a") as out:
        out.write(line + "\n")


def test_events_arrive_one_after_another(listen: Listen, nvml: Path, environ: Environ, log: Path) -> None:
    heard = listen(environ(nvml, FAKE_NVML_EVENTS=log, FAKE_NVML_COUNT=2))
    heard.ready()
    add(log, "8 31 0")
    first = heard.next()
    assert (first.source, first.kind, first.pci, first.number, first.pid) == ("nvml", "xid", "0000:01:00.0", 31, None)
    assert first.text == "NVML: XID 31 (GPU memory page fault)"
    for line in ("8 79 1", "1 0 0", "2 0 1", "4000 0 1", "8000 1 0", "8000 0 0", "8 4711 0"):
        add(log, line)
    assert [(e.kind, e.pci, e.number) for e in (heard.next() for _ in range(7))] == [
        ("xid", "0000:02:00.0", 79),
        ("ecc_single_bit", "0000:01:00.0", None),
        ("ecc_double_bit", "0000:02:00.0", None),
        ("gpu_unavailable", "0000:02:00.0", None),
        ("recovery_action", "0000:01:00.0", None),
        ("recovery_over", "0000:01:00.0", None),
        ("xid", "0000:01:00.0", 4711),
    ]
    assert heard.source.starts == 1


def test_an_older_driver_is_asked_only_for_what_it_knows(
    listen: Listen, old_nvml: Path, environ: Environ, log: Path
) -> None:
    heard = listen(environ(old_nvml, FAKE_NVML_EVENTS=log))
    heard.ready()
    add(log, "8 13 0")
    assert heard.next().number == 13


def test_one_lost_gpu_does_not_cost_the_others_their_events(
    listen: Listen, nvml: Path, environ: Environ, log: Path
) -> None:
    failing = environ(nvml, FAKE_NVML_EVENTS=log, FAKE_NVML_COUNT=2, FAKE_NVML_FAIL="GetHandleByIndex0:15")
    heard = listen(failing)
    heard.ready()
    add(log, "8 43 1")
    assert heard.next().pci == "0000:02:00.0"


def test_without_a_library_nothing_is_started_until_there_is_one(
    listen: Listen, tree: Tree, nvml: Path, environ: Environ, log: Path
) -> None:
    heard = listen(environ(FAKE_NVML_EVENTS=log))
    add(log, "8 31 0")
    assert heard.source.starts == 0
    (tree.base / "lib").symlink_to(nvml)  # the driver is installed
    assert heard.next().number == 31


def test_a_child_that_dies_is_replaced_and_hears_on(listen: Listen, nvml: Path, environ: Environ, log: Path) -> None:
    heard = listen(environ(nvml, FAKE_NVML_EVENTS=log))
    heard.ready()
    child = heard.source._child
    assert child is not None
    child.end()
    until_sync(lambda: heard.source.starts >= 2 and heard.source.ready.is_set(), LIMIT, "another child")
    add(log, "8 31 0")
    assert heard.next().number == 31


def test_a_gpu_that_is_lost_ends_the_child_and_it_is_tried_again(
    listen: Listen, nvml: Path, environ: Environ, tmp_path: Path, log: Path
) -> None:
    scene = tmp_path / "scene"
    write(scene, "")
    heard = listen(environ(nvml, FAKE_NVML_FILE=scene, FAKE_NVML_EVENTS=log))
    heard.ready()
    scene.write_text("LOST=15\n")
    until_sync(lambda: heard.source.starts >= 2, LIMIT, "it was tried again")
    scene.write_text("")
    heard.ready()
    add(log, "8 31 0")
    assert heard.next().number == 31


def test_another_driver_gets_another_child(listen: Listen, tree: Tree, nvml: Path, environ: Environ, log: Path) -> None:
    """The old library would work with the old module until the end of the daemon's days."""
    module = tree.base / "sys/module/nvidia/version"
    write(module, "550.54.15\n")
    heard = listen(environ(nvml, FAKE_NVML_EVENTS=log))
    heard.ready()
    write(module, "580.95.05\n")
    until_sync(lambda: heard.source.starts >= 2 and heard.source.ready.is_set(), LIMIT, "another child")


@pytest.mark.parametrize("hang", ["Init", "EventSetWait"])
def test_a_library_that_hangs_holds_nobody_up(
    listen: Listen, nvml: Path, environ: Environ, log: Path, hang: str
) -> None:
    heard = listen(environ(nvml, FAKE_NVML_EVENTS=log, FAKE_NVML_HANG=hang))
    until_sync(lambda: heard.source._child is not None, LIMIT, "the child")
    heard.source.close()
    assert heard.source._thread is not None
    assert not heard.source._thread.is_alive()


def test_the_child_ends_with_the_daemon_even_while_it_waits(
    listen: Listen, nvml: Path, environ: Environ, log: Path
) -> None:
    heard = listen(environ(nvml, FAKE_NVML_EVENTS=log))
    heard.ready()
    child = heard.source._child
    assert child is not None
    assert child._process.stdin is not None
    child._process.stdin.close()  # as the kernel does when a daemon is killed
    until_sync(lambda: not child.running, LIMIT, "the child's end")

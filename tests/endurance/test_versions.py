"""An engine that one version started is adopted by the other, and the other way round: the same container, and no
request is lost meanwhile. The other version is a commit of the past, of which a wheel
is built. Real engines, real daemons and gateways of both versions.

Needs the repository's history: a shallow clone has none, and the test fails there and says so.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import httpx
import pytest

from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.stack import Stack
from tests.stack_fixture import MakeStack

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
PREVIOUS = "d9d8b02"
"""The commit of the other version; moved on when a release is made."""
REQUESTS = 1000
CLIENTS = 4


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the other version as its wheel installs it, without its dependencies: they are those of here."""
    folder = tmp_path_factory.mktemp("previous")
    archive = subprocess.run(["git", "archive", PREVIOUS], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert archive.returncode == 0, f"needs the history of the repository (git fetch --unshallow): {archive.stderr!r}"
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder / "source", filter="data")
    _run("build", "--wheel", "--no-isolation", "--outdir", folder / "dist", folder / "source")
    (wheel,) = (folder / "dist").glob("*.whl")
    _run("pip", "install", "--quiet", "--no-index", "--no-deps", "--target", folder / "installed", wheel)
    return folder / "installed"


def _run(module: str, *words: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Clients:
    """A thousand requests, over as long as it takes."""

    def __init__(self, stack: Stack) -> None:
        self.wrong: list[str] = []
        self.done = 0
        self._stack = stack
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._all = [self._pool.submit(self._one, n) for n in range(REQUESTS)]

    def _one(self, number: int) -> None:
        tokens = 5 + number % 40
        try:
            answer = self._stack.chat("m", tokens)
            text = answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else answer.text
        except httpx.HTTPError as error:
            text = repr(error)
        with self._lock:
            self.done += 1
            if text != recital(tokens):
                self.wrong.append(text[:300])

    def end(self) -> None:
        for one in self._all:
            one.result(300)
        self._pool.shutdown()


@pytest.fixture
def stack(make_stack: MakeStack, test_models: Path) -> Stack:
    made = make_stack(gateway=False)
    made.define("m", test_models / g.TARGET, method="none", parallel=2)
    return made


def use(stack: Stack, installed: Path | None) -> None:
    """What is started from now on is of that version."""
    stack.cwd = installed
    stack.environ = {} if installed is None else {"PYTHONPATH": str(installed)}


@pytest.mark.parametrize(
    "order", [["previous", "present", "previous"], ["present", "previous", "present"]], ids=["up", "down"]
)
def test_each_version_adopts_what_the_other_started(
    stack: Stack, previous: Path, order: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    versions = {"previous": previous, "present": None}
    use(stack, versions[order[0]])
    with stack:
        stack.start_gateway()
        before = stack.start("m")[0]["engine"]
        where = Path(f"/proc/{stack.daemon.pid}/cwd").resolve()  # type: ignore[union-attr]
        assert (where == previous) == (order[0] == "previous")
        clients = Clients(stack)
        for step, version in enumerate(order[1:], 1):
            share = REQUESTS * step // (len(order) + 1)
            stack.wait(lambda share=share: clients.done >= share, 300, f"{share} requests")  # type: ignore[misc]
            stack.kill_daemon()
            use(stack, versions[version])
            stack.start_daemon()
            after = stack.wait_state("m", "ready")["engine"]
            assert (after["container_id"], after["pid"], after["generation"]) == (
                before["container_id"],
                before["pid"],
                before["generation"],
            ), stack.events("m")[-5:]
            assert clients.done < REQUESTS, "they were asked for while the daemons changed"
        clients.end()
        with capsys.disabled():
            print(f"\n{' -> '.join(order)}: container {before['container_id'][:12]} kept, {clients.done} requests,")
            print(f"  {len(clients.wrong)} lost")
        assert (clients.done, clients.wrong) == (REQUESTS, [])
        assert stack.containers() == [before["container_id"]]
        # and who came last can stop it
        stack.want("m", "stopped")
        stack.wait_state("m", "stopped")
        assert stack.containers() == []

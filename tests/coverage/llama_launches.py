"""Starting llama.cpp with what its adapter says: the fewest command lines that together hold every element.

No GPU is here, so a launch is told to the CPU: `--device NAME` is left out, and `--split-mode tensor`, which
demands a device. What becomes of these two is in `rules_llama.toml`.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.models import Runtime
from orchestrator.plan import PORT, SOCKET, Method
from tests.coverage import launches
from tests.coverage.elements import Element, elements, shape
from tests.engine.running import call
from tests.models import generate as models
from tests.ports import free_ports
from tests.waiting import until_sync

ROOT = Path(__file__).parents[2]
LIMIT = 20.0
OLD = "--no-mmap"
"""Said to builds before b10434 alone, and taken until b10793: the prebuilt b10434 takes it, b11549 does not."""

_DRAFTERS = {
    Method.DRAFT: models.DRAFT,
    Method.EAGLE3: models.EAGLE3,
    Method.DFLASH: models.DFLASH,
    Method.DSPARK: models.DSPARK,
    Method.MTP: models.MTP_SIDECAR,
}

Launch = tuple[Method, tuple[str, ...]]


def without_gpu(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command line without what only a GPU could take."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--device":
            next(words)
        elif word == "--split-mode":
            mode = next(words)
            kept += [] if mode == "tensor" else [word, mode]
        else:
            kept.append(word)
    return tuple(kept)


def wanted(*, old: bool = False) -> dict[Launch, frozenset[Element]]:
    """Every command line of the adapter that a build takes, one of each shape, and what it holds."""
    found: dict[tuple[Method, tuple[str, ...]], Launch] = {}
    for request, words in launches.lines(Runtime.LLAMA_CPP):
        argv = without_gpu(words)
        if (OLD in argv) is old:
            found.setdefault((request.method, shape(argv)), (request.method, argv))
    return {launch: frozenset(elements(launch[1])) for launch in found.values()}


def cover(lines: dict[Launch, frozenset[Element]]) -> list[Launch]:
    """The fewest of these, greedily, that hold for each method all that is said with it."""
    open_ = {(method, element) for (method, _), held in lines.items() for element in held}
    chosen: list[Launch] = []
    while open_:
        best = max(lines, key=lambda line: (len(open_ & {(line[0], e) for e in lines[line]}), line[1]))
        chosen.append(best)
        open_ -= {(best[0], element) for element in lines[best]}
    return chosen


def real(launch: Launch, folder: Path, socket: Path, port: int) -> list[str]:
    """The command line with files, socket and port that are here. One thread: threads that spin cost ten times."""
    method, argv = launch
    sidecar = method is Method.MTP and "-md" in argv
    target = models.TARGET_HEADLESS if sidecar else models.TARGET_MTP if method is Method.MTP else models.TARGET
    places = {
        "/models/m": str(folder / target),
        "/models/d": str(folder / _DRAFTERS.get(method, "")),
        SOCKET: str(socket),
        PORT: str(port),
        "0.0.0.0": "127.0.0.1",
    }
    words = [places.get(word, word) for word in argv]
    if "-t" in words:
        words[words.index("-t") + 1] = "1"
    return words


def answers(launch: Launch, wheel: Path, models_folder: Path, folder: Path) -> str | None:
    """Start the embedded engine with it and have it recite; what went wrong, or None.

    With a method, a slot must say that it speculates, and what a right drafter proposes must be accepted.
    """
    path, (port,), key = folder / "e.sock", free_ports(1), "sesame"
    words = real(launch, models_folder, path, port)
    command = (sys.executable, "-m", "containers.embedded.launcher")
    log = folder / "log"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(wheel), str(ROOT)]), "LLAMA_API_KEY": key}
    with log.open("wb") as output:
        one_thread = () if "-t" in words else ("-t", "1")
        process = subprocess.Popen([*command, *words, *one_thread], stdout=output, stderr=output, env=env, cwd=folder)

    def ask(where: str, body: object = None) -> tuple[int, Any]:
        place = f"127.0.0.1:{port}" if "--port" in words else path
        return call(place, where, body, {"Authorization": f"Bearer {key}"})

    try:
        until_sync(lambda: _healthy(ask, process), LIMIT, "the engine's health")
        body = {"messages": [{"role": "user", "content": "Say it."}], "max_tokens": 96, "temperature": 0}
        status, value = ask("/v1/chat/completions", body)
        if status != 200:
            return str(value)
        text = value["choices"][0]["message"]["content"]
        slots = ask("/slots")[1]
        if text != models.recital(96):
            return f"said {text!r}"
        drafting = launch[0] is not Method.NONE
        if slots[0]["speculative"] is not drafting:
            return f"speculative is {slots[0]['speculative']}"
        if drafting and launch[0] is not Method.NGRAM and not value["timings"].get("draft_n_accepted"):
            return "nothing drafted was accepted"
        return None
    except AssertionError as error:
        return f"{error}\n{log.read_text(errors='replace')[-1500:]}"
    finally:
        process.kill()
        process.wait(LIMIT)


def _healthy(ask: Callable[[str], tuple[int, Any]], process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        raise AssertionError(f"the engine ended with {process.returncode}")
    try:
        return ask("/health")[0] == 200
    except (OSError, http.client.HTTPException):
        return False

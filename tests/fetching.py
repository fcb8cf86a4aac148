"""What the slow tests need besides the environment of `make setup-dev`: `python -m tests.fetching` fetches it.

`make test-all` does that first, so that no test waits for gigabytes, and ends with what is missing where something
cannot be had. Each thing has its own deadline, and what is there already costs nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from containers.embedded import wheel
from containers.errors import ContainerError
from tests.coverage import sglang_record, wheels
from tests.coverage.evidence import llama_rules, rules
from tests.engine.test_true_parser import PIN
from tests.engine_fixture import CACHE
from tests.runtimes.vllm import venv


def things() -> Iterator[tuple[str, Callable[[], object]]]:
    """What there is to fetch, and how; the largest first."""
    cache = Path(os.environ.get("OUTRIDER_TEST_CACHE") or CACHE)
    yield f"vLLM {venv.VERSION} for CPUs, 2.5 GB in {venv.folder()} ($OUTRIDER_VLLM_VENV names another)", venv.ensure
    for table in (rules(), llama_rules()):
        for known in table.wheels.values():
            yield f"{known.file} in {wheels.CACHE / 'wheels'}", lambda known=known: wheels.fetched(known)  # type: ignore[misc]
    yield "Python for SGLang's parsers", sglang_record.parser_python
    yield f"{wheel.XLLAMACPP.file_name} in {cache}", lambda: wheel.fetch(cache)
    yield f"{PIN.file_name} in {cache}", lambda: wheel.fetch(cache, PIN)


def main() -> int:
    """Fetch all; how many could not be had."""
    missing = 0
    for what, fetch in things():
        begin = time.monotonic()
        print(f"needed: {what} ... ", end="", flush=True)
        try:
            fetch()
        except (RuntimeError, OSError, subprocess.SubprocessError, ContainerError) as error:
            missing += 1
            print(f"MISSING: {error}", flush=True)
        else:
            print(f"there ({time.monotonic() - begin:.0f} s)", flush=True)
    if missing:
        print(f"{missing} missing: let pip reach a package index, or put the files there, and try again")
    return missing


if __name__ == "__main__":
    sys.exit(1 if main() else 0)

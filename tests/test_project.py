"""The project as a whole: what is installed beside it, what the lock files say, whether its wheel works."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
OURS = {"api", "containers", "hosts", "orchestrator"}
BELOW = {
    "orchestrator": {"security.py", "plantext.py", "test_known.py", "test_printed.py"},
    "hosts": {"trees.py"},
    "api": {"test_openapi.py", "test_contract.py"},
}
"""Files of other folders that a folder's design page speaks of."""
LOCKS = ("requirements.lock", "requirements-dev.lock")
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")


def pins(lock: str) -> Mapping[str, str]:
    """Package to version, as a lock file has them."""
    lines = (ROOT / lock).read_text().splitlines()
    found = [match for line in lines if (match := _PIN.match(line))]
    return {canonicalize_name(match[1]): match[2] for match in found}


def project() -> Mapping[str, list[str]]:
    """The requirements of `pyproject.toml`."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {
        "requirements.lock": data["project"]["dependencies"] + data["build-system"]["requires"],
        "requirements-dev.lock": data["project"]["dependencies"] + data["project"]["optional-dependencies"]["dev"],
    }


def test_no_dependency_ships_a_package_of_our_names() -> None:
    """Our import names are the folder names; a package of the same name would hide one or the other."""
    clashes = []
    for distribution in distributions():
        if canonicalize_name(distribution.name) == "outrider":
            continue
        tops = {file.parts[0].removesuffix(".py") for file in distribution.files or ()}
        clashes += [f"{distribution.name}: {name}" for name in tops & OURS]
    assert clashes == []


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_files_hold_names_versions_and_hashes_only(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    allowed = re.compile(r"^(#.*|[a-z0-9._-]+==\S+( ; .+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?|)$")
    assert [line for line in text.splitlines() if not allowed.match(line)] == []
    entries = re.split(r"\n(?=[a-z0-9])", text)
    assert all("--hash=sha256:" in entry for entry in entries if "==" in entry)


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_files_fit_the_project(lock: str) -> None:
    have = pins(lock)
    for line in project()[lock]:
        wanted = Requirement(line)
        version = have.get(canonicalize_name(wanted.name))
        assert version is not None, f"{wanted.name} is not in {lock}: run `make lock`"
        assert version in wanted.specifier, f"{lock} has {wanted.name} {version}, wanted {wanted.specifier}"


def test_both_lock_files_agree() -> None:
    run, dev = pins(LOCKS[0]), pins(LOCKS[1])
    assert {name: dev.get(name) for name in run} == dict(run)


@pytest.mark.parametrize("folder", sorted(OURS))
def test_design_pages_name_every_module_and_no_other(folder: str) -> None:
    """The page of a folder is how a reader finds a module: by its path there, or by its name alone."""
    page = (ROOT / folder / "design.md").read_text()
    named = {Path(path).name for path in re.findall(r"`([\w/]+\.py)`", page)}
    modules = {path for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"}
    assert named - {path.name for path in modules} - {"__init__.py"} <= BELOW.get(folder, set())
    # folders that are named as a whole: their modules' heads say more
    whole = {ROOT / folder / path for path in re.findall(r"`([\w/]+)/`", page)} | {ROOT / "api" / "gateway"}
    assert {path.name for path in modules if path.parent not in whole} <= named


def test_imports_go_one_way() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wheel_works_away_from_the_checkout(tmp_path: Path) -> None:
    venv, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "api").mkdir()  # a folder of another program, where the command is called

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # from a copy without what former builds left in `build`, which setuptools would pack as well
    source = shutil.copytree(
        ROOT, tmp_path / "source", ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "tests")
    )
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", source)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    run(sys.executable, "-m", "venv", venv)
    pip = (venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--require-hashes", "-r", ROOT / "requirements.lock")
    run(*pip, "--no-index", "--no-deps", wheel)
    outrider = venv / "bin" / "outrider"
    assert run(outrider, "--version").startswith("outrider ")
    assert json.loads(run(outrider, "probe", "--json"))["cpu"]["threads"] >= 1
    catalogue = json.loads(run(outrider, "catalog", "list", "--json", "--state-dir", tmp_path / "state"))
    assert catalogue["models"]
    assert catalogue["images"]
    planned = json.loads(run(outrider, "plan", "qwen3.6-27b", "--profile", "dankserver", "--json"))
    assert planned["plan"]["model"] == "qwen3.6-27b"

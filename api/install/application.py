"""The application's own place: a copy of what runs now, with all that it needs, in a folder that nobody works in.

A unit that pointed into somebody's checkout would change, or end, with it. So the packages of the
running `outrider` and of its dependencies are copied into a virtual environment below /opt/outrider,
named by version and contents: /opt/outrider/releases/0.1.0-6f1c..., with `current` as a link to the
one in use. A release never changes, so a daemon that runs goes on with the modules it began with.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution, PackageNotFoundError, distributions
from pathlib import Path

from packaging.requirements import Requirement

from api.install import layout
from orchestrator.errors import Refused

OURS = ("api", "containers", "hosts", "orchestrator")
_HOMES = ("/home/", "/root/", "/run/user/", "/tmp/")  # noqa: S108 - where no service's Python should be
_PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_SCRIPT = """#!{python} -P
import sys

from api.cli.main import main

sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the application: where it is, where it goes below `site-packages`, its contents' digest."""

    path: Path
    target: str
    digest: str


@dataclass(frozen=True)
class Application:
    """What runs now, as something that can be copied. `python` is the interpreter that the copy is to use."""

    version: str
    python: Path

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        return tuple(sorted({s.target: s for s in _sources()}.values(), key=lambda s: s.target))

    @property
    def name(self) -> str:
        """The release's name: the same for the same contents and interpreter."""
        digest = hashlib.sha256(f"{self.python} {sys.implementation.cache_tag}\n".encode())
        for source in self.sources:
            digest.update(f"{source.target} {source.digest}\n".encode())
        return f"{self.version}-{digest.hexdigest()[:12]}"

    @property
    def folder(self) -> str:
        """Where it will be, without a prefix."""
        return f"{layout.APPLICATION}/releases/{self.name}"

    def copy(self, prefix: Path | None) -> None:
        """Write the release, whole or not at all."""
        final = layout.under(prefix, self.folder)
        new = final.with_name(f".{final.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        site = new / "lib" / _PYTHON / "site-packages"
        site.mkdir(parents=True)
        made: set[Path] = {site}
        for source in self.sources:
            target = site / source.target
            if target.parent not in made:
                target.parent.mkdir(parents=True, exist_ok=True)
                made.add(target.parent)
            _copy(source.path, target)
            for cached in _cached(source.path):
                (target.parent / "__pycache__").mkdir(exist_ok=True)
                _copy(cached, target.parent / "__pycache__" / cached.name)
        for ours in OURS:
            compileall.compile_dir(site / ours, quiet=2)
        (new / "bin").mkdir()
        for name in (_PYTHON, "python3", "python"):
            (new / "bin" / name).symlink_to(self.python if name == _PYTHON else _PYTHON)
        (new / "pyvenv.cfg").write_text(
            f"home = {self.python.parent}\ninclude-system-site-packages = false\n"
            f"version = {'.'.join(str(n) for n in sys.version_info[:3])}\n"
        )
        script = new / "bin" / "outrider"
        script.write_text(_SCRIPT.format(python=f"{self.folder}/bin/python"))
        for folder, _, _ in os.walk(new):
            os.chmod(folder, 0o755)  # noqa: S103 - the gateway's user reads it
        script.chmod(0o755)
        if final.exists():
            shutil.rmtree(final)
        new.rename(final)


def present(version: str) -> Application:
    """The running application. Raises `Refused` when no Python that a service can use fits it."""
    return Application(version, service_python())


def service_python() -> Path:
    """The interpreter for the service: of this version, and within every user's reach.

    What this process runs on when that will do; else the system's own of the same version.
    """
    base = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    looked = [base, *(Path(folder) / _PYTHON for folder in ("/usr/bin", "/usr/local/bin"))]
    for python in looked:
        if python.exists() and _for_everybody(python) and (python == base or _is_this_version(python)):
            return Path(os.path.realpath(python))
    raise Refused(
        f"{base} is for one user alone, and there is no {_PYTHON} of the system for a service to run on",
        hint=f"install {_PYTHON} with its `venv` (apt-get install python3-venv), make a virtual environment with it "
        "(PYTHON=/usr/bin/python3 make setup), and call `outrider install` from there",
        evidence={"python": str(base)},
    )


def _for_everybody(path: Path) -> bool:
    real = Path(os.path.realpath(path))
    if str(real).startswith(_HOMES):
        return False
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in real.parents)


def _is_this_version(python: Path) -> bool:
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", "import sys; print(sys.implementation.cache_tag)"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.stdout.strip() == sys.implementation.cache_tag


def _sources() -> Iterator[Source]:
    """All files of this application and of what it depends on, by the packages' own records."""
    present = _installed()
    wanted, seen = ["outrider"], set()
    while wanted:
        name = _canonical(wanted.pop())
        if name in seen:
            continue
        seen.add(name)
        found = present.get(name)
        if found is None:
            raise PackageNotFoundError(name)
        for line in found.requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                wanted.append(needed.name)
        yield from _our_files(found) if name == "outrider" else _files(found)


def _installed() -> dict[str, Distribution]:
    """The distributions that were installed, by name; a checkout's build leftovers are none."""
    found: dict[str, Distribution] = {}
    for one in distributions():
        if one.metadata["Name"] and one.read_text("RECORD") is not None:
            found.setdefault(_canonical(one.metadata["Name"]), one)
    return found


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _files(found: Distribution) -> Iterator[Source]:
    for file in found.files or ():
        if file.parts[0] == ".." or file.suffix == ".pyc":
            continue  # programs in bin/, which a service has no use for
        path = Path(str(file.locate()))
        if not path.is_file():
            continue
        yield Source(path, file.as_posix(), file.hash.value if file.hash else _digest(path))


def _our_files(found: Distribution) -> Iterator[Source]:
    """Our own packages, from where they were imported: a checkout, or site-packages."""
    root = Path(__file__).parents[2]
    for ours in OURS:
        for path in sorted((root / ours).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                yield Source(path, path.relative_to(root).as_posix(), _digest(path))
    for file in found.files or ():
        if file.parts[0].endswith(".dist-info") and file.name in {"METADATA", "LICENSE", "entry_points.txt"}:
            path = Path(str(file.locate()))
            yield Source(path, file.as_posix(), _digest(path))
            if file.name == "METADATA":
                yield from _record(path)


def _record(metadata: Path) -> Iterator[Source]:
    """The mark of an installed distribution: an application that runs from its release can be copied again."""
    record = metadata.with_name("RECORD")
    yield Source(record, f"{metadata.parent.name}/RECORD", _digest(metadata))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _cached(path: Path) -> Iterator[Path]:
    """The compiled form that is there already: valid for the copy, which has the same time and size."""
    if path.suffix == ".py":
        cached = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
        if cached.exists():
            yield cached


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    info = os.stat(source)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
    os.chmod(target, 0o755 if info.st_mode & stat.S_IXUSR else 0o644)

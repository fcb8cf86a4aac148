"""systemd's units from their files, drop-ins merged, and what systemd itself says of a few of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from hosts.reading import children, read_text
from orchestrator.doctor.machine import Unit, Units
from orchestrator.doctor.sources.look import Look, Unseen

NAMES = ("podman.service", "podman.socket", "outrider.service", "outrider-gateway.service")
_STATES = (*NAMES[:2], "nvidia-cdi-refresh.path", "nvidia-persistenced.service", "display-manager.service")
_PROPERTIES = ("Id", "LoadState", "ActiveState", "UnitFileState", "NeedDaemonReload")
_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_MOST_LINES = 5000


def units(look: Look) -> Units:
    """Files always; states only where systemd answers."""
    files = {unit.name: unit for name in NAMES if (unit := _unit(look, name)) is not None}
    try:
        text = look.said("systemctl", "show", *_STATES, f"--property={','.join(_PROPERTIES)}")
    except Unseen:
        return Units(files)
    return Units(files, _states(text))


def _unit(look: Look, name: str) -> Unit | None:
    places = (f"{folder}/{name}" for folder in _FOLDERS)
    file = next((place for place in places if look.text(place) is not None), None)
    if file is None:
        return None
    drop_ins: dict[str, str] = {}
    for folder in reversed(_FOLDERS):  # of equal names the one in /etc wins
        for path in children(look.at(f"{folder}/{name}.d")):
            if path.suffix == ".conf":
                drop_ins[path.name] = f"{folder}/{name}.d/{path.name}"
    names = [file, *(drop_ins[key] for key in sorted(drop_ins))]
    settings: list[tuple[str, str, str]] = []
    for path_name in names:
        for section, key, value in _lines(look.text(path_name) or ""):
            if value:
                settings.append((section, key, value))
            else:  # an empty value takes back what stood before
                settings = [s for s in settings if s[:2] != (section, key)]
    return Unit(name, tuple(names), tuple(settings))


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    section = ""
    for line in text.replace("\\\n", " ").splitlines()[:_MOST_LINES]:
        bare = line.strip()
        if bare.startswith("[") and bare.endswith("]"):
            section = bare[1:-1]
        elif bare and bare[0] not in "#;" and "=" in bare:
            key, _, value = bare.partition("=")
            yield section, key.strip(), value.strip()


def _states(text: str) -> Mapping[str, Mapping[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for block in text.split("\n\n"):
        pairs = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in pairs:
            found[pairs["Id"]] = pairs
    return found


def environment(look: Look, unit: Unit) -> Iterator[tuple[str, str, str]]:
    """(place, name, value) of a unit's variables: `Environment=` and the files of `EnvironmentFile=`."""
    for value in unit.all("Environment"):
        for name, content in assignments(value):
            yield unit.name, name, content
    for value in unit.all("EnvironmentFile"):
        path = value.lstrip("-")
        for line in (read_text(look.at(path)) or "").splitlines():
            if not line.lstrip().startswith(("#", ";")):
                for name, content in assignments(line):
                    yield path, name, content


def assignments(text: str) -> Iterator[tuple[str, str]]:
    """`A=1 "B=2 3" 'C=4'` as pairs."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    for word in words:
        name, equals, value = word.removeprefix("export ").partition("=")
        if equals and name.isidentifier():
            yield name, value

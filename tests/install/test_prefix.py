"""`outrider install` and `uninstall` below a prefix: what is there, what a second run does, what is left."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from api.install import application, layout, preflight
from api.install.manifest import Manifest
from orchestrator.config import Config
from orchestrator.errors import Conflict, Refused
from tests.install.conftest import outrider
from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
RELEASE = "opt/outrider/releases"
Tree = dict[str, tuple[int, str]]


def tree(folder: Path) -> Tree:
    """Every path with its mode, and its contents' digest or target."""
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        what = ""
        if path.is_symlink():
            what = str(path.readlink())
        elif path.is_file():
            what = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = (info.st_mode, what)
    return found


def outside(found: Tree) -> Tree:
    """All but the application."""
    return {path: entry for path, entry in found.items() if not path.startswith(RELEASE)}


def clone(source: Path, target: Path) -> None:
    """A copy; of the application, which no test changes, by hard links."""

    def copy(one: str, other: str) -> None:
        if RELEASE in one:
            os.link(one, other)
        else:
            shutil.copy2(one, other)

    shutil.copytree(source, target, symlinks=True, copy_function=copy)


@pytest.fixture
def copied(installed: Path, tmp_path: Path) -> Path:
    """An installation that a test may change."""
    target = tmp_path / "p"
    clone(installed, target)
    return target


def test_what_is_installed(installed: Path) -> None:
    found = outside(tree(installed))
    same = {
        "etc/systemd/system/outrider.service": "systemd/outrider.service",
        "etc/systemd/system/outrider-gateway.service": "systemd/outrider-gateway.service",
        "etc/sysusers.d/outrider.conf": "systemd/outrider.sysusers.conf",
        "etc/tmpfiles.d/outrider.conf": "systemd/outrider.tmpfiles.conf",
        "etc/outrider/outrider.toml": "outrider.toml",
        "etc/outrider/outrider.schema.json": "outrider.schema.json",
    }
    for path, source in same.items():
        assert (installed / path).read_bytes() == (ROOT / "deploy" / source).read_bytes(), path
    modes = {
        "etc/outrider": 0o750,
        "etc/outrider/outrider.toml": 0o640,
        "var/lib/outrider": 0o750,
        "var/lib/outrider/gateway": 0o700,
        "var/lib/outrider/models": 0o755,
        "etc/systemd/system/outrider.service": 0o644,
    }
    assert {path: found[path][0] & 0o7777 for path in modes} == modes
    assert "var/lib/outrider/token" not in found, "a package's token would be every machine's"
    assert not (installed / "run").exists(), "that is made at each boot"


def test_the_application_stands_alone(installed: Path) -> None:
    """It runs where no checkout is, has no part of one, and brings no tools of developers."""
    (release,) = (installed / RELEASE).iterdir()

    def python(*words: str) -> str:
        done = subprocess.run(
            [release / "bin/python", "-P", *words], capture_output=True, text=True, cwd="/", timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    where = python("-c", "import api.daemon, api.gateway.main, sys; print(sys.prefix, api.__file__)").split()
    assert where[0] == str(release)
    assert where[1].startswith(str(release))
    site = next((release / "lib").glob("python3.*/site-packages"))
    assert not (site / "pytest").exists()
    assert not (site / "mypy").exists()
    assert not list(site.glob("*.pth"))
    assert not list(site.glob("__editable__*"))
    assert [p for p in site.rglob("*") if p.is_symlink()] == []
    script = (release / "bin/outrider").read_text().splitlines()
    assert script[0] == f"#!/opt/outrider/releases/{release.name}/bin/python -P"
    assert python("-m", "api.cli", "--version").startswith("outrider ")
    code = "from api.install.application import present; print(present('0.1.0').name)"
    assert python("-c", code) == release.name, "what it would copy from there is itself"


def test_a_second_run_changes_nothing(copied: Path) -> None:
    before, times = tree(copied), {p: p.lstat().st_mtime_ns for p in copied.rglob("*") if not p.is_dir()}
    again = outrider("install", "--prefix", copied, "--json").json
    assert again["changed"] is False
    assert {step["state"] for step in again["steps"]} == {"unchanged"}
    assert tree(copied) == before
    assert {p: p.lstat().st_mtime_ns for p in copied.rglob("*") if not p.is_dir()} == times


def test_a_second_run_repairs(copied: Path) -> None:
    whole = tree(copied)
    (copied / "etc/systemd/system/outrider.service").write_text("[Service]\n")
    (copied / "etc/tmpfiles.d/outrider.conf").unlink()
    (copied / "var/lib/outrider/gateway").chmod(0o755)
    (copied / "usr/local/bin/outrider").unlink()
    again = outrider("install", "--prefix", copied, "--json").json
    changed = {(step["state"], step["subject"]) for step in again["steps"] if step["state"] != "unchanged"}
    assert changed == {
        ("changed", "/etc/systemd/system/outrider.service"),
        ("made", "/etc/tmpfiles.d/outrider.conf"),
        ("changed", "/var/lib/outrider/gateway"),
        ("made", "/usr/local/bin/outrider"),
    }
    assert tree(copied) == whole


def test_an_edited_configuration_stays(copied: Path) -> None:
    settings = copied / "etc/outrider/outrider.toml"
    mine = settings.read_text() + "\n# mine\n"
    settings.write_text(mine)
    manifest = copied / "var/lib/outrider/install.json"
    manifest.write_text(manifest.read_text().replace('"offered"', '"of another version"'))
    again = outrider("install", "--prefix", copied, "--json").json
    assert [s["detail"] for s in again["steps"] if s["state"] == "left"] == [
        "it is yours; the new default is /etc/outrider/outrider.toml.new"
    ]
    assert settings.read_text() == mine
    beside = copied / "etc/outrider/outrider.toml.new"
    assert beside.read_bytes() == (ROOT / "deploy/outrider.toml").read_bytes()
    beside.unlink()
    assert outrider("install", "--prefix", copied, "--json").json["changed"] is False
    assert not beside.exists(), "one default is offered once"


def test_a_dry_run_does_nothing(tmp_path: Path, copied: Path) -> None:
    nowhere = tmp_path / "nowhere"
    said = outrider("install", "--prefix", nowhere, "--dry-run")
    assert said.code == 0
    assert not nowhere.exists()
    assert "would make   unit /etc/systemd/system/outrider.service" in said.out
    before = tree(copied)
    for words in (["uninstall"], ["uninstall", "--purge"]):
        said = outrider(*words, "--prefix", copied, "--dry-run")
        assert said.code == 0, said.err
        assert "would remove unit /etc/systemd/system/outrider.service" in said.out
        assert tree(copied) == before


def test_uninstall_leaves_what_is_peoples(copied: Path) -> None:
    (copied / "var/lib/outrider/models/weights.gguf").write_text("many hours")
    (copied / "etc/systemd/system/outrider.service.d").mkdir()
    (copied / "etc/systemd/system/outrider.service.d/mine.conf").write_text("[Service]\n")
    said = outrider("uninstall", "--prefix", copied, "--json").json
    assert any("drop-ins of your own" in line for line in said["left"])
    assert any("weights" in line for line in said["left"])
    found = {path for path, (mode, _) in tree(copied).items() if not os.path.isdir(copied / path)}
    assert found == {
        "etc/outrider/outrider.toml",
        "etc/outrider/outrider.schema.json",
        "etc/systemd/system/outrider.service.d/mine.conf",
        "var/lib/outrider/install.json",
        "var/lib/outrider/models/weights.gguf",
        "var/lib/outrider/run",
    } - ({"var/lib/outrider/run"} if os.path.isdir(copied / "var/lib/outrider/run") else set())
    refused = outrider("uninstall", "--prefix", copied, "--purge")
    assert refused.code == 4
    assert "--yes" in refused.err
    assert (copied / "var/lib/outrider/models/weights.gguf").exists()


def test_purge_leaves_nothing(copied: Path) -> None:
    assert outrider("uninstall", "--prefix", copied, "--purge", "--yes").code == 0
    assert tree(copied) == {}
    again = outrider("uninstall", "--prefix", copied, "--purge", "--yes")
    assert again.code == 3
    assert "nothing is installed here" in again.err


def test_an_error_in_the_middle_can_be_finished_or_undone(tmp_path: Path, installed: Path) -> None:
    prefix = tmp_path / "p"
    in_the_way = prefix / "etc/systemd/system/outrider.service"
    (in_the_way / "x").mkdir(parents=True)
    clone(installed / RELEASE, prefix / RELEASE)
    first = outrider("install", "--prefix", prefix)
    assert first.code == 1
    assert "error[install_failed]: /etc/systemd/system/outrider.service" in first.err
    assert "goes on from here" in first.err
    record = Manifest.read(prefix / "var/lib/outrider/install.json")
    assert record.there
    assert not record.finished
    undone = tmp_path / "undone"
    clone(prefix, undone)
    shutil.rmtree(in_the_way)
    second = outrider("install", "--prefix", prefix)
    assert second.code == 0, second.err
    assert outside(tree(prefix)).keys() == outside(tree(installed)).keys()
    shutil.rmtree(undone / "etc/systemd/system/outrider.service")
    assert outrider("uninstall", "--prefix", undone, "--purge", "--yes").code == 0
    assert [path for path, (mode, _) in tree(undone).items() if os.path.isfile(undone / path)] == []


# what has to be so first


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_who_is_not_root_is_told_what_to_type(installed: Path, command: str) -> None:
    (release,) = (installed / RELEASE).iterdir()
    done = subprocess.run(
        [release / "bin/python", "-P", "-m", "api.cli", command],
        capture_output=True,
        text=True,
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": "/"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert "hint: sudo " in done.stderr


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, on this machine: each of these is refused before anything is touched."""
    monkeypatch.setenv("PATH", str(tmp_path))
    done = outrider("install")
    assert (done.code, "there is no systemd here" in done.err) == (4, True), done.err
    (tmp_path / "systemctl").symlink_to("/bin/false")
    done = outrider("install")
    assert (done.code, "apt-get install --no-install-recommends podman" in done.err) == (4, True), done.err
    assert not Path(layout.MANIFEST).exists()


def test_another_installation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "UNIT_FOLDER", str(tmp_path))
    preflight._somebody_elses(Manifest(tmp_path / "m"))
    (tmp_path / "outrider.service").write_text("[Service]\n")
    with pytest.raises(Conflict, match=r"another installation of Outrider is here: .*/outrider\.service"):
        preflight._somebody_elses(Manifest(tmp_path / "m"))
    ours = Manifest(tmp_path / "m", made={("file", str(tmp_path / "outrider.service")): ""})
    preflight._somebody_elses(ours)


def test_taken_ports_are_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (free,) = free_ports(1)
        config = Config.model_validate({"gateway": {"listen": f"127.0.0.1:{port}", "ops_listen": f"127.0.0.1:{free}"}})
        with pytest.raises(Conflict, match=f"127.0.0.1:{port} cannot be listened on"):
            preflight.check_ports(config)


def test_a_python_of_one_user_is_no_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert not application._for_everybody(closed / "python3")
    monkeypatch.setattr(application, "_for_everybody", lambda path: False)
    with pytest.raises(Refused, match="for one user alone"):
        application.service_python()

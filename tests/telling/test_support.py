"""`outrider support-bundle`: all that a bug report needs, and none of the secrets and prompts that are planted here."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.supportcommand import _configuration, _secrets
from orchestrator.clock import SystemClock
from orchestrator.doctor.redact import Redactor
from orchestrator.events import Journal
from orchestrator.paths import Paths, find, prepare
from orchestrator.store import Store
from orchestrator.telling.support import WORDS, Support, known_failure
from tests.cli.conftest import Call
from tests.models import generate as g
from tests.stack_fixture import MakeStack
from tests.telling.test_whole import outrider

PROMPT = "my neighbour's medical history"
PLANTED = {
    "hub login": "hunter2pass",
    "comment": "commented-password-77",
    "file": "hf_PlantedTokenOfTheHub123",
    "printed key": "sk-PlantedKeyThatWasPrinted99",
    "bare value": "bare9value8without7a6name",
    "prompt": PROMPT,
}


@pytest.mark.slow
def test_no_secret_and_no_prompt_is_in_it(
    make_stack: MakeStack, fake_engine_image: str, test_models: Path, tmp_path: Path
) -> None:
    """The engine is the fake one, for it has to print what a real one prints only with a debugging option."""
    stack = make_stack()
    token = stack.folder / "hub-token"
    token.write_text(PLANTED["file"] + "\n" + PLANTED["bare value"] + "\n")
    stack.write_settings(
        f'[hub]\nendpoint = "https://grace:{PLANTED["hub login"]}@hub.example.org"\ntoken_file = "{token}"\n'
        f"# the old password was {PLANTED['comment']}\n"
    )
    script = stack.define_fake("liar", fake_engine_image, test_models / g.TARGET)
    said = [
        f"Received request 1: prompt: '{PROMPT}', params: max_tokens 5",
        f"using {PLANTED['printed key']} and {PLANTED['bare value']}",
        "cudaMalloc failed: out of memory",
    ]
    script.write(load_log="\n".join(said), load_fail=1)
    with stack:
        stack.want("liar", "running")
        stack.wait(lambda: "failed" in stack.codes("liar"), what="a failure")
        script.write(load_fail=None)
        stack.want("liar", "running")
        stack.wait_state("liar", "ready", may_fail=True)
        assert stack.chat("liar", 5, PROMPT).status_code == 200
        file = tmp_path / "bundle.tar.gz"
        done = outrider(stack, "support-bundle", str(file), "--json")
        assert done.returncode == 0, done.stderr
        secrets = [*PLANTED.values(), stack.paths.token_file.read_text().strip()]
        secrets += [key.read_text() for key in stack.paths.engines.glob("*.key")]
    assert len(secrets) == len(PLANTED) + 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as archive:
        texts = {m.name.removeprefix("outrider-support/"): _text(archive, m) for m in archive.getmembers()}
    assert sorted(texts) == json.loads(done.stdout)["files"]
    assert {"README.txt", "journal.json", "why/liar.txt", "daemon.json", "metrics.txt", "machine.json"} <= set(texts)
    for name, text in texts.items():
        found = [secret for secret in secrets if secret in text]
        assert not found, (name, found)
    # and what a bug report needs is there
    assert WORDS in texts["journal.json"]
    assert "out of memory" in texts["journal.json"]
    assert "liar" in texts["why/liar.txt"]
    assert json.loads(texts["config/models.d/liar.toml.json"])["model"][0]["name"] == "liar"
    assert json.loads(texts["daemon.json"])["health"]["version"]
    assert "outrider_deployment_state" in texts["metrics.txt"]


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member)
    assert file is not None
    return file.read().decode()


def test_each_sieve_keeps_back_what_it_is_for(tmp_path: Path) -> None:
    """The same secrets without an engine: what a daemon would say is written down here."""
    paths = prepare(find(state_dir=tmp_path / "s"))
    try:
        token = tmp_path / "hub-token"
        token.write_text(PLANTED["file"] + "\n" + PLANTED["bare value"] + "\n")
        paths.token_file.write_text("the-api-token-of-this-host")
        paths.models_d.mkdir(parents=True)
        key = paths.engines / "e.key"
        paths.engines.mkdir(parents=True, exist_ok=True)
        key.write_text("the-key-of-an-engine")
        paths.config_file.write_text(
            f'[hub]\nendpoint = "https://grace:{PLANTED["hub login"]}@hub.example.org"\ntoken_file = "{token}"\n'
            f"# the old password was {PLANTED['comment']}\n"
        )
        printed = [f"prompt: '{PROMPT}'", f"using {PLANTED['printed key']}", "cudaMalloc failed: out of memory"]
        said = f"m-1 ended with {PLANTED['bare value']} and the-key-of-an-engine: {printed[0]}"
        journal = [{"code": "failed", "text": said, "evidence": {"log": printed, "by": "the-api-token-of-this-host"}}]
        support = Support(Redactor(), list(_secrets(paths)))
        support.listen(journal)
        files = {"journal": support.data(journal), "why": support.text(said), **dict(_configuration(paths, support))}
    finally:
        shutil.rmtree(paths.run_dir)
    secrets = [*PLANTED.values(), "the-key-of-an-engine", "the-api-token-of-this-host"]
    assert [(name, secret) for name, text in files.items() for secret in secrets if secret in text] == []
    assert "out of memory" in files["journal"]
    assert "hub.example.org" in files["config/outrider.toml.json"]


def test_what_an_engine_printed_goes_wherever_it_is_quoted() -> None:
    support = Support(Redactor())
    line = "some words that a person typed into a chat, and more of them " * 6
    support.listen([{"evidence": {"log": [line[:300], "CUDA error: out of memory"]}}])
    assert line[:40] not in support.text(f"m-1 ended with exit code 1: {line[:200]}")
    assert "CUDA error: out of memory" in support.text("m-1: CUDA error: out of memory")
    assert line[:40] not in support.data({"deep": [{"reason": f"x {line[:300]}"}]})


def test_a_line_that_speaks_of_a_prompt_is_never_a_known_failure() -> None:
    assert known_failure("CUDA error: out of memory")
    assert not known_failure("prompt: 'CUDA error: out of memory'")


def test_a_configuration_that_is_no_toml_shows_nothing() -> None:
    assert "hunter2" not in Support(Redactor()).configuration("password = hunter2\n[[[")


DOWN = {
    "hub token in the environment": "hf_PlantedInTheEnvironment1",
    "password in the environment": "Pl4ntedPassphraseOfSomebody",
    "key in the configuration": "PlantedKeyInTheConfiguration3",
    "key in an address": "PlantedInAnAddress4",
    "signature in an address": "PlantedSignature5",
    "login in an address": "PlantedLogin6",
    "key as an argument": "PlantedAsAnArgument7",
    "key as an argument in a sentence": "PlantedInASentence8",
    "header": "PlantedBearer9",
    "prompt": PROMPT,
    "key of an engine": "PlantedKeyOfAnEngine10",
}


async def _a_journal(database: Path) -> None:
    store = await Store.open(database)
    journal = Journal(store, SystemClock(), host="here", boot_id="b", last=0)
    address = f"https://grace:{DOWN['login in an address']}@hub.example.org/x?api_key={DOWN['key in an address']}"
    journal.emit("weights", "failed", f"{address}&sig={DOWN['signature in an address']} said 403", deployment="m")
    evidence = {
        "argv": ["serve", "--api-key", DOWN["key as an argument"], "--port", "8000"],
        "env": {"HF_TOKEN": DOWN["hub token in the environment"]},
        "log": [f"Received prompt: '{PROMPT}'", "CUDA error: out of memory"],
    }
    text = (
        f"it ran with --hf-token {DOWN['key as an argument in a sentence']} -c 4096, sent"
        f" Authorization: Bearer {DOWN['header']} and key {DOWN['key of an engine']},"
        f" with {DOWN['password in the environment']} (Received prompt: '{PROMPT}')"
    )
    journal.emit("lifecycle", "failed", text, deployment="m", evidence=evidence)
    await journal.flush()
    await store.close()


def _members(data: bytes) -> Iterator[bytes]:
    """The data, and all that lies compressed or packed in it, at whatever depth."""
    yield data
    if data[:2] == b"\x1f\x8b":
        yield from _members(gzip.decompress(data))
    elif data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive.getmembers():
                file = archive.extractfile(member)
                if file is not None:
                    yield from _members(file.read())
    elif data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            for name in packed.namelist():
                yield from _members(packed.read(name))


def test_without_a_daemon_it_has_what_lies_on_the_disk_and_no_secret(
    call: Call, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that does not come up is what people report."""
    prepare(paths)
    try:
        asyncio.run(_a_journal(paths.database))
        paths.engines.mkdir(parents=True, exist_ok=True)
        (paths.engines / "e.key").write_text(DOWN["key of an engine"])
        paths.config_dir.mkdir(parents=True, exist_ok=True)
        paths.config_file.write_text(f'[gateway]\napi_key = "{DOWN["key in the configuration"]}"\n')
        monkeypatch.setenv("HF_TOKEN", DOWN["hub token in the environment"])
        monkeypatch.setenv("GRACES_PASSWD", DOWN["password in the environment"])
        file = tmp_path / "bundle.tar.gz"
        said = call("support-bundle", str(file), "--json")
        assert said.code == 0, said.err
        assert "without what only the daemon knows: no daemon answers" in said.err
    finally:
        shutil.rmtree(paths.run_dir, ignore_errors=True)
    pieces = list(_members(file.read_bytes()))
    assert len(pieces) > len(said.document["files"]), "the compressed is looked into"
    wrong = [what for what, secret in DOWN.items() if any(secret.encode() in piece for piece in pieces)]
    assert not wrong
    with tarfile.open(file) as archive:
        texts = {m.name.removeprefix("outrider-support/"): _text(archive, m) for m in archive.getmembers()}
    assert [entry["code"] for entry in json.loads(texts["journal.json"])] == ["failed", "failed"]
    assert "out of memory" in texts["journal.json"]
    assert "-c 4096" in texts["journal.json"], "what is no secret stays"
    assert json.loads(texts["daemon.json"])["health"]["error"] == "daemon_unreachable"
    assert json.loads(texts["machine.json"])["outrider"]


def test_without_a_daemon_and_without_a_database_there_is_a_bundle_too(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    assert call("support-bundle", str(file), "--json").code == 0
    with tarfile.open(file) as archive:
        journal = archive.extractfile("outrider-support/journal.json")
        assert journal is not None
        assert "no database is there" in journal.read().decode()

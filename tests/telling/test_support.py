"""`outrider support-bundle`: all that a bug report needs, and none of the secrets and prompts that are planted here."""

from __future__ import annotations

import json
import shutil
import stat
import tarfile
from pathlib import Path

import pytest

from api.cli.supportcommand import _configuration, _secrets
from orchestrator.doctor.redact import Redactor
from orchestrator.paths import find, prepare
from orchestrator.telling.support import WORDS, Support, known_failure
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

"""What all commands have in common: exit codes, one JSON document, errors as sentences."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.main import hoisted, main
from orchestrator.paths import Paths
from tests.cli import fake
from tests.cli.conftest import Call

NEED_A_DAEMON = [
    ("ps",),
    ("status",),
    ("issues",),
    ("top",),
    ("models",),
    ("model", "ls"),
    ("model", "show", "m"),
    ("model", "rm", "m"),
    ("model", "add", "smollm2"),
    ("events",),
    ("events", "-f"),
    ("logs", "m"),
    ("logs", "m", "-f"),
    ("why", "m"),
    ("pause",),
    ("pause", "m"),
    ("resume",),
    ("resume", "m"),
    ("why", "m", "--since", "2h"),
    ("start", "m"),
    ("start", "m", "--wait"),
    ("stop", "m"),
    ("restart", "m"),
    ("apply", "m"),
    ("drain", "m"),
    ("run", "m", "-p", "hi"),
    ("prune",),
    ("prune", "--dry-run"),
    ("reload",),
    ("reload", "--dry-run"),
    ("measured", "ls"),
    ("measured", "rm", "m"),
    ("measured", "rm", "--all"),
    ("image", "ls"),
    ("image", "pull", "i"),
    ("image", "pin", "i"),
    ("image", "pin", "i", "--unpin"),
    ("image", "rm", "i"),
]


@pytest.mark.parametrize("words", NEED_A_DAEMON, ids=" ".join)
def test_without_a_daemon_it_is_six_and_the_next_step(call: Call, words: tuple[str, ...]) -> None:
    said = call(*words)
    assert said.code == 6
    assert said.out == ""
    assert said.err.startswith("error[daemon_unreachable]: no daemon answers on ")
    assert "hint: `outrider up` starts one" in said.err


def test_with_json_an_error_is_the_one_document(call: Call) -> None:
    said = call("ps", "--json")
    assert said.code == 6
    assert said.document["exit_code"] == 6
    assert said.document["error"]["code"] == "daemon_unreachable"
    assert said.document["error"]["hint"]


CODES = [
    (400, "usage", 2),
    (400, "config_invalid", 1),
    (404, "not_found", 3),
    (409, "refused", 4),
    (409, "too_big", 4),
    (409, "conflict", 4),
    (409, "switch_too_costly", 4),
    (409, "suspected_host_crash", 4),
    (409, "a_refusal_of_a_later_version", 4),
    (504, "timed_out", 5),
    (422, "model_file", 1),
    (403, "auth_gated", 4),
    (403, "auth_failed", 4),
    (404, "not_offered", 3),
    (507, "disk_full", 4),
    (507, "disk_read_only", 4),
    (503, "rate_limited", 1),
    (502, "source_failed", 1),
    (502, "digest_mismatch", 1),
    (422, "validation", 2),
    (503, "podman_unreachable", 1),
    (500, "internal", 1),
]


@pytest.mark.parametrize(("status", "code", "exit_code"), CODES)
def test_the_daemons_error_keeps_its_code(
    call: Call, daemon: fake.Script, status: int, code: str, exit_code: int
) -> None:
    daemon.on("GET", "/deployments", fake.problem(status, code, "what is wrong", hint="what to do"))
    said = call("ps")
    assert said.code == exit_code
    assert said.err == f"error[{code}]: what is wrong\nhint: what to do\n"
    document = call("ps", "--json").document
    assert document["error"]["code"] == code
    assert document["exit_code"] == exit_code


def test_an_answer_that_is_no_problem_document(call: Call, daemon: fake.Script) -> None:
    daemon.on("GET", "/deployments", fake.Answer("<html>what</html>", 502, "text/html"))
    said = call("ps")
    assert said.code == 1
    assert "the daemon answered 502" in said.err


def test_several_problems_are_all_shown(call: Call, daemon: fake.Script) -> None:
    problems = [
        {"file": "a.toml", "key": "x.y", "detail": "is not a known key", "hint": "did you mean 'z'?"},
        {"file": "b.toml", "key": None, "detail": "is not TOML", "hint": "quotes"},
    ]
    daemon.on("POST", "/reload", fake.problem(400, "config_invalid", "a.toml: x.y: ...", problems=problems))
    said = call("reload")
    assert said.code == 1
    assert said.err.splitlines() == [
        "error[config_invalid]: a.toml: x.y: is not a known key",
        "hint: did you mean 'z'?",
        "error[config_invalid]: b.toml: is not TOML",
        "hint: quotes",
    ]


@pytest.mark.parametrize(
    ("words", "detail"),
    [
        (("strat", "m"), "No such command 'strat'"),
        (("start",), "Missing argument 'MODEL'"),
        (("ps", "--jsn"), "No such option: --jsn"),
        (("start", "m", "--timeout", "soon"), "valid number"),
        (("start", "m", "--timeout", "-1"), "greater than or equal to 0"),
        (("plan", "m", "--what-if", "context"), "no KEY=VALUE"),
        (("plan", "m", "--profile", "a", "--facts", "b"), "give one of them"),
        (("fit",), "rows are read from standard input"),
        (("fit", "--profile", "a"), "these options go with --model"),
        (("fit", "--model", "m", "--method", "magic"), "'magic' is none"),
        (("fit", "--model", "m", "--profile", "a", "--facts", "b"), "give one of them"),
        (("model", "add", "m"), "where is m?"),
        (("model", "add", "m", "--path", "x", "--drafter", "d"), "no NAME:METHOD:FILE"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_a_wrong_call_is_two(call: Call, words: tuple[str, ...], detail: str) -> None:
    said = call(*words)
    assert said.code == 2
    assert said.err.startswith("error[usage]: ")
    assert detail in said.err
    assert "hint: " in said.err


def test_no_arguments_show_the_help_and_are_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().err


def test_the_global_options_may_stand_anywhere() -> None:
    assert hoisted(["ps", "--state-dir", "d", "--json"]) == ["--state-dir", "d", "ps", "--json"]
    assert hoisted(["ps", "--config=c"]) == ["--config=c", "ps"]
    assert hoisted(["run", "m", "--", "--config", "c"]) == ["run", "m", "--", "--config", "c"]
    assert hoisted(["ps", "--state-dir"]) == ["--state-dir", "ps"]


@pytest.mark.parametrize(
    ("name", "detail"),
    [("nowhere.toml", "must be outrider.toml"), ("nowhere/outrider.toml", "there is no such file")],
)
def test_a_config_that_cannot_be_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, detail: str
) -> None:
    assert main(["config", "check", "--config", str(tmp_path / name)]) == 2
    assert detail in capsys.readouterr().err


def test_a_defect_is_one_line_and_a_traceback_only_when_asked_for(
    call: Call, paths: Paths, daemon: fake.Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.on("GET", "/deployments", [{"not": "a view"}])
    said = call("ps")
    assert said.code == 1
    assert "error[internal]: KeyError" in said.err
    assert "Traceback" not in said.err
    monkeypatch.setenv("OUTRIDER_DEBUG", "1")
    with pytest.raises(KeyError):
        main(["ps", "--state-dir", str(paths.state_dir)])


def outrider(paths: Paths, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "api.cli", "--state-dir", str(paths.state_dir), *words]


def test_ctrl_c_ends_quietly_with_130(paths: Paths) -> None:
    reached = threading.Event()

    def silence(_asked: fake.Asked) -> fake.Answer:
        reached.set()
        return fake.Answer(kind="text/event-stream", pieces=_held(over))

    over = threading.Event()
    with fake.control(paths.control_socket) as daemon:
        daemon.on("GET", "/events", silence)
        child = subprocess.Popen(outrider(paths, "events", "-f"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdout is not None
        assert reached.wait(20)
        assert b"first" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=20)
        over.set()
    assert (child.returncode, out, err) == (130, b"", b"")


def _held(over: threading.Event) -> Iterator[bytes]:
    yield b"event: event\ndata: " + json.dumps(fake.event(1, "first")).encode() + b"\n\n"
    over.wait(30)


def test_a_reader_that_leaves_is_no_defect(paths: Paths) -> None:
    with fake.control(paths.control_socket) as daemon:
        daemon.on("GET", "/events", fake.events(*(("event", fake.event(n, "x" * 200)) for n in range(2000))))
        child = subprocess.Popen(outrider(paths, "events", "-f"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline()
        child.stdout.close()
        assert child.stderr is not None
        with child.stderr:
            assert child.stderr.read() == b""
        assert child.wait(20) == 1


HEAVY = {"fastapi", "starlette", "uvicorn", "podman", "aiohttp", "apscheduler", "requests", "hosts", "structlog"}


@pytest.mark.parametrize("words", [("--help",), ("start", "--help"), ("--version",), ("ps",)], ids=" ".join)
def test_quick_commands_load_little(paths: Paths, words: tuple[str, ...]) -> None:
    """Seconds depend on the machine; what is imported does not."""
    code = "import sys; from api.cli.main import main; main(sys.argv[1:]); print('\\n', *sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "--state-dir", str(paths.state_dir), *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}
    assert "typer" in loaded
    assert loaded & HEAVY == set()
    if words != ("ps",):
        assert "httpx" not in loaded


def test_version() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "api.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("outrider 0.")


def test_completion(tmp_path: Path) -> None:
    def ask(**more: str) -> str:
        env = {**os.environ, "HOME": str(tmp_path), "SHELL": "/bin/bash", **more}
        words = () if more else ("completion", "install")
        command = [sys.executable, "-P", "-m", "api.cli", *words]
        return subprocess.run(command, capture_output=True, text=True, env=env, check=True, timeout=30).stdout

    assert "bash completion is in" in ask()
    assert "_OUTRIDER_COMPLETE" in next((tmp_path / ".bash_completions").iterdir()).read_text()
    offered = ask(_OUTRIDER_COMPLETE="complete_bash", COMP_WORDS="outrider st", COMP_CWORD="1")
    assert set(offered.split()) == {"start", "status", "stop"}


@pytest.mark.parametrize(
    "verb", ["start", "start --on-demand", "stop", "why", "logs", "pause", "resume", "measured rm"]
)
def test_completion_of_models(daemon: fake.Script, paths: Paths, verb: str) -> None:
    """Those that nobody has loaded yet too."""
    idle = fake.view("idle", "smol-idle", desired="on_demand", engine=None)
    daemon.on("GET", "/deployments", [fake.view(), idle, fake.view("stopped", "other")])
    assert _completed(paths, f"outrider {verb} sm") == {"smollm2", "smol-idle"}


def test_completion_of_models_without_a_daemon(paths: Paths) -> None:
    assert _completed(paths, "outrider start ") == set()
    paths.models_d.mkdir(parents=True)
    variant = '[[model.variants]]\nname = "v"\nformat = "gguf"\nquantisation = "F32"\npath = "x.gguf"\n'
    (paths.models_d / "m.toml").write_text(f'[[model]]\nname = "mine"\n{variant}')
    assert _completed(paths, "outrider start ") == {"mine"}
    (paths.models_d / "m.toml").write_text("no configuration")
    assert _completed(paths, "outrider start ") == set()


def _completed(paths: Paths, line: str) -> set[str]:
    """What bash is offered; nothing may be said beside it, for the shell would print it into the line."""
    folders = {"OUTRIDER_CONFIG": str(paths.config_dir), "OUTRIDER_STATE_DIR": str(paths.state_dir)}
    asked = {"_OUTRIDER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    env = {**os.environ, **folders, **asked}
    command = [sys.executable, "-P", "-m", "api.cli"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True, timeout=30)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_completion_for_an_unknown_shell(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert call("completion", "install").code == 2
    said = call("completion", "show", "--shell", "zsh")
    assert said.code == 0
    assert "#compdef outrider" in said.out

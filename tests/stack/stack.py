"""A whole Outrider for tests: daemon and gateway as real processes, a state folder and ports of their own.

Everything runs at a fraction of the time scale, against real Podman. What a stack started it
ends, by pid and by container label, whatever the test did.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from containers import service
from orchestrator.paths import Paths, find, prepare
from tests.fakes.engine import Script
from tests.ports import free_ports
from tests.waiting import until_sync

LIMIT = 60.0


def accepts(path: Path) -> bool:
    """Whether somebody listens on a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def toml_value(value: object) -> str:
    """JSON's strings, numbers, booleans and arrays are TOML's; tables are written inline."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    return json.dumps(value)


def model_toml(entry: Mapping[str, object]) -> str:
    """One `[[model]]` table."""
    return "[[model]]\n" + "".join(f"{key} = {toml_value(value)}\n" for key, value in entry.items())


class Stack:
    """One Outrider. Use as a context manager."""

    def __init__(
        self,
        podman_socket: str | None,
        *,
        scale: float = 0.05,
        settings: str = "",
        gateway: bool = True,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Without a Podman socket the daemon finds or starts a service of its own. `environ` is added to that of
        daemon and gateway. `folder` is the state folder, if it is to be a certain one."""
        self.environ = dict(environ or {})
        self.module = "api.cli"
        """What Python runs as the command line, and the folder in which it is run: a module there comes first."""
        self.cwd: Path | None = None
        self._podman_socket = podman_socket
        self.folder = Path(tempfile.mkdtemp(prefix="or-stack-")) if folder is None else folder
        self.paths: Paths = prepare(find(state_dir=self.folder))
        self.scale = scale
        self._with_gateway = gateway
        self.gateway_port, self.ops_port, self.api_port = free_ports(3)
        self.daemon: subprocess.Popen[bytes] | None = None
        self.gateway: subprocess.Popen[bytes] | None = None
        self.paths.models_d.mkdir(parents=True)
        self.write_settings(settings)

    # configuration

    def write_settings(self, more: str = "") -> None:
        self.paths.config_file.write_text(
            f'[gateway]\nlisten = "127.0.0.1:{self.gateway_port}"\nops_listen = "127.0.0.1:{self.ops_port}"\n'
            f'[api]\nlisten = "127.0.0.1:{self.api_port}"\n'
            + ("" if self._podman_socket is None else f'[podman]\nsocket = "{self._podman_socket}"\n')
            + f"[timing]\nscale = {self.scale}\n{more}"
        )

    def put_file(self, model: str, source: Path) -> str:
        """Place a model file in the store; its path as the configuration names it."""
        target = self.paths.store / model / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        return f"{model}/{source.name}"

    def define(
        self,
        name: str,
        target: Path,
        *,
        drafter: Path | None = None,
        method: str = "auto",
        draft_tokens: int | None = None,
        speculation: Mapping[str, object] | None = None,
        **entry: object,
    ) -> None:
        """Write `models.d/NAME.toml` for one GGUF target and at most one drafter."""
        spec: dict[str, object] = {"method": method, **(speculation or {})}
        if draft_tokens is not None:
            spec["draft_tokens"] = draft_tokens
        data: dict[str, object] = {
            "name": name,
            "variants": [{"name": "f32", "format": "gguf", "quantisation": "F32", "path": self.put_file(name, target)}],
            "context": 2048,
            "parallel": 1,
            "threads": 1,
            **entry,
        }
        if drafter is not None:
            drafter_method = method if method not in ("auto", "none") else "dflash"
            data["drafters"] = [
                {
                    "name": "drafter",
                    "method": drafter_method,
                    "format": "gguf",
                    "path": self.put_file(f"{name}-drafter", drafter),
                }
            ]
        data["speculation"] = spec
        written = self.paths.models_d / f".{name}.new"
        written.write_text(model_toml(data))
        # whole at once: a reload under way would take an empty file for a model that is no longer defined
        written.rename(self.paths.models_d / f"{name}.toml")

    @property
    def podman_socket(self) -> str:
        return self._podman_socket or str(self.paths.podman_socket)

    # processes

    def define_fake(
        self, name: str, image: str, target: Path, *, script: Mapping[str, Any] | None = None, **more: Any
    ) -> Script:
        """A model whose engine is `tests.fakes.engine` (fixture `fake_engine_image`); what it does stands in the
        script. `target` is any model file that a plan can be made of."""
        self.define(name, target, **{"method": "none", "image": image, **more})
        made = Script(self.paths.store / name)
        made.write(**(script or {}))
        return made

    def __enter__(self) -> Self:
        try:
            self.start_daemon()
            if self._with_gateway:
                self.start_gateway()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, command: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{command}.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", self.module, "--state-dir", str(self.folder), command],
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.cwd,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environ},
            )

    def log(self, command: str) -> str:
        return (self.folder / f"{command}.log").read_text(errors="replace")

    def start_daemon(self, *, wait: bool = True) -> None:
        self.daemon = self._run("daemon")
        if wait:
            self.wait_api()

    def wait_api(self) -> None:
        daemon = self.daemon
        assert daemon is not None

        def answers() -> bool:
            if daemon.poll() is not None:
                raise AssertionError(f"the daemon ended with {daemon.returncode}:\n{self.log('daemon')[-3000:]}")
            # httpcore's sync transport leaks the socket of a refused connection, so this looks first
            if not accepts(self.paths.control_socket):
                return False
            with contextlib.suppress(httpx.HTTPError):
                return bool(self.get("/api/v1/health")["podman"])
            return False

        until_sync(answers, LIMIT, "the control API")

    def start_gateway(self) -> None:
        gateway = self.gateway = self._run("gateway")

        def answers() -> bool:
            if not accepts(self.paths.gateway_socket) and gateway.poll() is None:
                return False
            if gateway.poll() is not None:
                raise AssertionError(f"the gateway ended with {gateway.returncode}:\n{self.log('gateway')[-3000:]}")
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"http://127.0.0.1:{self.ops_port}/healthz", timeout=2).status_code == 200
            return False

        until_sync(answers, LIMIT, "the gateway")

    def kill_daemon(self, number: int = signal.SIGKILL) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(number)
        self.daemon.wait(LIMIT)

    # the API

    def api(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.paths.control_socket))
        return httpx.Client(transport=transport, base_url="http://outrider", timeout=30)

    def get(self, path: str) -> Any:
        with self.api() as api:
            answer = api.get(path)
            answer.raise_for_status()
            return answer.json()

    def send(self, method: str, path: str, body: object = None) -> httpx.Response:
        with self.api() as api:
            return api.request(method, path, json=body)

    def want(self, name: str, state: str) -> httpx.Response:
        return self.send("PUT", f"/api/v1/deployments/{name}/desired", {"state": state})

    def deployment(self, name: str) -> Any:
        return self.get(f"/api/v1/deployments/{name}")

    def wait_state(self, name: str, *states: str, limit: float = LIMIT, may_fail: bool = False) -> Any:
        """Wait until the deployment is in one of the states; unless it may fail, a failure ends the test."""

        def there() -> Any:
            view = self.deployment(name)
            if view["state"] in states:
                return view
            if view["state"] == "failed" and not may_fail:
                raise AssertionError(f"{name} failed: {view['reason']}\n{self.log('daemon')[-3000:]}")
            return None

        return until_sync(there, limit, f"{name} {'/'.join(states)}")

    def start(self, *names: str) -> list[Any]:
        """Start models and wait until all are ready."""
        for name in names:
            answer = self.want(name, "running")
            assert answer.status_code < 300, answer.text
        return [self.wait_state(name, "ready") for name in names]

    def wait(self, condition: Callable[[], Any], limit: float = LIMIT, what: str = "condition") -> Any:
        return until_sync(condition, limit, what)

    def events(self, deployment: str | None = None) -> list[Any]:
        return list(self.get("/api/v1/events" + (f"?deployment={deployment}" if deployment else "")))

    def codes(self, deployment: str | None = None) -> list[str]:
        return [event["code"] for event in self.events(deployment)]

    # the gateway

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}/v1"

    def chat(self, model: str, tokens: int = 64, prompt: str = "x", **more: object) -> httpx.Response:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            **more,
        }
        return httpx.post(f"{self.base_url}/chat/completions", json=body, timeout=LIMIT)

    def text(self, model: str, tokens: int = 64, **more: Any) -> str:
        answer = self.chat(model, tokens, **more)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    # the end

    def podman(self, *arguments: str) -> str:
        command = ["podman", "--url", f"unix://{self.podman_socket}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout

    def containers(self) -> Sequence[str]:
        return self.podman("ps", "-aq", "--no-trunc", "--filter", f"label=io.outrider.owner={self.paths.owner}").split()

    def close(self) -> None:
        for process in (self.gateway, self.daemon):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait(LIMIT)
        left = self.containers()
        if left:
            self.podman("rm", "-f", "-t", "0", *left)
        own = service.running(self.paths.run_dir)
        if own is not None:
            os.kill(own, signal.SIGTERM)
            until_sync(lambda: service.running(self.paths.run_dir) is None, LIMIT, "the Podman service ends")
        if os.path.realpath(self.paths.run_dir) != os.path.realpath(self.folder / "run"):
            shutil.rmtree(self.paths.run_dir, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def running(stack: Stack, *names: str) -> Iterator[Stack]:
    """A stack with these models ready."""
    with stack:
        stack.start(*names)
        yield stack

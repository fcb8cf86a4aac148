"""Attempts to get in, out, or at what is not one's own. All fail, each in the way that is written here.

From outside: web pages, other users of the machine, clients with strange requests. From inside:
code that runs in an engine's container, and model definitions that ask for too much.
"""

from __future__ import annotations

import ast
import errno
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.control.token import load_or_create
from containers.errors import SpecRefused
from containers.spec import ENGINE_UID
from orchestrator.errors import EngineFailed
from orchestrator.paths import find, prepare
from orchestrator.plan import SOCKET_FOLDER, Limits, Method, PlanMount
from tests.control.raw import ask, request
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.bench import Bench, filled_store, opened
from tests.stack.stack import Stack, model_toml
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

NOBODY = 65534
FIRST_PERSON = 1000
"""The uid of the first person with an account on most machines."""


@pytest.fixture(scope="module")
def stack(podman_socket: str, embedded_image: str, test_models: Path) -> Iterator[Stack]:
    """`plain` is ready. Anybody may enter the stack's folder: what keeps people out lies deeper."""
    made = Stack(podman_socket)
    made.folder.chmod(0o755)
    made.define("plain", test_models / g.TARGET, method="none", aliases=["Some/Alias"])
    with made:
        made.start("plain")
        yield made


@pytest.fixture(scope="module")
def engine(stack: Stack) -> Any:
    return stack.deployment("plain")["engine"]


@pytest.fixture(scope="module")
def key(stack: Stack, engine: Any) -> str:
    text = (stack.paths.engines / f"{engine['id']}.key").read_text()
    assert len(text) > 40
    return text


@pytest.fixture(scope="module")
def token(stack: Stack) -> str:
    return stack.paths.token_file.read_text().strip()


# in through the control API


async def test_a_page_of_another_origin(stack: Stack, token: str) -> None:
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{stack.gateway_port}"):
        headers = (f"Authorization: Bearer {token}", f"Origin: {origin}")
        assert (await ask(stack.api_port, request(headers=headers))).problem == (403, "origin_refused")
        assert (await ask(stack.paths.control_socket, request(headers=headers))).problem == (403, "origin_refused")


async def test_a_page_that_rebinds_its_name(stack: Stack, token: str) -> None:
    bearer = f"Authorization: Bearer {token}"
    for host in ("evil.example", f"evil.example:{stack.api_port}", "127.0.0.1.evil.example", "169.254.169.254"):
        assert (await ask(stack.api_port, request(host=host, headers=(bearer,)))).problem == (421, "host_refused")
        # a socket that SSH forwards to a port
        assert (await ask(stack.paths.control_socket, request(host=host))).problem == (421, "host_refused")


async def test_no_token_or_a_wrong_one(stack: Stack, token: str) -> None:
    desired = "/api/v1/deployments/plain/desired"
    for headers, target, code in (
        ((), "/api/v1/deployments", "token_missing"),
        ((), f"/api/v1/deployments?token={token}", "token_missing"),
        ((f"Cookie: token={token}",), "/api/v1/deployments", "token_missing"),
        (("Authorization: Bearer wrong",), "/api/v1/deployments", "token_wrong"),
        ((f"Authorization: Bearer {token[:-1]}",), "/api/v1/deployments", "token_wrong"),
        ((f"Authorization: Bearer {token}{token}",), "/api/v1/deployments", "token_wrong"),
    ):
        assert (await ask(stack.api_port, request(target=target, headers=headers))).problem == (401, code)
    json_body = "Content-Type: application/json"
    stop = request("PUT", desired, headers=(json_body,), body='{"state": "stopped"}')
    assert (await ask(stack.api_port, stop)).problem == (401, "token_missing")
    assert stack.deployment("plain")["desired"] == "running"


async def test_the_token_of_another_state_folder(stack: Stack, tmp_path: Path) -> None:
    other = load_or_create(prepare(find(state_dir=tmp_path / "other")))
    answer = await ask(stack.api_port, request(headers=(f"Authorization: Bearer {other}",)))
    assert answer.problem == (401, "token_wrong")


async def test_an_engines_key_is_no_token(stack: Stack, key: str) -> None:
    answer = await ask(stack.api_port, request(headers=(f"Authorization: Bearer {key}",)))
    assert answer.problem == (401, "token_wrong")


async def test_the_gateways_routes_over_tcp(stack: Stack, token: str) -> None:
    """They tell engines' keys; the unix socket has them, for root and the gateway's user."""
    bearer = f"Authorization: Bearer {token}"
    for target in ("/api/v1/gateway/table", "/api/v1/gateway/report", "/api/v1/%67ateway/table"):
        assert (await ask(stack.api_port, request(target=target))).problem == (401, "token_missing")
        assert (await ask(stack.api_port, request(target=target, headers=(bearer,)))).problem == (404, "no_such_route")


async def test_paths_and_targets_of_the_control_api_that_are_not_plain(stack: Stack, token: str) -> None:
    bearer = f"Authorization: Bearer {token}"
    for target, code in (
        ("/api/v1/gateway/../version", "bad_path"),
        ("/healthz/../api/v1/deployments", "bad_path"),
        ("/api/v1/%2e%2e/v1/deployments", "bad_path"),
        ("//api/v1/deployments", "bad_path"),
        ("/api/v1/deployments%00", "bad_path"),
        (f"http://127.0.0.1:{stack.api_port}/api/v1/deployments", "bad_target"),
    ):
        assert (await ask(stack.api_port, request(target=target, headers=(bearer,)))).problem == (400, code), target
    assert (await ask(stack.api_port, request("CONNECT", "127.0.0.1:22", headers=(bearer,)))).problem == (
        400,
        "bad_target",
    )
    # a path that is no path needs a token all the same
    assert (await ask(stack.api_port, request(target="/healthz/../api/v1/deployments"))).problem[0] == 401


async def test_requests_to_the_control_api_that_can_be_read_in_two_ways(stack: Stack, token: str) -> None:
    bearer, kind = f"Authorization: Bearer {token}", "Content-Type: application/json"
    smuggled = request("POST", "/api/v1/shutdown", headers=(bearer, kind), body='{"engines": true}')
    for head, problem in (
        ((bearer, "Host: evil.example"), (400, "bad_request")),
        ((bearer, kind, "Content-Length: 4", "Transfer-Encoding: chunked"), (400, "duplicate_header")),
        ((bearer, kind, "Content-Length: 4", "Content-Length: 5"), (400, "bad_request")),
        ((bearer, kind, "Transfer-Encoding: gzip, chunked"), (400, "bad_request")),
    ):
        method = "GET" if "evil" in head[-1] else "POST"
        text = request(method, "/api/v1/reload", headers=head)
        answer = await ask(stack.api_port, text + "0\r\n\r\n" + smuggled.replace(bearer, "X-Was: bearer"))
        assert answer.problem == problem
    assert stack.deployment("plain")["state"] == "ready"


# in through the gateway


def bare(port: int, data: bytes) -> list[tuple[int, str]]:
    """(status, error code) of everything that comes back until the gateway closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(data)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    found, rest = [], b"".join(parts)
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        length = int(re.findall(rb"(?i)\r\ncontent-length: (\d+)", head)[0])
        body, rest = rest[:length], rest[length:]
        document = json.loads(body) if body.startswith(b"{") else {}
        found.append((int(head.split()[1]), document.get("error", {}).get("code", "")))
    return found


UNKNOWN = [(404, "unknown_url")]
BAD = [(400, "invalid_http")]
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "target",
    [
        *(
            "/slots",
            "/slots/0?action=save",
            "/metrics",
            "/props",
            "/completion",
            "/lora-adapters",
            "/tokenize",
            "/health",
        ),
        *("/v1/embeddings", "/v1/../slots", "//slots", "/v1/%2e%2e/slots", "/v1/chat/completions/../../slots"),
        *("/v1/chat/completions%2f..%2f..%2fslots", "/v1//slots", "/./slots", "/v1/chat/completions/", "/SLOTS"),
        *("http://engine/slots", "http://127.0.0.1/metrics", "http://169.254.169.254/latest", "/v1;/slots", "/%73lots"),
    ],
)
def test_an_engines_other_endpoints(stack: Stack, target: str) -> None:
    for method in ("GET", "POST"):
        text = f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        assert bare(stack.gateway_port, text.encode()) == UNKNOWN


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n", BAD),
        (
            CHAT + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n",
            BAD,
        ),
        (
            CHAT + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n",
            BAD,
        ),
        (CHAT + b"Content-Length: 2\r\nContent-Length: 30\r\n\r\n{}GET /v1/models HTTP/1.1\r\n\r\n", BAD),
        (CHAT + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", BAD),
        (CHAT + b"Transfer-Encoding: xchunked\r\nContent-Length: 2\r\n\r\n{}", BAD),
        (CHAT + b"X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", BAD),
        (CHAT + b"Content-Length: -1\r\n\r\n{}", BAD),
        (CHAT + b"X-A: b\0c\r\nContent-Length: 2\r\n\r\n{}", BAD),
        (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: y\rZ: \r\n\r\n", BAD),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BAD),
        # a name is text, and stays in the body
        (
            b"GET /v1/models/x%0d%0aX-Evil:%20y HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            [(404, "model_not_found")],
        ),
        (
            b"GET /v1/models/..%2f..%2fslots HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            [(404, "model_not_found")],
        ),
    ],
)
def test_requests_to_the_gateway_that_can_be_read_in_two_ways(
    stack: Stack, data: bytes, expected: list[tuple[int, str]]
) -> None:
    """One answer, and the connection is closed: nothing that was smuggled behind it is read."""
    assert bare(stack.gateway_port, data) == expected


class Tap(threading.Thread):
    """Listens in an engine's place, keeps the heads that come, and answers each with an empty chat."""

    def __init__(self, path: str) -> None:
        super().__init__(daemon=True)
        self.heads: list[bytes] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen()

    def run(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            with client:
                data = b""
                while b"\r\n\r\n" not in data and (part := client.recv(65536)):
                    data += part
                self.heads.append(data.partition(b"\r\n\r\n")[0])
                client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


def test_what_a_client_sends_for_the_gateway_never_reaches_the_engine(stack: Stack, engine: Any, key: str) -> None:
    path = Path(engine["socket"])
    aside = path.with_name("aside.sock")
    assert stack.gateway is not None
    stack.gateway.terminate()
    stack.gateway.wait(20)
    path.rename(aside)
    tap = Tap(str(path))
    tap.start()
    try:
        stack.start_gateway()
        body = json.dumps({"model": "plain", "messages": []}).encode()
        head = b"".join(
            (
                CHAT,
                b"Host: evil.example\r\nAuthorization: Bearer client-secret\r\nX-Api-Key: client-secret\r\n",
                b"Cookie: client-secret\r\nProxy-Authorization: client-secret\r\nOrigin: http://evil.example\r\n",
                b"Connection: close, authorization, content-length, x-hop\r\nX-Hop: client-secret\r\nX-Other: kept\r\n",
                b"X-Outrider-Author: root\r\nExpect: nothing\r\nContent-Length: %d\r\n\r\n" % len(body),
            )
        )
        assert bare(stack.gateway_port, head + body)[0][0] == 200
    finally:
        tap.close()
        aside.rename(path)
    (seen,) = tap.heads
    lines = [line.lower() for line in seen.split(b"\r\n")]
    names = [line.partition(b":")[0] for line in lines[1:]]
    assert lines[0] == b"post /v1/chat/completions http/1.1"
    assert b"client-secret" not in seen
    assert b"evil" not in seen
    assert [line for line in seen.split(b"\r\n") if line.lower().startswith(b"authorization:")] == [
        b"authorization: Bearer " + key.encode()
    ]
    for once in (b"host", b"authorization", b"content-length"):
        assert names.count(once) == 1
    assert b"x-other: kept" in lines
    assert b"content-length: %d" % len(body) in lines
    assert stack.text("plain", 20) == recital(20)


def test_a_client_with_a_key_of_its_own_is_answered_as_any(stack: Stack) -> None:
    headers = {"authorization": "Bearer sk-something", "x-api-key": "sk-something"}
    body = {"model": "plain", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    assert httpx.post(f"{stack.base_url}/chat/completions", json=body, headers=headers, timeout=20).status_code == 200


# in as another user of the machine

KNOCK = """
import json, os, socket, sys
uid, wanted = int(sys.argv[1]), json.loads(sys.argv[2])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
def connect(path):
    with socket.socket(socket.AF_UNIX) as knock:
        knock.connect(path)
def read(path):
    with open(path, "rb") as file:
        file.read(1)
def write(path):
    with open(path, "ab"):
        pass
verbs = {"connect": connect, "read": read, "write": write, "list": os.listdir, "kill": lambda pid: os.kill(int(pid), 9)}
said = []
for verb, target in wanted:
    try:
        verbs[verb](target)
        said.append("done")
    except OSError as error:
        said.append(type(error).__name__)
print(json.dumps(said))
"""


def as_user(uid: int, wanted: list[tuple[str, str]]) -> list[str]:
    """Try these things as another user: `done`, or the name of the error."""
    command = [sys.executable, "-I", "-S", "-c", KNOCK, str(uid), json.dumps(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"the tests have to run as root: {done.stderr}"
    return list(json.loads(done.stdout))


@pytest.mark.parametrize("uid", [NOBODY, FIRST_PERSON])
def test_another_user_of_the_machine(stack: Stack, engine: Any, uid: int) -> None:
    paths, pid = stack.paths, engine["pid"]
    wanted = [
        ("connect", engine["socket"]),
        ("connect", str(paths.control_socket)),
        ("connect", str(paths.gateway_socket)),
        ("connect", f"/proc/{pid}/root{SOCKET_FOLDER}/engine.sock"),
        ("list", str(paths.run_dir)),
        ("list", str(paths.engines)),
        ("list", str(paths.routing_table.parent)),
        ("list", f"/proc/{pid}/root"),
        ("read", str(paths.engines / f"{engine['id']}.key")),
        ("read", str(paths.routing_table)),
        ("read", str(paths.token_file)),
        ("read", f"/proc/{pid}/environ"),
        ("read", f"/proc/{pid}/mem"),
        ("write", str(paths.database)),
        ("write", str(paths.store / "plain" / g.TARGET)),
        ("write", str(paths.models_d / "plain.toml")),
        ("kill", str(pid)),
    ]
    assert as_user(uid, wanted) == ["PermissionError"] * len(wanted)
    assert as_user(uid, [("list", str(stack.folder)), ("list", f"/proc/{pid}")]) == ["done"] * 2, "a fair test"
    assert as_user(0, wanted[:-5]) == ["done"] * (len(wanted) - 5), "and a true one"
    until_sync(lambda: stack.text("plain", 4) == recital(4), 10, "it answers on")


def test_nobody_on_the_host_is_the_engines_user(engine: Any) -> None:
    """Who had its uid could read its key from its environment, and reach its socket through /proc."""
    assert os.stat(f"/proc/{engine['pid']}").st_uid == ENGINE_UID
    assert not 1000 <= ENGINE_UID <= 60000, "uids of people"
    with pytest.raises(KeyError):
        pwd.getpwuid(ENGINE_UID)


def test_an_engine_without_its_key(engine: Any, key: str) -> None:
    with httpx.Client(transport=httpx.HTTPTransport(uds=engine["socket"]), base_url="http://engine") as direct:
        for headers in ({}, {"authorization": "Bearer x"}, {"authorization": f"Bearer {key[:-1]}"}, {"x-api-key": "x"}):
            for path in ("/slots", "/metrics", "/props", "/v1/models"):
                assert direct.get(path, headers=headers).status_code == 401, path
            assert direct.post("/v1/chat/completions", json={}, headers=headers).status_code == 401
        assert direct.get("/slots", headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_the_key_is_where_it_may_be_and_nowhere_else(stack: Stack, engine: Any, key: str) -> None:
    secret = key.encode()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert secret not in process.read_bytes(), process
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
    inspected = json.loads(stack.podman("inspect", engine["container_id"]))[0]
    environment = inspected["Config"].pop("Env")
    assert key in json.dumps(environment), "the container's own environment may have it"
    inspected["Config"].pop("CreateCommand", None)
    assert key not in json.dumps(inspected)
    assert key not in stack.podman("logs", engine["container_id"])
    for path in ("deployments", "deployments/plain", "engines", "events", "health", "host", "models", "jobs"):
        assert key not in json.dumps(stack.get(f"/api/v1/{path}")), path
    with stack.api() as api:
        assert key not in api.get("/metrics").text
    assert key not in httpx.get(f"http://127.0.0.1:{stack.ops_port}/metrics").text
    may = {stack.paths.routing_table.resolve(), (stack.paths.engines / f"{engine['id']}.key").resolve()}
    for root in (stack.folder, stack.paths.run_dir):
        for file in root.rglob("*"):
            if file.is_file() and file.resolve() not in may and file.suffix != ".gguf":
                assert secret not in file.read_bytes(), file
    for file in may:
        assert secret in file.read_bytes()
        assert file.stat().st_mode & 0o777 == 0o600


# out of an engine's container


def test_what_an_engine_may_do(engine: Any, stack: Stack) -> None:
    pid = engine["pid"]
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert status["Uid"].split() == [str(ENGINE_UID)] * 4
    assert status["Groups"].split() == [str(ENGINE_UID)]
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0, kind
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2", "a filter is on"
    devices = [line.partition(":")[0].strip() for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]]
    assert devices == ["lo"]
    for space in ("net", "mnt", "pid", "ipc", "uts"):
        assert os.readlink(f"/proc/{pid}/ns/{space}") != os.readlink(f"/proc/self/ns/{space}"), space
    said = json.loads(stack.podman("inspect", engine["container_id"]))[0]
    host = said["HostConfig"]
    assert (host["NetworkMode"], host["Privileged"], host["ReadonlyRootfs"]) == ("none", False, True)
    assert (host["PortBindings"], host["Devices"], host["CapAdd"]) == ({}, [], [])
    assert {(m["Destination"], m["RW"]) for m in said["Mounts"]} == {("/models/target", False), ("/run/engine", True)}


INSIDE = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
def connect(family, kind, address):
    with socket.socket(family, kind) as s:
        s.settimeout(2); s.connect(address)
def apart(work):
    child = os.fork()
    if child == 0:
        try:
            call("unshare", 0x10000000 | 0x00020000)  # new user and mount namespaces
            work()
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    failed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if failed:
        raise OSError(failed, "apart")
attempts = {
    "write a model": lambda: open("/models/target/new", "w"),
    "change a model": lambda: open("/models/target/MODEL", "r+b"),
    "remove a model": lambda: os.unlink("/models/target/MODEL"),
    "write the root": lambda: open("/new", "w"),
    "write the programs": lambda: open("/app/llama-server", "a"),
    "write the mount's parent": lambda: open("/run/new", "w"),
    "the internet": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)),
    "the metadata service": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)),
    "the gateway": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", GATEWAY)),
    "raw packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close(),
    "the podman socket": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, PODMAN),
    "the control socket": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "/run/engine/../control.sock"),
    "other engines": lambda: os.listdir("/run/engine/../engines"),
    "the key file": lambda: open("/run/engine/../ENGINE.key"),
    "become root": lambda: os.setuid(0),
    "mount": lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    "change a model's mount, as root of a user namespace": lambda: apart(
        lambda: call("mount", None, b"/models/target", None, 32 | 4096, None)  # MS_REMOUNT | MS_BIND, not read-only
    ),
    "the programs' mount likewise": lambda: apart(lambda: call("mount", None, b"/", None, 32 | 4096, None)),
    "chroot": lambda: os.chroot("/tmp"),
    "a device": lambda: os.mknod("/tmp/sda", 0o60600, os.makedev(8, 0)),
    "the disk": lambda: open("/dev/vda"),
    "the kernel's memory": lambda: open("/dev/mem"),
    "core pattern": lambda: open("/proc/sys/kernel/core_pattern", "w"),
    "control groups": lambda: open("/sys/fs/cgroup/cgroup.procs", "w"),
    "the host's processes": lambda: os.kill(HOST_PID, 0),
    "the clock": lambda: __import__("time").clock_settime(0, 0),
    "the host's name": lambda: socket.sethostname("x"),
    "a kernel module": lambda: call("syscall", 175, None, 0, b""),
    "a bpf program": lambda: call("syscall", 321, 0, None, 0),
}
said = {}
for name, attempt in attempts.items():
    try:
        attempt()
        said[name] = 0
    except OSError as error:
        said[name] = error.errno
print({
    "said": said,
    "models": os.listdir("/models"),
    "run": os.listdir("/run/engine"),
    "processes": len([p for p in os.listdir("/proc") if p.isdigit()]),
    "shadow": os.path.exists("/etc/shadow"),
    "env": [*os.environ],
})
"""
READ_ONLY, DENIED = errno.EROFS, errno.EPERM
MAY_NOT = {
    "write a model": READ_ONLY,
    "change a model": READ_ONLY,
    "remove a model": READ_ONLY,
    "write the root": READ_ONLY,
    "write the programs": errno.EACCES,
    "write the mount's parent": READ_ONLY,
    "the internet": errno.ENETUNREACH,
    "the metadata service": errno.ENETUNREACH,
    "the gateway": errno.ECONNREFUSED,
    "raw packets": DENIED,
    "the podman socket": errno.ENOENT,
    "the control socket": errno.ENOENT,
    "other engines": errno.ENOENT,
    "the key file": errno.ENOENT,
    "become root": DENIED,
    "mount": DENIED,
    "change a model's mount, as root of a user namespace": DENIED,
    "the programs' mount likewise": DENIED,
    "chroot": DENIED,
    "a device": DENIED,
    "the disk": errno.ENOENT,
    "the kernel's memory": errno.ENOENT,
    "core pattern": READ_ONLY,
    "control groups": errno.EACCES,
    "the host's processes": errno.ESRCH,
    "the clock": DENIED,
    "the host's name": DENIED,
    "a kernel module": DENIED,
    "a bpf program": DENIED,
}


def test_code_inside_an_engine(stack: Stack, engine: Any) -> None:
    """As the engine itself could, were it taken over: its image has the interpreter that this runs in."""
    (stack.paths.store / "plain").chmod(0o777)  # it is the mount that must refuse writing, not the mode
    (stack.paths.store / "plain" / g.TARGET).chmod(0o666)
    program = INSIDE
    for word, value in (
        ("MODEL", g.TARGET),
        ("GATEWAY", str(stack.gateway_port)),
        ("PODMAN", repr(stack.podman_socket)),
        ("ENGINE", engine["id"]),
        ("HOST_PID", str(os.getpid())),
    ):
        program = program.replace(word, value)
    said = ast.literal_eval(stack.podman("exec", engine["container_id"], "/usr/bin/python3", "-c", program))
    assert said["said"] == MAY_NOT
    assert said["models"] == ["target"], "only its own model"
    assert said["run"] == ["engine.sock"], "only its own socket"
    assert said["processes"] == 2, "itself and the engine"
    assert said["shadow"] is False
    assert not any("TOKEN" in name or name.startswith(("HF_", "OUTRIDER")) for name in said["env"])


# out through a model's definition


@pytest.fixture
def refused(stack: Stack) -> Iterator[Any]:
    """Tries a definition on the running daemon: the reload must refuse it, and nothing changes."""
    file = stack.paths.models_d / "evil.toml"

    def attempt(**changes: Any) -> Mapping[str, Any]:
        file.write_text(model_toml({**PLAIN, **changes}))
        answer = stack.send("POST", "/api/v1/reload", {"dry_run": False})
        assert answer.status_code == 400, answer.text
        assert answer.json()["code"] == "config_invalid"
        assert answer.json()["hint"] or "hint" in answer.text
        return dict(answer.json())

    yield attempt
    file.unlink(missing_ok=True)
    assert {d["deployment"] for d in stack.get("/api/v1/deployments")} == {"plain"}


VARIANT = {"name": "f32", "format": "gguf", "quantisation": "F32", "path": f"plain/{g.TARGET}"}
DRAFTER = {"name": "d", "method": "dflash", "format": "gguf", "path": f"plain/{g.TARGET}"}
PLAIN = {"name": "evil", "variants": [VARIANT], "context": 2048, "parallel": 1, "threads": 1}


@pytest.mark.parametrize(
    "name",
    [
        "--privileged",
        "../../etc",
        "a b",
        "a\nb",
        "a\0b",
        "a/b",
        "a\\b",
        "a'b",
        "$(id)",
        "-v/:/host",
        "",
        ".",
        "A",
        "a" * 64,
    ],
)
def test_names_that_are_more_than_names(refused: Any, name: str) -> None:
    refused(name=name)
    refused(variants=[{**VARIANT, "name": name}])
    refused(drafters=[{**DRAFTER, "name": name}])


@pytest.mark.parametrize(
    "alias", ["--rpc", "a,b", "x\n--host", "a\0b", "a b", "", "../x", "x" * 129, "plain", "Some/Alias"]
)
def test_aliases_that_are_more_than_names(refused: Any, alias: str) -> None:
    """An alias goes into argv, behind a flag; and no model can take another's name."""
    refused(aliases=[alias])


@pytest.mark.parametrize(
    "extra",
    [
        {"args": ["--rpc", "evil:1"]},
        {"env": {"LD_PRELOAD": "/tmp/x.so"}},
        {"privileged": True},
        {"mounts": ["/:/host"]},
        {"devices": ["/dev/sda"]},
        {"network": "host"},
        {"user": "0:0"},
        {"profile": "none"},
        {"runtime": "sh"},
        {"threads": "1 --rpc evil"},
        {"context": -1},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_words_that_a_model_does_not_have(refused: Any, extra: dict[str, Any]) -> None:
    refused(**extra)


@pytest.mark.parametrize(
    "image", ["--privileged", "../../containers/json", "scratch; reboot", "img\n--privileged", "http://evil.example/x"]
)
def test_image_references_that_are_more(stack: Stack, image: str) -> None:
    """Podman is asked for an image of this name, and there can be none."""
    reason = attempted(stack, image=image)
    assert reason["code"] == "image_unnamed"
    assert "registry/name:tag" in reason["hint"]


def attempted(stack: Stack, **changes: Any) -> Any:
    """Start a definition that the configuration takes: the reason it fails with, and no container of it."""
    file = stack.paths.models_d / "evil.toml"
    file.write_text(model_toml({**PLAIN, **changes}))
    try:
        assert stack.send("POST", "/api/v1/reload", {"dry_run": False}).status_code == 200
        assert stack.want("evil", "running").status_code == 200
        reason = stack.wait_state("evil", "failed", may_fail=True)["reason"]
        assert len(stack.containers()) == 1, "the one of `plain`"
        assert len(list(stack.paths.engines.iterdir())) == 2, "and its files"
        return reason
    finally:
        file.unlink()
        assert stack.send("POST", "/api/v1/reload", {"dry_run": False}).status_code == 200


@pytest.fixture(scope="module")
def outside(test_models: Path) -> Iterator[Path]:
    """A true model, in a folder that is not the store."""
    folder = Path(tempfile.mkdtemp(prefix="or-outside-"))
    shutil.copy(test_models / g.TARGET, folder)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/", "model_file", "is a folder"),
        ("/etc", "model_file", "is a folder"),
        ("/etc/shadow", "model_file", "is no GGUF file"),
        ("plain/../../../../etc/shadow", "model_file", "is no GGUF file"),
        ("/proc/self/environ", "model_file", "is empty"),
        ("/dev/zero", "model_file", "is no regular file"),
        ("PODMAN", "model_file", "cannot be read"),
        ("TOKEN", "model_file", "is no GGUF file"),
        ("a\0b", "model_file", "does not exist"),
        ("OUTSIDE", "spec_refused", "a mount from outside the model folders"),
        ("plain/../../../../OUTSIDE", "spec_refused", "a mount from outside the model folders"),
        ("linked.gguf", "spec_refused", "a mount from outside the model folders"),
        ("linked/MODEL", "spec_refused", "a mount from outside the model folders"),
        ("shadow.gguf", "model_file", "is no GGUF file"),
    ],
)
def test_model_paths_that_lead_elsewhere(stack: Stack, outside: Path, path: str, code: str, words: str) -> None:
    store = stack.paths.store
    links = {"linked.gguf": outside / g.TARGET, "linked": outside, "shadow.gguf": Path("/etc/shadow")}
    for name, target in links.items():
        (store / name).symlink_to(target)
    for word, value in (
        ("/OUTSIDE", f"{outside / g.TARGET}"),
        ("OUTSIDE", f"{outside / g.TARGET}"),
        ("PODMAN", stack.podman_socket),
        ("TOKEN", str(stack.paths.token_file)),
        ("MODEL", g.TARGET),
    ):
        path = path.replace(word, value)
    try:
        reason = attempted(stack, variants=[{**VARIANT, "path": path}])
    finally:
        for name in links:
            (store / name).unlink()
    assert reason["code"] == code
    assert words in reason["text"]
    assert "root:" not in reason["text"]


# out through a plan: what no configuration can say, said to the runner itself


@pytest.fixture(scope="module")
def bench_store(test_models: Path) -> Iterator[Path]:
    with filled_store(test_models) as state:
        yield state


@pytest.fixture
async def bench(podman_socket: str, embedded_image: str, bench_store: Path) -> AsyncIterator[Bench]:
    async with opened(bench_store, podman_socket) as bench:
        yield bench


SOURCES = (
    *("/", "/etc", "/proc", "/dev", "/sys", "/usr", "/root", "/home", "/run", "/var", "/tmp", "/var/lib/containers"),
    *("PODMAN", "STATE", "ENGINES", "STORE/..", "STORE/link", "relative", "STORE\n", "//etc"),
)
TARGETS = ("/", "/etc", "/app", "/models/../etc", "/run/engine/x", "/tmp", "/proc", "models", "/models/target/inner")


async def test_mounts_that_the_validator_refuses(bench: Bench) -> None:
    plan = await bench.plan(Method.NONE)
    (right,) = plan.mounts
    link = bench.paths.store / "link"
    link.symlink_to("/etc")
    words = {
        "PODMAN": bench.runner.podman.socket,
        "STATE": str(bench.paths.state_dir),
        "ENGINES": str(bench.paths.engines),
        "STORE": str(bench.paths.store),
    }
    mounts = []
    for source in SOURCES:
        for word, value in words.items():
            source = source.replace(word, value)  # noqa: PLW2901 - the same source with its words filled in
        mounts.append(PlanMount(source, right.target))
    mounts += [PlanMount(right.source, target) for target in TARGETS[:-1]]
    try:
        for mount in mounts:
            with pytest.raises(SpecRefused):
                await bench.bring_up(replace(plan, mounts=(mount,)))
        with pytest.raises(SpecRefused, match="over or in another"):
            await bench.bring_up(replace(plan, mounts=(right, PlanMount(right.source, TARGETS[-1]))))
    finally:
        link.unlink()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"argv": ("--rpc", "evil:1")}, "argument"),
        ({"argv": ("--api-key-file", "/run/engine/x")}, "argument"),
        ({"argv": ("--slot-save-path", "/models")}, "argument"),
        ({"argv": ("--log-file=/run/engine/x",)}, "argument"),
        ({"argv": ("-m\0--rpc",)}, "argument"),
        ({"env": {"LD_PRELOAD": "/models/target/x.so"}}, "environment"),
        ({"env": {"PATH": "/models"}}, "environment"),
        ({"env": {"HF_TOKEN": "hf_x"}}, "environment"),
        ({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, "environment"),
        ({"env": {"A=B": "x"}}, "name of an environment"),
        ({"env": {"A": "x\0y"}}, "value of an environment"),
        ({"devices": ("/dev/sda",)}, "device"),
        ({"devices": ("/dev/mem",)}, "device"),
        ({"devices": ("nvidia.com/gpu=0,/dev/sda",)}, "device"),
        ({"groups": (0,)}, "group"),
        ({"caches": (("outrider-x", "/etc"),)}, "cache"),
        ({"caches": (("podman-x", "/root/.cache"),)}, "compile cache"),
        ({"profile": "privileged"}, "profile"),
        ({"limits": Limits(memory=-1)}, "memory_limit"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(next(iter(value.items())))[:40],
)
async def test_plans_that_the_validator_refuses(bench: Bench, changes: dict[str, Any], words: str) -> None:
    plan = await bench.plan(Method.NONE)
    merged = dict(changes)
    if "argv" in changes:
        merged["argv"] = (*plan.argv, *changes["argv"])
    if "env" in changes:
        merged["env"] = {**plan.env, **changes["env"]}
    with pytest.raises(SpecRefused, match=words):
        await bench.bring_up(replace(plan, **merged))


async def test_an_image_by_a_name_that_can_change_its_meaning(bench: Bench) -> None:
    plan = await bench.plan(Method.NONE)
    for name in await _names(bench, plan.image):
        with pytest.raises(SpecRefused, match="must be an id or have a digest"):
            await bench.bring_up(replace(plan, image=name))


async def _names(bench: Bench, image: str) -> tuple[str, ...]:
    found = await bench.runner.podman.image(image)
    assert found is not None
    assert found.names
    return found.names


async def test_a_link_in_a_model_folder_leads_nowhere(bench: Bench) -> None:
    """It is followed in the container, where there is nothing of the host's."""
    plan = await bench.plan(Method.NONE)
    link = bench.paths.store / "models" / "link.gguf"
    for target in ("/etc/shadow", "../../token"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        argv = tuple(word.replace(g.TARGET, link.name) for word in plan.argv)
        with pytest.raises(EngineFailed) as caught:
            await bench.bring_up(replace(plan, argv=argv))
        assert caught.value.code == "model_unreadable"
        assert "root:" not in str(caught.value.evidence)
    link.unlink()

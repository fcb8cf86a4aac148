"""Attempts of other users of the machine, and of code inside an engine's container. All fail."""

from __future__ import annotations

import ast
import errno
import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from containers.spec import ENGINE_UID
from orchestrator.plan import SOCKET_FOLDER
from tests.models import generate as g
from tests.models.tokenizer import recital
from tests.stack.stack import Stack
from tests.waiting import until_sync

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

NOBODY = 65534
FIRST_PERSON = 1000
"""The uid of the first person with an account on most machines."""


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
    # version 1 of them has a folder for each controller; what is above it is a tmpfs
    "control groups": lambda: os.close(os.open(
        "/sys/fs/cgroup/memory/cgroup.procs" if os.path.exists("/sys/fs/cgroup/memory")
        else "/sys/fs/cgroup/cgroup.procs", os.O_WRONLY)),
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
    offline = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"}  # switches, no secrets
    assert not any("TOKEN" in name or name.startswith(("HF_", "OUTRIDER")) for name in set(said["env"]) - offline)

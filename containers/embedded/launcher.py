"""A `llama-server` made of the `xllamacpp` wheel: llama.cpp's flags in, llama.cpp's HTTP server out.

The image of the embedded engine runs this as `/app/llama-server`, so one argv suits it and a
real llama-server. Nothing outside the standard library is imported before the command line
and the CPU are found good.

Like llama-server it writes its complaints to stderr and ends with status 1 for an unknown or
removed flag, a bad value or a model that does not load; it ends with 0 on SIGTERM and SIGINT.
A stop that arrives while the model still loads ends it at once, in C: the loading call holds the
interpreter, and no Python handler could run.

This file is part of the image.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from containers.embedded import options, selftest

USAGE = "usage: llama-server -m MODEL [options]; the options are those of llama.cpp's llama-server"
AUTO_SLOTS = 4
"""What llama-server takes for `-np -1`, its default, together with a unified KV cache."""


def main(argv: Sequence[str]) -> int:
    """Serve until a signal; the process's exit status."""
    try:
        request = options.parse(argv, os.environ)
    except options.BadArgument as error:
        return _fail(str(error))
    if request.wants_help:
        sys.stdout.write(f"{USAGE}\n")
        return 0
    if request.wants_version:
        sys.stdout.write(f"{version_line()}\n")
        return 0
    if "model.path" not in request.settings:
        return _fail("error: --model is required")
    complaint = selftest.complaint()
    if complaint is not None:
        return _fail(f"error: {complaint}")
    return _serve(with_defaults(request.settings))


def version_line() -> str:
    """The wheel's version and, as its last part, llama.cpp's build number.

    llama.cpp inside the wheel calls itself build 0, so the package's version is the only source.
    """
    try:
        found = version("xllamacpp")
    except PackageNotFoundError:
        return "version: unknown (xllamacpp is not installed)"
    return f"version: xllamacpp {found} (build {found.rpartition('.')[2]})"


def with_defaults(settings: options.Settings) -> options.Settings:
    """The settings completed the way llama-server's own start-up completes them."""
    full: options.Settings = {"hostnames": ["127.0.0.1"], "port": 8080, "use_jinja": True} | settings
    if full.get("n_parallel", -1) == -1:
        full["n_parallel"] = AUTO_SLOTS
        full.setdefault("kv_unified", True)
    threads = full.get("cpuparams.n_threads")
    if threads is not None:
        for other in ("cpuparams_batch", "speculative.draft.cpuparams", "speculative.draft.cpuparams_batch"):
            full.setdefault(f"{other}.n_threads", threads)
    return full


def apply(settings: options.Settings, params: Any, library: Any) -> None:
    """Put the settings into a `CommonParams`, with enumerations looked up in `library` (xllamacpp)."""
    for path, value in settings.items():
        *above, name = path.split(".")
        target = params
        for part in above:
            target = getattr(target, part)
        setattr(target, name, _resolve(value, library))


def _resolve(value: object, library: Any) -> object:
    match value:
        case options.Member(enum, name):
            return getattr(getattr(library, enum), name)
        case list():
            return [_resolve(item, library) for item in value]
        case _:
            return value


def _serve(settings: options.Settings) -> int:
    hosts = settings["hostnames"]
    assert isinstance(hosts, list)
    sockets = [Path(host) for host in hosts if host.endswith(".sock")]
    # whoever talks to a unix socket needs write permission on it; the folder around it is the guard
    os.umask(0)
    for path in sockets:
        _remove_stale(path)
    _exit_on_stop_while_loading()
    import xllamacpp  # noqa: PLC0415 - a 50 MB library, of no use to a refused command line

    params = xllamacpp.CommonParams()
    try:
        apply(settings, params, xllamacpp)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        return _fail(f"error: xllamacpp does not take these values: {error}")
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        return _fail(f"error: {error}")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    _say(f"listening on {server.listening_address}")
    stop.wait()
    del server
    for path in sockets:
        with contextlib.suppress(OSError):
            path.unlink()
    return 0


def _exit_on_stop_while_loading() -> None:
    """Let the C library handle stop signals until the model is loaded.

    The handler is `quick_exit`, which is not told a status but the signal's number; of its own
    functions it runs the one registered here first, and that is `_exit(0)`.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    libc.__cxa_at_quick_exit.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    if libc.__cxa_at_quick_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None) != 0:
        raise MemoryError("the C library registers no further exit function")
    for number in (signal.SIGTERM, signal.SIGINT):
        libc.signal(number, ctypes.cast(libc.quick_exit, ctypes.c_void_p))


def _remove_stale(path: Path) -> None:
    """Remove a socket on which nobody listens: llama.cpp's server cannot bind over one."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except OSError as error:
            _say(f"warning: {path}: {error}")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _fail(text: str) -> int:
    _say(text)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The gateway's own settings: command line before environment before `outrider.toml` before defaults.

The daemon reads the same file with pydantic; here the few keys are checked by hand,
for the gateway imports nothing that big. What it does not know it leaves to the daemon.
"""

from __future__ import annotations

import argparse
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from api.gateway.admission import Limits
from orchestrator.errors import ConfigError, UsageError
from orchestrator.paths import Paths, find
from orchestrator.timing import Timing

LISTEN = "127.0.0.1:8080"
OPS_LISTEN = "127.0.0.1:8082"
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address to listen on; port 0 lets the kernel choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a gateway is started with."""

    listen: Address
    ops_listen: Address
    limits: Limits
    timing: Timing
    log_bytes: int
    fast_path: bool = True


@dataclass(frozen=True, slots=True)
class _Key:
    """One setting: its key in `[table]`, and what values it takes."""

    table: str
    name: str
    default: float | str
    least: float = 0
    in_file: bool = True

    @property
    def option(self) -> str:
        return "--timing-scale" if self.table == "timing" else "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return f"OUTRIDER_{self.table}_{self.name}".upper()


_KEYS = (
    _Key("gateway", "listen", LISTEN),
    _Key("gateway", "ops_listen", OPS_LISTEN),
    _Key("gateway", "max_waiting", 256),
    _Key("gateway", "hold_s", 600.0),
    _Key("gateway", "max_body_bytes", 32 * MIB, least=1024),
    _Key("gateway", "max_held_bytes", 256 * MIB, least=1024, in_file=False),
    _Key("gateway", "settle_s", 1.0, in_file=False),
    _Key("gateway", "read_s", 30.0, least=0.1, in_file=False),
    _Key("gateway", "unread_s", 300.0, least=0.1, in_file=False),
    _Key("logs", "daemon_bytes", 16 * MIB, least=65536),
    _Key("timing", "scale", 1.0, least=0.001),
)


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m api.gateway`."""
    made = argparse.ArgumentParser(prog="outrider gateway", description="The data plane: what LLM clients talk to.")
    made.add_argument("--config", type=Path, help="outrider.toml, or its folder")
    made.add_argument("--state-dir", type=Path, help="keep everything in this folder")
    for key in _KEYS:
        also = f"{key.variable}, [{key.table}] {key.name}" if key.in_file else key.variable
        made.add_argument(key.option, help=f"default {key.default}; also {also}")
    made.add_argument("--no-fast-path", action="store_true", help="relay through plain ASGI (slower)")
    return made


def from_command_line(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> tuple[Paths, Settings]:
    """Paths and settings. Raises `ConfigError` with the file (or option) and key; argparse exits on usage errors."""
    env = os.environ if environ is None else environ
    options = parser().parse_args(argv)
    paths = find(options.config, options.state_dir, environ=env)
    given = {key.name: getattr(options, key.option.removeprefix("--").replace("-", "_")) for key in _KEYS}
    return paths, settle(paths.config_file, given, env, fast_path=not options.no_fast_path)


def settle(
    config_file: Path,
    given: Mapping[str, str | None],
    environ: Mapping[str, str],
    *,
    fast_path: bool = True,
) -> Settings:
    """The settings from options (`given`, by key name), environment and file."""
    document = _read(config_file)
    values = {key.name: _value(key, given.get(key.name), environ, document, config_file) for key in _KEYS}
    timing = Timing().scaled(float(values["scale"]))
    limits = Limits(
        max_waiting=int(values["max_waiting"]),
        hold_s=float(values["hold_s"]),
        held_stream_comment=timing.held_stream_comment,
        max_body_bytes=int(values["max_body_bytes"]),
        max_held_bytes=max(int(values["max_held_bytes"]), int(values["max_body_bytes"])),
        settle_s=float(values["settle_s"]),
        orphaned_s=timing.held_backoff,
        read_s=float(values["read_s"]),
        unread_s=float(values["unread_s"]),
    )
    return Settings(
        listen=address(str(values["listen"]), "listen"),
        ops_listen=address(str(values["ops_listen"]), "ops_listen"),
        limits=limits,
        timing=timing,
        log_bytes=int(values["daemon_bytes"]),
        fast_path=fast_path,
    )


def address(text: str, what: str) -> Address:
    """`HOST:PORT`, `[V6]:PORT` or `:PORT` (loopback). Raises `UsageError`."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{what}: {text!r} is not HOST:PORT", hint=f"for example {LISTEN}")
    return Address(host, int(port))


def _read(file: Path) -> Mapping[str, object]:
    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(str(file), None, f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            str(file), None, f"is not TOML: {error}", hint="outrider config check shows the place"
        ) from error


def _value(
    key: _Key, option: str | None, environ: Mapping[str, str], document: Mapping[str, object], file: Path
) -> float | str:
    if option is not None:
        return _from_text(key, option, "command line", key.option)
    variable = environ.get(key.variable)
    if variable:
        return _from_text(key, variable, "environment", key.variable)
    table = document.get(key.table, {})
    if not isinstance(table, Mapping):
        raise ConfigError(str(file), key.table, "has to be a table")
    value = table.get(key.name) if key.in_file else None
    return key.default if value is None else _checked(key, value, str(file), f"{key.table}.{key.name}")


def _from_text(key: _Key, text: str, source: str, name: str) -> float | str:
    if isinstance(key.default, str):
        return text
    try:
        value: object = int(text) if isinstance(key.default, int) else float(text)
    except ValueError as error:
        raise ConfigError(source, name, f"{text!r} is no number") from error
    return _checked(key, value, source, name)


def _checked(key: _Key, value: object, source: str, name: str) -> float | str:
    if isinstance(key.default, str):
        if not isinstance(value, str):
            raise ConfigError(source, name, "has to be a text", hint=f'for example "{key.default}"')
        address(value, f"{source}: {name}")
        return value
    kinds = (int,) if isinstance(key.default, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
        kind = "a whole number" if isinstance(key.default, int) else "a number"
        raise ConfigError(source, name, f"has to be {kind}", hint=f"for example {key.default}")
    if value < key.least:
        raise ConfigError(source, name, f"has to be at least {key.least:g}", hint=f"the default is {key.default}")
    return value

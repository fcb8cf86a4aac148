"""The routing table: what the daemon tells the gateway, parsed and checked, and its copy on disk.

Reading is tolerant of what it does not know (extra fields, new states) and strict
about what it uses: a table that is wrong anywhere is refused whole, so that the one
in force stays. The copy on disk carries engine keys, hence mode 0600.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hosts.bootid import boot_id
from hosts.roots import Roots
from orchestrator.errors import Refused

SCHEMA = 1
LONGEST_SOCKET_PATH = 107
"""Bytes: what fits into a unix socket's address."""
LONGEST_REASON = 600
"""Characters of a reason, and of a hint, that clients are told."""


class TableRefused(Refused):
    """A routing table cannot be used; the one in force stays."""

    code = "table_refused"


@dataclass(frozen=True, slots=True)
class EngineRoute:
    """One engine: where it listens (a unix socket, or a port of 127.0.0.1), its key, and whether it takes new work."""

    engine: str
    generation: int
    socket: str | None
    port: int | None
    key: str | None
    plan: str
    method: str
    admit: bool


@dataclass(frozen=True, slots=True)
class Reason:
    """Why no engine serves, or what is done so that one does: a sentence, its code, and the next step."""

    text: str
    code: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """One public model. `hold`: requests wait while no engine admits. Seconds for `retry_after_s`."""

    name: str
    aliases: tuple[str, ...]
    state: str
    hold: bool
    reason: Reason | None
    retry_after_s: float | None
    engines: tuple[EngineRoute, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Everything the gateway routes by. `revision` grows with every change the daemon publishes."""

    boot_id: str
    owner: str
    host: str
    revision: int
    models: tuple[ModelRoute, ...]


def parse(text: str | bytes) -> Table:
    """The table in `text`. Raises `TableRefused` naming the field that is wrong."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TableRefused(f"the routing table is not JSON: {error}") from error
    top = _Fields(document, "table")
    schema = top.integer("schema")
    if schema != SCHEMA:
        raise TableRefused(f"the routing table has schema {schema}, this gateway reads {SCHEMA}")
    models = tuple(_model(item, f"models[{index}]") for index, item in enumerate(top.items("models")))
    table = Table(
        boot_id=top.text("boot_id"),
        owner=top.text("owner"),
        host=_header_safe(top.text("host"), "host"),
        revision=top.integer("revision"),
        models=models,
    )
    _no_duplicates(table)
    return table


def check_origin(table: Table, *, boot_id: str, owner: str) -> None:
    """Raise `TableRefused` unless the table was made since this boot and for this state folder.

    Sockets, ports and keys of another boot belong to engines that are gone.
    """
    if table.boot_id != boot_id:
        raise TableRefused("the routing table is of another boot", evidence={"boot_id": table.boot_id})
    if table.owner != owner:
        raise TableRefused("the routing table is of another state folder", evidence={"owner": table.owner})


def index(table: Table) -> dict[str, ModelRoute]:
    """Models by name and alias. A name wins over an alias, the first alias over a later one."""
    found = {model.name: model for model in table.models}
    for model in table.models:
        for alias in model.aliases:
            found.setdefault(alias, model)
    return found


def save(path: Path, text: str) -> None:
    """Replace the copy on disk, all or nothing, durable on return. Blocking: not for the event loop."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")  # one name: what a killed gateway left is written over
    part.unlink(missing_ok=True)
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path, *, boot_id: str, owner: str) -> Table | None:
    """The table on disk if it is of this boot and this state folder; None when there is none.

    Raises `TableRefused` when there is one that must not be used.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TableRefused(f"cannot read {path}: {error.strerror}") from error
    table = parse(text)
    check_origin(table, boot_id=boot_id, owner=owner)
    return table


def this_boot() -> str:
    """The kernel's id of this boot."""
    return boot_id(Roots.from_environ()) or "unknown"


def _model(value: object, where: str) -> ModelRoute:
    fields = _Fields(value, where)
    aliases = fields.items("aliases", missing_is_empty=True)
    for alias in aliases:
        if not isinstance(alias, str) or not alias or not _is_text(alias):
            raise TableRefused(f"{where}.aliases: not all are names")
    return ModelRoute(
        name=fields.text("name"),
        aliases=tuple(str(alias) for alias in aliases),
        state=fields.text("state"),
        hold=fields.boolean("hold", default=False),
        reason=fields.reason("reason"),
        retry_after_s=fields.seconds("retry_after_s"),
        engines=tuple(
            _engine(item, f"{where}.engines[{index}]")
            for index, item in enumerate(fields.items("engines", missing_is_empty=True))
        ),
    )


def _engine(value: object, where: str) -> EngineRoute:
    fields = _Fields(value, where)
    socket = fields.optional_text("socket")
    port = fields.optional_integer("port")
    if (socket is None) == (port is None):
        raise TableRefused(f"{where}: exactly one of socket and port is needed")
    if socket is not None and not _is_socket_path(socket):
        raise TableRefused(f"{where}.socket: not an absolute path of at most {LONGEST_SOCKET_PATH} bytes")
    if port is not None and not 0 < port < 65536:
        raise TableRefused(f"{where}.port: {port} is no port")
    key = fields.optional_text("key")
    return EngineRoute(
        engine=_header_safe(fields.text("engine"), f"{where}.engine"),
        generation=fields.integer("generation"),
        socket=socket,
        port=port,
        key=None if key is None else _header_safe(key, f"{where}.key"),
        plan=_header_safe(fields.text("plan"), f"{where}.plan"),
        method=_header_safe(fields.text("method"), f"{where}.method"),
        admit=fields.boolean("admit", default=True),
    )


def _is_socket_path(text: str) -> bool:
    return text.startswith("/") and "\0" not in text and len(os.fsencode(text)) <= LONGEST_SOCKET_PATH


def _is_text(text: str) -> bool:
    """Whether it can be written as UTF-8: JSON can carry halves of characters, which nothing can."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _no_duplicates(table: Table) -> None:
    names: set[str] = set()
    engines: set[str] = set()
    for model in table.models:
        if model.name in names:
            raise TableRefused(f"the model {model.name!r} is in the table twice")
        names.add(model.name)
        for engine in model.engines:
            if engine.engine in engines:
                raise TableRefused(f"the engine {engine.engine!r} is in the table twice")
            engines.add(engine.engine)


def _header_safe(text: str, where: str) -> str:
    """`text`, which will stand in an HTTP header: no line breaks, nothing outside of printable ASCII."""
    if not text.isascii() or not text.isprintable():
        raise TableRefused(f"{where}: only printable ASCII may stand here")
    return text


class _Fields:
    """Typed access to a JSON object; `where` goes into the errors."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise TableRefused(f"{where}: not an object")
        self._value: Mapping[str, object] = value
        self._where = where

    def _wrong(self, name: str, wanted: str) -> TableRefused:
        return TableRefused(f"{self._where}.{name}: {wanted} is needed")

    def text(self, name: str) -> str:
        value = self._value.get(name)
        if not isinstance(value, str) or not value or not _is_text(value):
            raise self._wrong(name, "a text")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._value.get(name) is None else self.text(name)

    def integer(self, name: str) -> int:
        value = self._value.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, "a whole number")
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self._value.get(name) is None else self.integer(name)

    def seconds(self, name: str) -> float | None:
        value = self._value.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
            raise self._wrong(name, "a number of seconds")
        return float(value)

    def boolean(self, name: str, *, default: bool) -> bool:
        value = self._value.get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def items(self, name: str, *, missing_is_empty: bool = False) -> list[object]:
        value = self._value.get(name)
        if value is None and missing_is_empty:
            return []
        if not isinstance(value, list):
            raise self._wrong(name, "a list")
        return value

    def reason(self, name: str) -> Reason | None:
        """An object in the shape of `orchestrator.views.Why`, or a sentence alone, as older daemons give it."""
        value = self._value.get(name)
        found = value if isinstance(value, Mapping) else {"text": value}
        text, code, hint = (
            one if isinstance(one, str) and one and _is_text(one) else None
            for one in (found.get(key) for key in ("text", "code", "hint"))
        )
        return None if text is None else Reason(text[:LONGEST_REASON], code, hint and hint[:LONGEST_REASON])

"""Reading of server-sent events, from whatever pieces they arrive in."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.errors import Refused

LONGEST = 32 * 1024 * 1024
"""Bytes of one event: a routing table of thousands of engines is below this."""


class EventTooLong(Refused):
    """One event is over the limit."""

    code = "event_too_long"


@dataclass(frozen=True, slots=True)
class Event:
    """One message: its name (`message` when none was given) and its data."""

    name: str
    data: str


class Decoder:
    """Turns bytes into events. Comments, ids and retry lines are read over."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes. Raises `EventTooLong`."""
        self._size += len(data)
        if self._size > LONGEST:
            raise EventTooLong(f"an event is longer than {LONGEST} bytes")
        self._rest.append(data)
        if b"\n" not in data:  # a table is one line of megabytes: joined once, not at each piece
            return []
        *lines, rest = b"".join(self._rest).split(b"\n")
        self._rest = [rest]
        events = []
        for raw in lines:
            line = raw.removesuffix(b"\r").decode(errors="replace")
            if line:
                self._field(line)
            else:
                if self._data:
                    events.append(Event(self._name or "message", "\n".join(self._data)))
                self._name, self._data, self._size = "", [], len(rest)
        return events

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)

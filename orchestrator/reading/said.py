"""What a configuration says under its keys: absent is unknown, nonsense is an error with the key's name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.telling.amounts import count as counted

BEYOND = 1 << 40
"""No count or width in a model is this large."""
MOST_LAYERS = 1 << 14


class BadKey(ValueError):
    """A key whose value makes no sense; the message names it."""


class Said:
    """One JSON object of a configuration. `where` is its place in the file, as `text_config.`."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values = values
        self.where = where

    def has(self, *keys: str) -> bool:
        """Whether one of the keys says anything; `null` says nothing."""
        return any(self._values.get(key) is not None for key in keys)

    def raw(self, *keys: str) -> Any:
        """The first value that is said under the keys, whatever it is."""
        return next((self._values[key] for key in keys if self._values.get(key) is not None), None)

    def like(self, pattern: re.Pattern[str]) -> tuple[str, ...]:
        """Keys of this kind that say something: neither absent, nor false, nor empty."""
        return tuple(key for key, value in self._values.items() if value and pattern.search(key))

    def _named(self, keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
        yield from ((key, self._values[key]) for key in keys if self._values.get(key) is not None)

    def count(self, *keys: str, least: int = 1) -> int | None:
        """A whole number of at least `least` under the first of the keys that says something."""
        for key, value in self._named(keys):
            return self._whole(key, value, least)
        return None

    def counts(self, *keys: str, least: int = 0) -> tuple[int, ...]:
        """One number or several (a layer each); empty when nothing is said."""
        for key, value in self._named(keys):
            several = value if isinstance(value, list) else [value]
            if len(several) > MOST_LAYERS:
                raise BadKey(f"{self.where}{key} has {counted(len(several), 'entry', 'entries')}")
            return tuple(self._whole(key, one, least) for one in several)
        return ()

    def _whole(self, key: str, value: object, least: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadKey(f"{self.where}{key} is {_short(value)}, not a whole number")
        if not least <= value < BEYOND:
            raise BadKey(f"{self.where}{key} is {value}, which cannot be")
        return value

    def flag(self, *keys: str) -> bool | None:
        """True or false under the first of the keys that says something."""
        for key, value in self._named(keys):
            if not isinstance(value, bool):
                raise BadKey(f"{self.where}{key} is {_short(value)}, not true or false")
            return value
        return None

    def word(self, *keys: str) -> str | None:
        """A text under the first of the keys that says something."""
        for key, value in self._named(keys):
            if not isinstance(value, str):
                raise BadKey(f"{self.where}{key} is {_short(value)}, not a text")
            return value[:200]
        return None

    def words(self, *keys: str) -> tuple[str, ...]:
        """A list of texts; empty when nothing is said."""
        for key, value in self._named(keys):
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise BadKey(f"{self.where}{key} is {_short(value)}, not a list of texts")
            if len(value) > MOST_LAYERS:
                raise BadKey(f"{self.where}{key} has {counted(len(value), 'entry', 'entries')}")
            return tuple(value)
        return ()

    def part(self, *keys: str) -> Said | None:
        """The object under the first of the keys that says something."""
        for key, value in self._named(keys):
            if not isinstance(value, dict):
                raise BadKey(f"{self.where}{key} is {_short(value)}, not an object")
            return Said(value, f"{self.where}{key}.")
        return None

    def parts(self) -> tuple[Said, ...]:
        """All objects in this one."""
        return tuple(Said(v, f"{self.where}{k}.") for k, v in self._values.items() if isinstance(v, dict))

    def objects(self, key: str) -> tuple[Said, ...]:
        """A list of objects (a layer each); empty when nothing is said."""
        value = self._values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value) or len(value) > MOST_LAYERS:
            raise BadKey(f"{self.where}{key} is {_short(value)}, not a list of objects")
        return tuple(Said(one, f"{self.where}{key}[{number}].") for number, one in enumerate(value))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
